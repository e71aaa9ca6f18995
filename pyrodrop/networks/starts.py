"""New initial values of a network, from its modules' own initialisation."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pyrodrop import arguments
from pyrodrop.devices import seeded


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
        with seeded(arguments.seed(seed), torch.empty(0).device):
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
        network: a module whose parameters are buffers (`sites.freeze`); it is not changed.
        names: all names of every parameter to draw, by its canonical name.

    Raises:
        ValueError: a module that owns one of them has no ``reset_parameters`` method.
    """
    network = copy.deepcopy(network)
    wanted = {name for all_ in names.values() for name in all_}
    made: dict[str, nn.Parameter] = {}
    owners: dict[str, nn.Module] = {}
    for prefix, module in network.named_modules():
        for short in list(module._buffers):
            name = f"{prefix}.{short}" if prefix else short
            if name in wanted:
                made[name] = nn.Parameter(module._buffers[short].clone())  # type: ignore[union-attr]
                del module._buffers[short]
                module.register_parameter(short, made[name])
                owners[prefix] = module
    silent = sorted(
        {f"{name or 'the network itself'} ({type(m).__name__})" for name, m in owners.items() if not _reset(m)}
    )
    if silent:
        raise ValueError(
            "new initial values come from each module's reset_parameters(), which these modules do not have: "
            f"{', '.join(silent)}. Add the method, or build each model yourself and pass lists of models and guides"
        )
    with torch.no_grad():
        for module in owners.values():
            getattr(module, _reset(module))()
    return {first: made[first].detach() for first in names}  # a tied parameter takes its first owner's value


def _reset(module: nn.Module) -> str:
    """The name of a module's initialisation method; empty if it has none."""
    return next(
        (name for name in ("reset_parameters", "_reset_parameters") if callable(getattr(module, name, None))), ""
    )
