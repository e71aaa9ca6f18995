"""Pruning of a posterior: weights with a large noise variance alpha are set to 0.

    w_j = E_q[w_j] [ln alpha_j < threshold],   alpha_j = Var[w_j] / E[w_j]^2, of the weight or of its input unit

Molchanov, Ashukha & Vetrov (2017), arXiv:1701.05369, section 4: at threshold 3, alpha is 20, which corresponds to a binary
drop rate of .95. A guide may have another default: `guides.LogNormalDropout` has 0, a signal-to-noise ratio of 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from pyrodrop.checks import shown


@runtime_checkable
class Prunes(Protocol):
    """A guide with posterior means and a mask of the weights to keep."""

    def mean(self) -> dict[str, Tensor]: ...

    def keep_mask(self, threshold: float = ...) -> dict[str, Tensor]: ...


def kept_weights(guide: Callable[..., Any], threshold: float | None) -> dict[str, Tensor]:
    """The posterior mean of every weight, by site name, with pruned weights set to 0; see `keep_mask`."""
    mask = keep_mask(guide, threshold)
    return {name: torch.where(mask[name], mean, 0.0) for name, mean in guide.mean().items()}  # type: ignore[attr-defined]


def keep_mask(guide: Callable[..., Any], threshold: float | None) -> dict[str, Tensor]:
    """Boolean masks of the weights to keep, by site name.

    Args:
        guide: a guide with an alpha per weight or per input unit.
        threshold: weights with ln alpha at or above it are pruned; the guide's default if None.

    Raises:
        TypeError: the guide does not learn such an alpha.
        ValueError: `threshold` is not finite, or out of range.
    """
    if isinstance(guide, type) or not isinstance(guide, Prunes):
        raise TypeError(
            "pruning needs a guide that learns an alpha per weight or per input unit: use guides.LogNormalDropout, "
            f"guides.SparseDropout or guides.ARDDropout; got {shown(guide)}"
        )
    return guide.keep_mask() if threshold is None else guide.keep_mask(threshold)
