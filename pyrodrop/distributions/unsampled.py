"""Priors of weights without samples: the log-uniform prior, and the Gaussian of automatic relevance determination (ARD) at
its optimal variances.

The log-uniform prior, p(w) = 1 / |w|, is improper: the density does not integrate to a finite number, so that the posterior
may not exist, and the ELBO is not a bound on the evidence.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from pyro.distributions import TorchDistribution
from pyro.distributions.util import broadcast_shape
from torch import Tensor
from torch.distributions import constraints

from pyrodrop.checks import one_of
from pyrodrop.distributions.units import InputUnits
from pyrodrop.distributions.weight import Size

Group: TypeAlias = Literal["weight", "input", "layer"]


class LogUniform(TorchDistribution):
    """The improper prior ``p(log |w|) = const``, elementwise.

    References:
        Kingma, Salimans & Welling (2015), https://arxiv.org/abs/1506.02557, section 3.
        Hron, Matthews & Ghahramani (2018), https://arxiv.org/abs/1807.01969.

    Args:
        shape: batch shape; apply ``to_event`` for the distribution of one weight tensor.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012

    def __init__(self, shape: Size = ()) -> None:
        super().__init__(torch.Size(shape))

    support = constraints.real

    def expand(self, batch_shape: Size, _instance: None = None) -> LogUniform:
        return LogUniform(batch_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        return -value.abs().log().expand(broadcast_shape(value.shape, self.batch_shape))

    def sample(self, sample_shape: Size = ()) -> Tensor:
        raise ValueError(
            "the log-uniform prior is improper and cannot be sampled; use a proper prior, such as priors.Gaussian"
        )


class PooledNormal(TorchDistribution):
    """N(0, lambda_g^2) with variances that are determined by the posterior.

        w_ij ~ N(0, lambda_g^2),   lambda_g^2 = mean over group g of E_q[w^2]

    The variances are those that minimise the KL divergence of a posterior q from this prior. They depend on q, so only that
    KL divergence is defined: `log_prob` and `sample` raise.

    References:
        MacKay (1994), Bayesian Non-linear Modelling for the Prediction Competition.
        Titsias & Lazaro-Gredilla (2014), https://proceedings.mlr.press/v32/titsias14.html, section 3.1.

    Args:
        shape: shape of the weight, the event shape.
        group: which weights share a variance: each ``weight`` has its own, or it is shared per ``input`` unit or
            over the whole ``layer``.
        batch_shape: batch shape.
        units: which axis of the weight indexes input units; ``[out, in, ...]`` by default.

    Raises:
        ValueError: `group` is unknown, or `units` do not fit the shape.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012

    def __init__(
        self,
        shape: Size,
        group: Group,
        batch_shape: Size = (),
        *,
        units: InputUnits = InputUnits(),  # noqa: B008
    ) -> None:
        self.group: Group = one_of(group, Group, "group")
        self.units: InputUnits = units
        units.check(torch.Size(shape))
        super().__init__(torch.Size(batch_shape), torch.Size(shape))

    support = constraints.real_vector

    def expand(self, batch_shape: Size, _instance: None = None) -> PooledNormal:
        return PooledNormal(self.event_shape, self.group, batch_shape, units=self.units)

    def pool(self, second_moment: Tensor) -> Tensor:
        """lambda_g^2 for the group of every weight.

        Args:
            second_moment: E_q[w^2], ``[..., *event_shape]``.

        Returns:
            The variances, in a shape that broadcasts to that of `second_moment`.
        """
        if self.group == "layer":
            return second_moment.mean(list(range(-len(self.event_shape), 0)), keepdim=True)
        units = units_of(self.group, self.units, self.event_shape)
        return second_moment if units is None else units.mean(second_moment, self.event_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        raise NotImplementedError(
            "ARD without a hyperprior has no density, because its variances depend on the posterior: train with "
            "pyrodrop.fit, which needs no density as Pyro's ELBOs do, or set a hyperprior, such as "
            "priors.ARD(hyperprior=dist.InverseGamma(1.0, 0.1))"
        )

    def sample(self, sample_shape: Size = ()) -> Tensor:
        raise ValueError(
            "ARD without a hyperprior cannot be sampled, because its variances depend on the posterior; set a hyperprior, "
            "such as priors.ARD(hyperprior=dist.InverseGamma(1.0, 0.1))"
        )


def units_of(group: Group, units: InputUnits, shape: torch.Size) -> InputUnits | None:
    """The units whose weights share a variance; None if every weight has its own variance or all share one."""
    return units if group == "input" and units.apply_to(shape) else None
