"""A sparse posterior after pruning.

    w_ij ~ q(w_ij)  if kept,   w_ij = 0 otherwise

This guide is for prediction only. It has atoms at 0, so it has no KL divergence from a prior and no ELBO, and it cannot be
trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.arguments import instance, shown
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

    Raises:
        TypeError: `guide` has no ln alpha per weight, or `keep` is no mapping from site names to boolean masks.
        ValueError: `keep` has other names, or a mask of another shape.
    """

    def __init__(self, guide: SparseDropout, keep: dict[str, Tensor]) -> None:
        _check(guide, keep)
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


def _check(guide: SparseDropout, keep: dict[str, Tensor]) -> None:
    if not isinstance(guide, Guide) or not hasattr(guide, "log_alpha"):
        raise TypeError(f"guide must be a sparse posterior, such as guides.SparseDropout; got {shown(guide)}")
    instance(keep, Mapping, "keep", "a mapping from site names to boolean masks")
    if set(keep) != set(guide.sites):
        raise ValueError(f"keep must have a mask for each of {', '.join(guide.sites)}; got {', '.join(keep) or 'none'}")
    for name, mask in keep.items():
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            got = f"{mask.dtype} for {name!r}" if isinstance(mask, Tensor) else shown(mask)
            raise TypeError(f"keep must hold masks of dtype torch.bool; got {got}")
        if mask.shape != guide.loc[name].shape:
            shape = list(guide.loc[name].shape)
            raise ValueError(f"keep must have a mask of shape {shape} for {name!r}; got {list(mask.shape)}")


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
