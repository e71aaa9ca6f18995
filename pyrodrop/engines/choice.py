"""Which engine makes the steps: the one asked for, or the one that is worth its preparation."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from torch import Tensor

from pyrodrop.engines.compiled import Compiled
from pyrodrop.engines.engine import Engine, Name
from pyrodrop.engines.graph import Batch, Graph, Parameter
from pyrodrop.engines.moving import Moving
from pyrodrop.engines.pyro_engine import Pyro
from pyrodrop.engines.traced import Traced
from pyrodrop.engines.untraceable import Untraceable

_log = logging.getLogger("pyrodrop")

_WORTH_A_TRACE = 300  # steps
_NODE_SECONDS = 5e-6  # what one operation of a replayed graph costs beside its arithmetic
_ELEMENT_SECONDS = 1e-9  # and what it costs an element
_COMPILE_SECONDS = 15.0
_COMPILED_NODES = 2000  # operations that the compiler needs that time for; it takes longer for more


def choose(
    name: Name,
    pyro_engine: Pyro,
    parameters: Mapping[str, Parameter],
    moving: Moving,
    changes: str,
    batches: Sequence[Batch],
    steps: int,
) -> Engine:
    """The engine of this name for the steps that are left; Pyro's, and one logged line why, where it cannot be had.

    Args:
        name: of the engine.
        pyro_engine: what the others are made from.
        parameters: what the steps move.
        moving: and which buffers.
        changes: Python attributes that a call changes, as words; a trace would freeze them.
        batches: one minibatch of every shape that is to come.
        steps: how many are left.

    `auto` weighs the work: a trace costs as much as some tens of Pyro's steps, a compilation seconds. It decides by the
    size of the graph and never by a clock, so the same call always takes the same engine and gives the same bits.
    """
    if name == "pyro" or (name == "auto" and steps < _WORTH_A_TRACE):
        return pyro_engine
    engine: Engine = pyro_engine
    try:
        if changes:
            raise Untraceable(f"{changes}, which a trace would freeze")
        traced = Traced(
            pyro_engine.model, pyro_engine.guide, parameters, pyro_engine.optimizer, pyro_engine.precision, moving
        )
        graphs = [traced.graph(batch) for batch in batches]
        engine = traced
        if name == "compiled" or (name == "auto" and worth_compiling(graphs[0], steps)):
            compiled = Compiled(traced)
            for batch in batches:
                compiled.prepare(batch)
            engine = compiled
    except Untraceable as error:
        say = _log.info if name == "auto" else _log.warning
        say("training with engine %r instead of %r: %s", engine.name, name, error)
    return engine


def worth_compiling(graph: Graph, steps: int, replicates: int = 1) -> bool:
    """Whether the time that compiled steps save is likely to be more than the compiler's."""
    nodes = [node for node in graph.module.graph.nodes if node.op == "call_function"]
    elements = sum(node.meta["val"].numel() for node in nodes if isinstance(node.meta.get("val"), Tensor))
    saved = 0.7 * len(nodes) * _NODE_SECONDS + 0.5 * elements * replicates * _ELEMENT_SECONDS
    return steps * saved > 2 * _COMPILE_SECONDS * max(1.0, len(nodes) / _COMPILED_NODES)
