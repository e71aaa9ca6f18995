"""The choice of an engine: the requested one, or the one whose preparation pays off."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import torch

from pyrodrop.compiled.batch import Arguments
from pyrodrop.compiled.costs import worth_compiling
from pyrodrop.compiled.engine import Engine, Name
from pyrodrop.compiled.graph import Graph
from pyrodrop.compiled.in_parts import Average, ByPyro, Gradient, InParts, Joint
from pyrodrop.compiled.inductor import Compiled
from pyrodrop.compiled.loss import Loss
from pyrodrop.compiled.pyro_engine import Pyro
from pyrodrop.compiled.stacked import Stacked, StackedLoss
from pyrodrop.compiled.stacked_compiled import StackedCompiled
from pyrodrop.compiled.traced import ByGraph, Traced
from pyrodrop.compiled.untraceable import Untraceable, first_that_works

_log = logging.getLogger("pyrodrop")


class _Prepares(Protocol):
    def prepare(self, batch: Any) -> None: ...


K = TypeVar("K")
P = TypeVar("P", bound=_Prepares)
Kinds = Mapping[Name, Callable[[], K]]

_WORTH_A_TRACE = 30  # steps


def choose(
    name: Name, loss: Loss, optimizer: torch.optim.Optimizer, batches: Sequence[Arguments], steps: int
) -> Engine:
    """The engine of this name for the remaining steps; Pyro's, with one logged line that says why, where it is impossible.

    Args:
        name: of the engine.
        loss: to minimise.
        optimizer: of the loss's parameters.
        batches: one minibatch of every shape to come.
        steps: number of remaining steps.

    `auto` weighs the work: a trace costs as much as some tens of Pyro's steps, a compilation takes seconds. It decides by
    the size of the graph (`worth_compiling`), so the same call takes the same engine.
    """
    first = batches[0]

    def compiled() -> Engine:
        for batch in batches:  # before the state of its optimiser, which what cannot be traced need not have
            loss.graph(batch)
        return _prepared(Compiled(loss, optimizer), batches)

    kinds: Kinds[Engine] = {
        "compiled": compiled,
        "traced": lambda: _prepared(Traced(loss, optimizer), batches),
        "pyro": lambda: Pyro(loss, optimizer),
    }
    return _chosen(name, kinds, lambda: loss.graph(first), steps, shapes=len(batches))


def choose_in_parts(
    name: Name,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    joints: Sequence[Joint],
    steps: int,
    average: Average | None = None,
) -> Engine:
    """As `choose`, for minibatches that are evaluated in parts; `average` is that of `InParts`."""
    parts = [part.batch for joint in joints for part in joint.parts]
    kinds: Kinds[Gradient] = {
        "compiled": lambda: _prepared(ByGraph(loss, compiled=True), parts),
        "traced": lambda: _prepared(ByGraph(loss), parts),
        "pyro": lambda: ByPyro(loss),
    }
    graph = functools.partial(loss.graph, parts[0])
    gradient = _chosen(name, kinds, graph, steps * len(joints[0].parts), shapes=len(joints))
    return InParts(gradient, loss, optimizer, average)


def choose_stacked(
    name: Name, loss: StackedLoss, optimizer: torch.optim.Optimizer, batches: Sequence[Arguments], steps: int
) -> Engine:
    """As `choose`, for replicates, which are always traced."""
    graph = loss.graph(batches[0])
    kinds: Kinds[Engine] = {
        "compiled": lambda: _prepared(StackedCompiled(loss, optimizer, looped=graph.looped), batches),
        "traced": lambda: Stacked(loss, optimizer),
    }
    return _chosen(name, kinds, lambda: graph.graph, steps, len(loss.held))


def _chosen(
    name: Name,
    kinds: Kinds[K],
    graph: Callable[[], Graph],
    steps: int,
    replicates: int = 1,
    *,
    shapes: int = 1,
) -> K:
    """The kind of this name, or by the work, and the next one where that is impossible."""
    first = name
    if name == "auto":
        first = "pyro" if "pyro" in kinds and steps < _WORTH_A_TRACE else "traced"
        with suppress(Untraceable):  # which `traced` raises again
            if first == "traced" and worth_compiling(graph(), steps, replicates, shapes=shapes):
                first = "compiled"
    names, errors = list(kinds), list[Untraceable]()
    candidates = ((kind, kinds[kind]) for kind in names[names.index(first) :])
    found, made = first_that_works(candidates, lambda _, error: errors.append(error))
    if errors:
        say = _log.info if name == "auto" else _log.warning
        say("training with engine %r instead of %r: %s", found, name, errors[-1])
    return made


def _prepared(made: P, batches: Sequence[Any]) -> P:
    """The engine or gradient, with all that minibatches of these shapes need."""
    for batch in batches:
        made.prepare(batch)
    return made
