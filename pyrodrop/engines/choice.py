"""The choice of an engine: the requested one, or the one whose preparation pays off."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from pyrodrop.engines.compiled import Compiled
from pyrodrop.engines.costs import REFERENCE, Costs, costs
from pyrodrop.engines.engine import Engine, Name
from pyrodrop.engines.graph import Batch, Graph
from pyrodrop.engines.in_parts import Average, ByCompiledGraph, ByGraph, ByPyro, Gradient, InParts, Joint
from pyrodrop.engines.loss import Loss
from pyrodrop.engines.native import Native
from pyrodrop.engines.pyro_engine import Pyro
from pyrodrop.engines.traced import Traced
from pyrodrop.engines.untraceable import Untraceable

_log = logging.getLogger("pyrodrop")

_WORTH_A_TRACE = 30  # steps
_MACHINES_DIFFER = 3.0  # by less than this factor, in entries per operation; beyond it nothing is measured
_COUNTED = 1 / 3  # of a compilation's time: later fits find the program again


def choose(name: Name, loss: Loss, optimizer: torch.optim.Optimizer, batches: Sequence[Batch], steps: int) -> Engine:
    """The engine of this name for the remaining steps; Pyro's, with one logged line that says why, where it is impossible.

    Args:
        name: of the engine.
        loss: to minimise.
        optimizer: of the loss's parameters.
        batches: one minibatch of every shape to come.
        steps: number of remaining steps.

    `auto` weighs the work: a trace costs as much as some tens of Pyro's steps, a compilation takes seconds (`Costs`). It
    decides by the size of the graph and what this machine once took, and never by a clock, so the same call always takes the
    same engine and gives the same bits.
    """
    engine: Engine = Pyro(loss, optimizer)
    if name == "pyro" or (name == "auto" and steps < _WORTH_A_TRACE):
        return engine
    try:
        if loss.changes:
            raise Untraceable(f"{loss.changes}, which a trace would freeze")
        traced = Traced(loss, optimizer)
        for batch in batches:
            traced.prepare(batch)
        engine = traced
        if name == "compiled" or (
            name == "auto" and worth_compiling(loss.graph(batches[0]), steps, shapes=len(batches))
        ):
            compiled = _compiled(batches[0])(loss, optimizer)
            for batch in batches:
                compiled.prepare(batch)
            engine = compiled
    except Untraceable as error:
        say = _log.info if name == "auto" else _log.warning
        say("training with engine %r instead of %r: %s", engine.name, name, error)
    return engine


def _compiled(batch: Batch) -> type[Compiled]:
    """The compiled engine for the device of the minibatches."""
    return Compiled if batch.y.is_cuda else Native


def choose_in_parts(
    name: Name,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    joints: Sequence[Joint],
    steps: int,
    average: Average | None = None,
) -> Engine:
    """As `choose`, for minibatches that are evaluated in parts; `average` is that of `InParts`."""
    gradient: Gradient = ByPyro(loss)
    parts = len(joints[0].parts)
    if name != "pyro" and not (name == "auto" and steps * parts < _WORTH_A_TRACE):
        try:
            if loss.changes:
                raise Untraceable(f"{loss.changes}, which a trace would freeze")
            gradient = _prepared(ByGraph(loss), joints)
            graph = loss.graph(joints[0].parts[0].batch)
            if name == "compiled" or (name == "auto" and worth_compiling(graph, steps * parts, shapes=len(joints))):
                gradient = _prepared(ByCompiledGraph(loss), joints)
        except Untraceable as error:
            say = _log.info if name == "auto" else _log.warning
            say("training with engine %r instead of %r: %s", gradient.name, name, error)
    return InParts(_prepared(gradient, joints), loss, optimizer, average)


def _prepared(gradient: Gradient, joints: Sequence[Joint]) -> Gradient:
    for joint in joints:
        gradient.prepare(joint)
    return gradient


def worth_compiling(graph: Graph, steps: int, replicates: int = 1, *, shapes: int = 1) -> bool:
    """Whether compiled steps are likely to save more time than counts of their compilation.

    Args:
        graph: of the gradient of a minibatch.
        steps: number of steps.
        replicates: that are trained together.
        shapes: number of shapes of the minibatches.
    """
    operations, entries = len(graph.operations), graph.entries * replicates

    def pays(found: Costs, margin: float = 1.0) -> bool:
        return margin * steps * found.saved(operations, entries) > _COUNTED * found.compilation(operations, shapes)

    return pays(REFERENCE, _MACHINES_DIFFER) and pays(costs())
