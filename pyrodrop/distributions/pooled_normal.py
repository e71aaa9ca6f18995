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

from pyrodrop.distributions.weight import Size

Group = Literal["weight", "input", "output", "layer"]
GROUPS: tuple[Group, ...] = ("weight", "input", "output", "layer")


class PooledNormal(TorchDistribution):
    """N(0, lambda_g^2) with the variances left to the posterior.

    Args:
        shape: the weight's shape.
        group: which weights share a variance.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012

    def __init__(self, shape: Size, group: Group, batch_shape: Size = (), validate_args: bool | None = None) -> None:
        self.group = group
        super().__init__(torch.Size(batch_shape), torch.Size(shape), validate_args=validate_args)

    support = constraints.real_vector

    def expand(self, batch_shape: Size, _instance: None = None) -> PooledNormal:
        return PooledNormal(self.event_shape, self.group, batch_shape)

    def pool(self, second_moment: Tensor) -> Tensor:
        """The best variance of every weight's group, from E_q[w^2]: of the weight's shape, or broadcasting to it."""
        axes = pooled_axes(self.group, len(self.event_shape))
        return second_moment.mean(axes, keepdim=True) if axes else second_moment

    def log_prob(self, value: Tensor) -> Tensor:
        raise NotImplementedError(
            "ARD without a hyperprior has no density of its own: its variances are the posterior's"
        )

    def sample(self, sample_shape: Size = ()) -> Tensor:
        raise ValueError(
            "ARD without a hyperprior has no draws: its variances are the posterior's; give it a hyperprior"
        )


def pooled_axes(group: Group, event_dim: int) -> list[int]:
    """Which of a weight's axes share a variance, counted from the end."""
    axes = range(-event_dim, 0)
    if group == "layer":
        return list(axes)
    if group == "weight" or event_dim == 1:
        return []
    kept = -event_dim + (1 if group == "input" else 0)
    return [axis for axis in axes if axis != kept]
