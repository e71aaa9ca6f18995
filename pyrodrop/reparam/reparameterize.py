"""Wrap a model and its guide in one strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyro import poutine

from pyrodrop.checks import instance, shown
from pyrodrop.reparam.lazy import LazyReparam
from pyrodrop.reparam.local import LocalReparam
from pyrodrop.reparam.per_example import PerExampleReparam

STRATEGIES: dict[str, LazyReparam | None] = {
    "shared": None,
    "per_example": PerExampleReparam(),
    "local": LocalReparam(),
}


def reparameterize(
    model: Callable[..., Any], guide: Callable[..., Any], strategy: LazyReparam
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Apply a strategy to every weight of a model and its guide.

    Args:
        model: a model with a method `weight_sites`, such as those of `pyrodrop.models`.
        guide: its guide.
        strategy: `LocalReparam()` or `PerExampleReparam()`.

    Returns:
        The wrapped model and guide, for Pyro's `SVI` or any of its ELBOs.

    Raises:
        TypeError: the model has no `weight_sites` (use ``poutine.reparam(model, config={site: strategy})``, and the same for
            the guide), the guide is not callable, or `strategy` is no `LazyReparam`.
    """
    weights: Any = model
    if isinstance(model, type) or not hasattr(weights, "weight_sites"):
        raise TypeError(
            f"model must have a method weight_sites, as the models of pyrodrop.models do; got {shown(model)}: use "
            "poutine.reparam with a config of site names, on model and guide"
        )
    instance(guide, Callable, "guide", "a function, the guide of the model")
    instance(strategy, LazyReparam, "strategy", "a strategy such as LocalReparam()")
    config = dict.fromkeys(weights.weight_sites(), strategy)
    return poutine.reparam(model, config=config), poutine.reparam(guide, config=config)  # type: ignore[arg-type]
