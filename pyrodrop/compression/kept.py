"""What is left of a posterior when the weights whose noise drowns them are cut off.

    w_j = E_q[w_j] [ln alpha_j < threshold]

Molchanov, Ashukha & Vetrov (2017), section 4: at threshold 3, alpha is 20, as of a binary drop rate of .95.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Prunes(Protocol):
    """A guide that can say which weights are worth keeping."""

    def mean(self) -> dict[str, Tensor]: ...

    def keep_mask(self, threshold: float = ...) -> dict[str, Tensor]: ...


def kept_weights(guide: Callable[..., Any], threshold: float) -> dict[str, Tensor]:
    """The posterior mean of every weight, 0 where it is cut off.

    Raises:
        TypeError: the guide has no rate a weight by which to cut.
    """
    mask = keep_mask(guide, threshold)
    return {name: torch.where(mask[name], mean, 0.0) for name, mean in guide.mean().items()}  # type: ignore[attr-defined]


def keep_mask(guide: Callable[..., Any], threshold: float) -> dict[str, Tensor]:
    """Which weights stay; a TypeError for a guide that cannot say."""
    if not isinstance(guide, Prunes):
        raise TypeError(
            "weights are cut off by their own alpha, which guides.SparseDropout and guides.ARDDropout learn (keep_mask); "
            f"got {type(guide).__name__}"
        )
    return guide.keep_mask(threshold)


def compression(mask: dict[str, Tensor]) -> float | None:
    """Number of weights over number of those kept, as the papers count it: without biases. None if none is kept."""
    kept = sum(int(m.sum()) for m in mask.values())
    return sum(m.numel() for m in mask.values()) / kept if kept else None


def uncut_weights(guide: Any) -> dict[str, Tensor]:
    """The means of all weights, also of those that a guide cuts while it trains (`distributions.CutNormal`)."""
    with torch.no_grad():
        return {name: getattr(q, "loc", q.mean).clone() for name in guide.sites for q in (guide.posterior(name),)}
