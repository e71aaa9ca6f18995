"""A sparse posterior after pruning.

    w_ij ~ q(w_ij)  if kept,   w_ij = 0 otherwise

This guide is for prediction only. It has atoms at 0, so it has no KL divergence from a prior and no ELBO, and it cannot be
trained.
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
    """A sparse posterior whose pruned weights are 0; created by `SparseDropout.pruned`.

    Args:
        guide: the sparse posterior.
        keep: boolean mask of the weights that are kept, by site name.
    """

    def __init__(self, guide: SparseDropout, keep: dict[str, Tensor]) -> None:
        super().__init__(_Sites(guide))
        self.guide = guide
        self.keep = keep

    def posterior(self, name: str) -> TorchDistribution:
        return PrunedNormal(self.guide.loc[name], self.guide.log_alpha(name), self.keep[name])

    def keep_mask(self, threshold: float = 3.0) -> dict[str, Tensor]:
        """Masks of the weights that are kept both here and at `threshold`, by site name; see `SparseDropout.keep_mask`."""
        return {name: self.keep[name] & mask for name, mask in self.guide.keep_mask(threshold).items()}

    def describe(self) -> str:
        left, all_ = (sum(int(m.sum()) if kept else m.numel() for m in self.keep.values()) for kept in (True, False))
        return f"Pruned({self.guide.describe()}, {left} of {all_} weights)"


class _Sites:
    """The weights of a model as `Guide` needs them, taken from another guide of that model."""

    def __init__(self, guide: SparseDropout) -> None:
        self.guide = guide

    def weight_sites(self) -> dict[str, Tensor]:
        return {name: self.guide.loc[name] for name in self.guide.sites}

    def hyper_sites(self) -> dict[str, dict[str, Tensor]]:
        return {}

    def input_units(self) -> dict[str, InputUnits]:
        return self.guide.units
