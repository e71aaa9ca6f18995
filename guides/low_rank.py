"""Gaussians with a low-rank plus diagonal covariance, one per weight tensor."""

from __future__ import annotations

import math

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.checks import HasWeights, count, scale
from pyrodrop.distributions import LowRankNormal
from pyrodrop.guides.guide import Guide
from pyrodrop.modules import ParameterTree
from pyrodrop.networks.sites import starting_from


class LowRank(Guide):
    """A Gaussian per weight tensor with a covariance of the form F F^T + diag(v).

        vec(W) ~ N(vec(M), F F^T + diag(v))         F [weights, rank], v [weights]

    The KL divergence from a Gaussian prior is exact.

    References:
        Ong, Nott & Smith (2018), https://arxiv.org/abs/1701.03208.

    Args:
        model: the model whose weights are inferred.
        rank: number of columns of F, at least 1.
        init_scale: initial scale of both terms of the covariance, positive: v starts at ``init_scale ** 2``, and F F^T has
            the expectation ``init_scale ** 2`` on its diagonal.
        seed: seed of the random initial F. None draws F from torch's generator.

    Raises:
        ValueError: `rank` is below 1, `init_scale` is outside [1e-18, 1e18], or `seed` is negative.
        TypeError: the model does not list its weights (see `Guide`), or an argument is of another type.
    """

    def __init__(self, model: HasWeights, rank: int = 4, init_scale: float = 0.01, *, seed: int | None = 0) -> None:
        super().__init__(model)
        self.rank: int = count(rank, "rank", "the number of factors of the covariance")
        self.init_scale: float = scale(init_scale, "init_scale", "the initial standard deviation of a weight")
        initial = model.weight_sites()
        self.loc: ParameterTree = ParameterTree(initial)
        self.log_variance: ParameterTree = ParameterTree(
            {n: torch.full((w.numel(),), 2 * math.log(init_scale)).to(w) for n, w in initial.items()}
        )
        with starting_from(seed):
            self.factor: ParameterTree = ParameterTree({n: self._new_factor(w) for n, w in initial.items()})

    def restart(self, model: HasWeights) -> None:
        """Reset the means to the current weights of the model and draw new factors F."""
        super().restart(model)
        with torch.no_grad():
            for name, weight in model.weight_sites().items():
                self.factor[name].copy_(self._new_factor(weight))

    def _new_factor(self, weight: Tensor) -> Tensor:
        return self.init_scale / self.rank**0.5 * torch.randn(weight.numel(), self.rank).to(weight)

    def posterior(self, name: str) -> TorchDistribution:
        return LowRankNormal(self.loc[name], self.factor[name], self.log_variance[name].exp())

    def describe(self) -> str:
        return f"LowRank(rank={self.rank})"
