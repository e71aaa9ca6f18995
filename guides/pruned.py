"""A sparse posterior after the cut.

    w_ij ~ q(w_ij)  where kept,   w_ij = 0 elsewhere

For prediction: it has atoms at 0, so there is no divergence from a prior, no ELBO and nothing to train.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.distributions import InputUnits
from pyrodrop.distributions.pruned_normal import PrunedNormal
from pyrodrop.guides.guide import Guide

if TYPE_CHECKING:
    from pyrodrop.guides.sparse_dropout import SparseDropout


class Pruned(Guide):
    """The weights of a sparse posterior that are left, as `SparseDropout.pruned` makes it.

    Args:
        guide: the posterior.
        keep: by site, which of its weights are left.
    """

    def __init__(self, guide: SparseDropout, keep: dict[str, Tensor]) -> None:
        super().__init__(_Sites(guide))
        self.guide = guide
        self.keep = keep

    def posterior(self, name: str) -> TorchDistribution:
        return PrunedNormal(self.guide.loc[name], self.guide.log_alpha(name), self.keep[name])

    def keep_mask(self, threshold: float = 3.0) -> dict[str, Tensor]:
        """Which weights are left, less those that another threshold cuts."""
        return {name: self.keep[name] & mask for name, mask in self.guide.keep_mask(threshold).items()}

    def describe(self) -> str:
        left, all_ = (sum(int(m.sum()) if kept else m.numel() for m in self.keep.values()) for kept in (True, False))
        return f"Pruned({self.guide.describe()}, {left} of {all_} weights)"


class _Sites:
    """What a guide needs to know of a model, from another guide of that model."""

    def __init__(self, guide: SparseDropout) -> None:
        self.guide = guide

    def weight_sites(self) -> dict[str, Tensor]:
        return {name: self.guide.loc[name] for name in self.guide.sites}

    def hyper_sites(self) -> dict[str, dict[str, Tensor]]:
        return {}

    def input_units(self) -> dict[str, InputUnits]:
        return self.guide.units
