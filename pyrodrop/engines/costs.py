"""What a step and a compilation cost on this machine, measured once.

    a compiled step saves    (a + b n) o + m e / 2       of n operations with m entries in all their results
    compiling takes          s (c + d n) o               for s shapes of minibatches

o, the time of an operation on a few numbers, and e, the time of an entry, are measured when they are first needed and kept
in the user's cache, so the choice of an engine depends on the settings of a training alone, and never on what else the
machine does. a, b, c and d were measured on one machine: all of it is work of Python and of a compiler on one core.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor, fx

from pyrodrop.cache import folder
from pyrodrop.devices import processor
from pyrodrop.engines.script import script
from pyrodrop.files import write_json
from pyrodrop.private_apis import scripts_as_they_are

_STEP, _OPERATION, _COMPILATION, _COMPILED_OPERATION = 100, 1.6, 6.5e6, 1e4  # a, b, c and d


class Costs(NamedTuple):
    """Seconds of an operation on a few numbers, and of an entry of its result."""

    operation: float
    entry: float

    def saved(self, operations: int, entries: int) -> float:
        """Seconds that a compiled step takes less than a traced one."""
        return (_STEP + _OPERATION * operations) * self.operation + 0.5 * entries * self.entry

    def compilation(self, operations: int, shapes: int) -> float:
        """Seconds of compiling a step for minibatches of so many shapes."""
        return shapes * (_COMPILATION + _COMPILED_OPERATION * operations) * self.operation


REFERENCE = Costs(6.2e-7, 1.15e-10)  # of the machine on which the multiples were measured


@functools.cache
def costs() -> Costs:
    """The costs on this machine; those of the reference where they cannot be kept, since a measurement never repeats."""
    place = folder("costs")
    if place is None:
        return REFERENCE
    machine = {"processor": processor(), "torch": torch.__version__, "threads": torch.get_num_threads()}
    file = place / f"{hashlib.sha256(str(machine).encode()).hexdigest()[:16]}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(file.read_text())
        found = Costs(float(kept["operation"]), float(kept["entry"]))
        if kept["machine"] == machine and all(1e-9 < number < 1e-3 for number in (found.operation, 100 * found.entry)):
            return found
    found = measured()
    try:
        write_json(file, {"machine": machine, **found._asdict()})
    except OSError:
        return REFERENCE
    return found


def measured() -> Costs:
    """The costs, from the fastest of some short timings."""
    few, many = (_seconds(torch.ones(size)) for size in (8, 2**14))
    return Costs(few, max(many - few, 0.0) / 2**14)


_OPERATIONS, _TIMINGS, _CALLS = 50, 20, 10


def _seconds(start: Tensor) -> float:
    """Seconds of one multiplication in a program of many."""
    graph = fx.Graph()
    value = first = graph.placeholder("value")
    for _ in range(_OPERATIONS):
        value = graph.call_function(torch.ops.aten.mul.Tensor, (value, first))
    graph.output([value])
    program, times = script(graph), []
    with torch.no_grad(), scripts_as_they_are():
        for _ in range(_TIMINGS):
            began = time.perf_counter()
            for _ in range(_CALLS):
                program(start)
            times.append(time.perf_counter() - began)
    return min(times) / _CALLS / _OPERATIONS
