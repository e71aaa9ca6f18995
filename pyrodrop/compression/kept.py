"""Pruning of a posterior: weights with a large noise variance alpha are set to 0.

    w_j = E_q[w_j] [ln alpha_j < threshold]

Molchanov, Ashukha & Vetrov (2017), arXiv:1701.05369, section 4: at threshold 3, alpha is 20, which corresponds to a binary
drop rate of .95.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from pyrodrop.arguments import shown


@runtime_checkable
class Prunes(Protocol):
    """A guide with posterior means and a mask of the weights to keep."""

    def mean(self) -> dict[str, Tensor]: ...

    def keep_mask(self, threshold: float = ...) -> dict[str, Tensor]: ...


def kept_weights(guide: Callable[..., Any], threshold: float) -> dict[str, Tensor]:
    """The posterior mean of every weight, by site name, with pruned weights set to 0.

    Args:
        guide: a guide with an alpha per weight.
        threshold: weights with ln alpha at or above it are pruned.

    Raises:
        TypeError: the guide has no alpha per weight.
    """
    mask = keep_mask(guide, threshold)
    return {name: torch.where(mask[name], mean, 0.0) for name, mean in guide.mean().items()}  # type: ignore[attr-defined]


def keep_mask(guide: Callable[..., Any], threshold: float) -> dict[str, Tensor]:
    """Boolean masks of the weights to keep, by site name; see `kept_weights` for the arguments and what it raises."""
    if isinstance(guide, type) or not isinstance(guide, Prunes):
        raise TypeError(
            "pruning needs a guide with a per-weight alpha: use guides.SparseDropout or guides.ARDDropout; "
            f"got {shown(guide)}"
        )
    return guide.keep_mask(threshold)


def compression(mask: Mapping[str, Tensor]) -> float | None:
    """Compression ratio: number of weights divided by number of weights kept, without biases. None if none is kept."""
    return ratio(sum(m.numel() for m in mask.values()), sum(int(m.sum()) for m in mask.values()))


def ratio(before: float, after: float) -> float | None:
    """How many times smaller something has become, ``before / after``; None if nothing is left of it."""
    return before / after if after else None


def uncut_weights(guide: Any) -> dict[str, Tensor]:
    """The means of all weights, by site name, including those that `distributions.CutNormal` sets to 0 in training."""
    with torch.no_grad():
        return {name: getattr(q, "loc", q.mean).clone() for name in guide.sites for q in (guide.posterior(name),)}
