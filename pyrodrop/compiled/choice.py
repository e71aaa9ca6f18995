"""The choice of an engine: the requested one, or the one whose preparation pays off."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import torch

from pyrodrop.compiled.costs import worth_compiling
from pyrodrop.compiled.graph import Graph
from pyrodrop.compiled.inductor import Compiled
from pyrodrop.compiled.recorded import Recorded
from pyrodrop.compiled.stacked import Stacked, StackedLoss
from pyrodrop.compiled.stacked_compiled import StackedCompiled
from pyrodrop.compiled.traced import Traced
from pyrodrop.compiled.untraceable import Untraceable, first_that_works
from pyrodrop.constraints import EngineName
from pyrodrop.steps import Arguments, Engine

_log = logging.getLogger("pyrodrop")


K = TypeVar("K")
P = TypeVar("P", Traced, Compiled, StackedCompiled)
Kinds = Mapping[EngineName, Callable[[], K]]

_WORTH_A_TRACE = 30  # steps
_WORTH_A_RECORDING = 60  # steps of replicates, for each of which mapping takes about a millisecond


def choose(
    name: EngineName,
    loss: Recorded,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Arguments],
    steps: int,
) -> Engine | None:
    """The engine of this name for the remaining steps; None, with one logged line that says why, if only Pyro can make them.

    Args:
        name: name of the engine.
        loss: the loss to minimise.
        optimizer: the optimiser of the loss's parameters.
        batches: one minibatch of every shape to come.
        steps: number of remaining steps.

    `auto` decides by the number of steps and the size of the graph (`worth_compiling`), so the same call takes the same
    engine: a trace costs as much as some tens of Pyro's steps, and a compilation takes seconds.
    """

    def compiled() -> Engine:
        for batch in batches:  # first, since the optimiser may lack the state of parameters of a loss that has no graph
            loss.graph(batch)
        return _prepared(Compiled(loss, optimizer), batches)

    kinds: Kinds[Engine | None] = {
        "compiled": compiled,
        "traced": lambda: _prepared(Traced(loss, optimizer), batches),
        "pyro": lambda: None,
    }
    gpu = any(leaf.is_cuda for leaf in loss.leaves)
    return _chosen(name, kinds, lambda: loss.graph(batches[0]), steps, shapes=len(batches), on_gpu=gpu)


def accelerate_stacked(
    loss: StackedLoss, optimizer: torch.optim.Optimizer, batches: Sequence[Arguments], steps: int, *, engine: EngineName
) -> Engine:
    """The engine for the steps of replicates; `batches` has one minibatch of every shape to come. See `choose`."""
    graph = loss.graph(batches[0])
    if graph.looped and steps > 1:
        _log.info("replicates with convolutions make their steps in turn on a CPU, which takes as long as one by one")
    kinds: Kinds[Engine] = {
        "compiled": lambda: _prepared(StackedCompiled(loss, optimizer, looped=graph.looped), batches),
        "traced": lambda: Stacked(loss, optimizer, record=steps >= _WORTH_A_RECORDING),
    }
    return _chosen(engine, kinds, lambda: graph.graph, steps, len(loss.held), on_gpu=loss.alive.is_cuda)


def _chosen(
    name: EngineName,
    kinds: Kinds[K],
    graph: Callable[[], Graph],
    steps: int,
    replicates: int = 1,
    *,
    shapes: int = 1,
    on_gpu: bool = False,
) -> K:
    """Make the engine of this name, with `auto` the one that saves most time; if that is impossible, the next of `kinds`."""
    first = name
    if name == "auto":
        first = "pyro" if "pyro" in kinds and steps < _WORTH_A_TRACE else "traced"
        with suppress(Untraceable):  # which `traced` raises again
            if first == "traced" and worth_compiling(graph(), steps, replicates, shapes=shapes, on_gpu=on_gpu):
                first = "compiled"
    names, errors = list(kinds), list[Untraceable]()
    candidates = ((kind, kinds[kind]) for kind in names[names.index(first) :])
    found, made = first_that_works(candidates, lambda _, error: errors.append(error))
    if errors:
        say = _log.info if name == "auto" else _log.warning
        say("training with engine %r instead of %r: %s", found, name, errors[-1])
    return made


def _prepared(made: P, batches: Sequence[Any]) -> P:
    """The engine, prepared for minibatches of these shapes."""
    for batch in batches:
        made.prepare(batch)
    return made
