"""The choice of an engine: the requested one, or the one whose preparation pays off."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import torch

from pyrodrop.steps.batch import Arguments
from pyrodrop.compiled.costs import BOUNDS, Costs, costs
from pyrodrop.compiled.engine import Engine
from pyrodrop.constraints import EngineName as Name
from pyrodrop.compiled.graph import Graph
from pyrodrop.compiled.in_parts import Average, ByCompiledGraph, ByGraph, ByPyro, Gradient, InParts, Joint
from pyrodrop.compiled.inductor import Compiled
from pyrodrop.compiled.recorded import Recorded
from pyrodrop.compiled.pyro_engine import Pyro
from pyrodrop.compiled.stacked import Stacked, StackedLoss
from pyrodrop.compiled.stacked_compiled import StackedCompiled
from pyrodrop.compiled.traced import Traced
from pyrodrop.compiled.untraceable import Untraceable, first_that_works

_log = logging.getLogger("pyrodrop")


class _Prepares(Protocol):
    def prepare(self, batch: Any) -> None: ...


K = TypeVar("K")
P = TypeVar("P", bound=_Prepares)
Kinds = Mapping[Name, Callable[[], K]]

_WORTH_A_TRACE = 30  # steps
_COUNTED = 1 / 3  # of a compilation's time: later fits find the program again


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

    `auto` weighs the work: a trace costs as much as some tens of Pyro's steps, a compilation takes seconds (`Costs`). It
    decides by the size of the graph and, where machines would differ, by what this one takes, which is kept: the same call
    takes the same engine and gives the same bits, unless this machine is found to be faster than when it was measured.
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
    parts = joints[0].parts
    kinds: Kinds[Gradient] = {
        "compiled": lambda: _prepared(ByCompiledGraph(loss), joints),
        "traced": lambda: _prepared(ByGraph(loss), joints),
        "pyro": lambda: ByPyro(loss),
    }
    graph = functools.partial(loss.graph, parts[0].batch)
    gradient = _chosen(name, kinds, graph, steps * len(parts), shapes=len(joints))
    return InParts(gradient, loss, optimizer, average)


def choose_stacked(
    name: Name, loss: StackedLoss, optimizer: torch.optim.Optimizer, batches: Sequence[Arguments], steps: int
) -> Engine:
    """As `choose`, for replicates, which are always traced."""
    graph = loss.graph(batches[0])
    kinds: Kinds[Engine] = {
        "compiled": lambda: _prepared(StackedCompiled(loss, optimizer, graph.looped), batches),
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


def worth_compiling(graph: Graph, steps: int, replicates: int = 1, *, shapes: int = 1) -> bool:
    """Whether compiled steps are likely to save more time than counts of their compilation.

    Args:
        graph: of the gradient of a minibatch.
        steps: number of steps.
        replicates: that are trained together; more than one are mapped where they are not compiled.
        shapes: number of shapes of the minibatches.
    """
    operations, entries, mapped = len(graph.operations), graph.entries * replicates, replicates > 1

    def pays(of: Costs) -> bool:
        saved = steps * of.saved(operations, entries, mapped=mapped)
        return saved > _COUNTED * of.compilation(operations, shapes, mapped=mapped)

    least, most = map(pays, BOUNDS)
    return pays(costs()) if least != most else least
