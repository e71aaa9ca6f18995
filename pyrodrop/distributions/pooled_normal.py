"""The Gaussian prior of automatic relevance determination at its best variances.

    w_ij ~ N(0, lambda_g^2),   lambda_g^2 = mean over group g of E_q[w^2]

Not a distribution by itself: its variances are those that a posterior q makes most of, so only a divergence from it is
defined. MacKay (1994); Titsias & Lazaro-Gredilla (2014), Doubly Stochastic Variational Bayes, section 3.1.
"""

from __future__ import annotations

from typing import Literal

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from pyrodrop.distributions.units import InputUnits
from pyrodrop.distributions.weight import Size

Group = Literal["weight", "input", "output", "layer"]
GROUPS: tuple[Group, ...] = ("weight", "input", "output", "layer")


class PooledNormal(TorchDistribution):
    """N(0, lambda_g^2) with the variances left to the posterior.

    Args:
        shape: the weight's shape.
        group: which weights share a variance.
        units: where the weight's input units are, ``[out, in, ...]`` by default.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012

    def __init__(
        self,
        shape: Size,
        group: Group,
        batch_shape: Size = (),
        *,
        units: InputUnits = InputUnits(),  # noqa: B008
        validate_args: bool | None = None,
    ) -> None:
        self.group, self.units = group, units
        super().__init__(torch.Size(batch_shape), torch.Size(shape), validate_args=validate_args)

    support = constraints.real_vector

    def expand(self, batch_shape: Size, _instance: None = None) -> PooledNormal:
        return PooledNormal(self.event_shape, self.group, batch_shape, units=self.units)

    def pool(self, second_moment: Tensor) -> Tensor:
        """The best variance of every weight's group, from E_q[w^2]: of the weight's shape, or broadcasting to it."""
        if self.group == "layer":
            return second_moment.mean(list(range(-len(self.event_shape), 0)), keepdim=True)
        units = units_of(self.group, self.units, self.event_shape)
        return second_moment if units is None else units.mean(second_moment, self.event_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        raise NotImplementedError(
            "ARD without a hyperprior has no density of its own, its variances are the posterior's: train by pyrodrop.fit "
            "or TraceMeanField_ELBO, or give it a hyperprior, as in priors.ARD(hyperprior=dist.InverseGamma(1.0, 0.1))"
        )

    def sample(self, sample_shape: Size = ()) -> Tensor:
        raise ValueError(
            "ARD without a hyperprior has no draws: its variances are the posterior's; give it a hyperprior, as in "
            "priors.ARD(hyperprior=dist.InverseGamma(1.0, 0.1))"
        )


def units_of(group: Group, units: InputUnits, shape: torch.Size) -> InputUnits | None:
    """The units whose weights share a variance; None where every weight has its own, or all have one."""
    if group not in ("input", "output") or not units.apply_to(shape):
        return None
    return units if group == "input" else units.outputs
