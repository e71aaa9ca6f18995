"""New initial values of a network, from its modules' own initialisation."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pyrodrop import checks
from pyrodrop.devices import seeded
from pyrodrop.networks.sites import freeze, thaw


@contextmanager
def starting_from(seed: int | None) -> Iterator[None]:
    """Seed the generators for the initial values that the block draws, and restore the caller's random state afterwards.

    With None the block draws from torch's generator, and changes its state.

    Raises:
        TypeError, ValueError: `seed` is no whole number, or negative.
    """
    if seed is None:
        yield
    else:
        with seeded(checks.seed(seed), torch.empty(0).device):
            yield


def started_anew(model: Any) -> Any:
    """A copy of a model with new initial values, drawn by its ``reset_parameters()`` from torch's generator.

    Raises:
        TypeError: the model has no such method.
        ValueError: a module of its network has parameters and no ``reset_parameters()``; the message names it.
    """
    check_starts(model)
    made = copy.deepcopy(model)
    made.reset_parameters()
    return made


def check_starts(model: Any) -> None:
    """Raise a TypeError for a model without a method ``reset_parameters()``; models of `pyrodrop.models` have it."""
    if isinstance(model, type) or not callable(getattr(model, "reset_parameters", None)):
        raise TypeError(
            f"new initial weights need a model with a method reset_parameters(); {type(model).__name__} has none: pass "
            "lists of models and guides with initial weights of their own"
        )


def new_values(network: nn.Module, names: dict[str, tuple[str, ...]]) -> dict[str, Tensor]:
    """New values of the parameters from ``reset_parameters()`` of the modules that own them, with torch's generator.

    Args:
        network: a module, whose parameters may be buffers (`sites.freeze`); it is not changed.
        names: all names of every parameter to draw, by its canonical name. A tied parameter takes its first owner's value.

    Raises:
        ValueError: a module that owns one of them has no ``reset_parameters`` method.
    """
    network = copy.deepcopy(network)
    freeze(network)
    thaw(network, {name: (name,) for all_names in names.values() for name in all_names}, {}, fixed=())
    owners = [(name, m, _reset(m)) for name, m in network.named_modules() if [*m.parameters(recurse=False)]]
    silent = sorted(f"{name or 'the network itself'} ({type(m).__name__})" for name, m, reset in owners if not reset)
    if silent:
        raise ValueError(
            "new initial values come from each module's reset_parameters(), which these modules do not have: "
            f"{', '.join(silent)}. Add the method, or build each model yourself and pass lists of models and guides"
        )
    with torch.no_grad():
        for _, module, reset in owners:
            getattr(module, reset)()
    return {first: network.get_parameter(first).detach() for first in names}


def _reset(module: nn.Module) -> str:
    """The name of a module's initialisation method; empty if it has none."""
    return next((n for n in ("reset_parameters", "_reset_parameters") if callable(getattr(module, n, None))), "")
