"""The choice of an engine: the requested one, or the one whose preparation pays off."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from pyrodrop.engines.compiled import Compiled
from pyrodrop.engines.engine import Engine, Name
from pyrodrop.engines.graph import Batch, Graph
from pyrodrop.engines.in_blocks import InBlocks
from pyrodrop.engines.in_parts import Average, ByCompiledGraph, ByGraph, ByPyro, Gradient, InParts, Joint
from pyrodrop.engines.loss import Loss
from pyrodrop.engines.pyro_engine import Pyro
from pyrodrop.engines.traced import Traced
from pyrodrop.engines.untraceable import Untraceable

_log = logging.getLogger("pyrodrop")

_WORTH_A_TRACE = 300  # steps
_NODE_SECONDS = 5e-6  # overhead of one operation of a replayed graph
_ELEMENT_SECONDS = 1e-9  # time per element of its result
_COMPILE_SECONDS = 15.0
_COMPILED_NODES = 2000  # operations that the compiler handles in that time


def choose(name: Name, loss: Loss, optimizer: torch.optim.Optimizer, batches: Sequence[Batch], steps: int) -> Engine:
    """The engine of this name for the remaining steps; Pyro's, with one logged line that says why, where it is impossible.

    Args:
        name: of the engine.
        loss: to minimise.
        optimizer: of the loss's parameters.
        batches: one minibatch of every shape to come.
        steps: number of remaining steps.

    `auto` weighs the work: a trace costs as much as some tens of Pyro's steps, a compilation takes seconds. It decides by
    the size of the graph and never by a clock, so the same call always takes the same engine and gives the same bits.
    """
    engine: Engine = Pyro(loss, optimizer)
    if name == "pyro" or (name == "auto" and steps < _WORTH_A_TRACE):
        return engine
    try:
        if loss.changes:
            raise Untraceable(f"{loss.changes}, which a trace would freeze")
        graphs = [loss.graph(batch) for batch in batches]
        engine = Traced(loss, optimizer)
        if name == "compiled" or (name == "auto" and worth_compiling(graphs[0], steps)):
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
    return Compiled if batch.y.is_cuda else InBlocks


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
            if name == "compiled" or (name == "auto" and worth_compiling(graph, steps * parts)):
                gradient = _prepared(ByCompiledGraph(loss), joints)
        except Untraceable as error:
            say = _log.info if name == "auto" else _log.warning
            say("training with engine %r instead of %r: %s", gradient.name, name, error)
    return InParts(_prepared(gradient, joints), loss, optimizer, average)  # type: ignore[return-value]


def _prepared(gradient: Gradient, joints: Sequence[Joint]) -> Gradient:
    for joint in joints:
        gradient.prepare(joint)
    return gradient


def worth_compiling(graph: Graph, steps: int, replicates: int = 1) -> bool:
    """Whether compiled steps are likely to save more time than the compilation takes."""
    nodes = [node for node in graph.module.graph.nodes if node.op == "call_function"]
    elements = sum(node.meta["val"].numel() for node in nodes if isinstance(node.meta.get("val"), Tensor))
    saved = 0.7 * len(nodes) * _NODE_SECONDS + 0.5 * elements * replicates * _ELEMENT_SECONDS
    return steps * saved > 2 * _COMPILE_SECONDS * max(1.0, len(nodes) / _COMPILED_NODES)
