"""A Pyro program with its data, and how plain Pyro trains it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer import ELBO, SVI
from pyro.infer.autoguide import AutoGuide
from pyro.optim import PyroOptim
from torch import Tensor

from pyrodrop.changes import modules_of

Parts = tuple[Callable[..., Any], Callable[..., Any], dict[str, Any]]
"""Model, guide and the keyword arguments that both are called with."""


@dataclass(frozen=True)
class Program:
    """A Pyro program.

    Args:
        name: unique name.
        make: builds model, guide and data, with floating-point tensors of a dtype. Every call builds the same ones.
        loss: makes Pyro's loss.
        lr: learning rate of Adam.
        overhead: whether a step in Pyro spends nearly all of its time in Python, not in arithmetic.
    """

    name: str
    make: Callable[[torch.dtype], Parts]
    loss: Callable[[], ELBO]
    lr: float = 0.01
    overhead: bool = True


@dataclass(frozen=True)
class Trained:
    """The result of a training.

    Attributes:
        losses: loss of every step, ``[steps]``.
        constrained, unconstrained: the trained parameters by name.
        seconds: duration of a step.
    """

    losses: Tensor
    constrained: dict[str, Tensor]
    unconstrained: dict[str, Tensor]
    seconds: float


def by_pyro(program: Program, steps: int, seed: int, dtype: torch.dtype = torch.float64) -> Trained:
    """Train a program with `SVI` alone, after clearing Pyro's parameter store."""
    pyro.clear_param_store()
    return svi(*program.make(dtype), program.loss(), steps, seed, lr=program.lr)


def svi(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    data: Mapping[str, Any],
    loss: ELBO,
    steps: int,
    seed: int,
    *,
    lr: float,
) -> Trained:
    """Train with `SVI` and Adam. The steps use the random numbers of `seed`, also if a guide draws when it is set up."""
    set_up(guide, data)
    torch.manual_seed(seed)
    steps_of = SVI(model, guide, PyroOptim(torch.optim.Adam, {"lr": lr}), loss)
    start = time.perf_counter()
    losses = torch.tensor([steps_of.step(**data) for _ in range(steps)], dtype=torch.float64)
    seconds = (time.perf_counter() - start) / steps
    return Trained(losses, *parameters(model, guide, data), seconds)


def on(parts: Parts, device: str | torch.device) -> Parts:
    """The parts with data and modules on a device; modules are moved in place, as a user of Pyro would do it."""
    model, guide, data = parts
    for module in modules_of(model, guide).values():
        module.to(device)
    return (
        model,
        guide,
        {name: value.to(device) if isinstance(value, Tensor) else value for name, value in data.items()},
    )


def set_up(guide: Callable[..., Any], data: Mapping[str, Any]) -> None:
    """Have an autoguide create its parameters, by one call with random numbers of seed 0."""
    if isinstance(guide, AutoGuide):
        torch.manual_seed(0)
        with poutine.block():
            guide(**data)


def parameters(
    model: Callable[..., Any], guide: Callable[..., Any], data: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The parameters that guide and model use in a call, constrained and unconstrained, by name."""
    with torch.random.fork_rng([]), torch.no_grad():
        torch.manual_seed(0)
        guide_trace = poutine.trace(guide).get_trace(**data)
        model_trace = poutine.trace(poutine.replay(model, trace=guide_trace)).get_trace(**data)
    nodes = {**guide_trace.nodes, **model_trace.nodes}
    values: dict[str, Any] = {_name(name): node["value"] for name, node in nodes.items() if node["type"] == "param"}
    constrained = {name: value.detach().clone() for name, value in values.items()}
    return constrained, {name: value.unconstrained().detach().clone() for name, value in values.items()}


def _name(name: str) -> str:
    """The name of a parameter without the number that distinguishes an autoguide from earlier ones of its class."""
    return re.sub(r"^(Auto[A-Za-z]+)_\d+\.", r"\1.", name)
