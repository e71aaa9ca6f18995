"""What a step and a compilation cost on this machine.

    a compiled step saves    (a + b n) o + m e / 2       of n operations with m entries in all their results
    compiling takes          s (c + d n) o               for s shapes of minibatches

o is the time of an operation on a few numbers, and e that of an entry. a, b, c and d were measured on two machines: all of
it is work of Python and of a compiler on one core. b, c and d are larger where `torch.vmap` maps operations over replicates.

Only the ratio of e to o decides, which differs less between machines than either does: what is measured counts within a
factor of 2 of the reference's. The times are processor time of this thread, and the fastest of all tries, which are kept in
the user's cache: what else the machine does only makes them longer. Every call of `costs` tries once more. What was measured
on a busy machine is replaced as soon as a try is faster by a tenth.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import fx

from pyrodrop.cache import folder
from pyrodrop.compiled.script import script, scripts_as_they_are
from pyrodrop.devices import processor
from pyrodrop.files import write_json

_STEP, _OPERATION, _COMPILATION, _COMPILED_OPERATION = 100, 1.6, 6.5e6, 1e4  # a, b, c and d
_MAPPED_OPERATION, _MAPPED_COMPILATION = 25, 3  # b, and times c and d, of operations that are mapped
_MACHINES_DIFFER = 2.0  # by less than this factor, in entries per operation
_FASTER = 0.9  # of what is kept
_TRIES, _PAUSE = 5, 0.02  # of the first measurement; seconds between them
_FEW, _MANY = 8, 2**14  # entries
_OPERATIONS, _TIMINGS, _CALLS = 50, 4, 10
_FINE = time.get_clock_info("thread_time").resolution < 1e-6
_clock: Callable[[], float] = time.thread_time if _FINE else time.perf_counter


class Costs(NamedTuple):
    """Seconds of an operation on a few numbers, and of an entry of its result."""

    operation: float
    entry: float

    def saved(self, operations: int, entries: int, *, mapped: bool = False) -> float:
        """Seconds that a compiled step takes less than a traced one.

        Args:
            mapped: whether the traced one maps its operations over replicates.
        """
        each = _MAPPED_OPERATION if mapped else _OPERATION
        return (_STEP + each * operations) * self.operation + 0.5 * entries * self.entry

    def compilation(self, operations: int, shapes: int, *, mapped: bool = False) -> float:
        """Seconds of compiling a step for minibatches of so many shapes."""
        times = _MAPPED_COMPILATION if mapped else 1
        return times * shapes * (_COMPILATION + _COMPILED_OPERATION * operations) * self.operation

    def bounded(self) -> Costs:
        """These costs, with the time of an entry within the bounds of `BOUNDS`, for the same time of an operation."""
        least, most = (self.operation / bound.operation * bound.entry for bound in BOUNDS)
        return self._replace(entry=min(max(self.entry, least), most))


REFERENCE = Costs(6.2e-7, 1.15e-10)  # of the machine on which the multiples were measured
BOUNDS = tuple(
    REFERENCE._replace(entry=REFERENCE.entry * factor) for factor in (1 / _MACHINES_DIFFER, _MACHINES_DIFFER)
)


def costs() -> Costs:
    """The costs on this machine, after one more try; the reference's where they cannot be kept.

    Without a cache of the user's, two calls of a training would take what each of them measures.
    """
    place = folder("costs")
    if place is None:
        return REFERENCE
    machine = {"processor": processor(), "torch": torch.__version__, "threads": torch.get_num_threads()}
    file = place / f"{hashlib.sha256(str(machine).encode()).hexdigest()[:16]}.json"
    kept = None
    with suppress(OSError, ValueError, KeyError, TypeError):
        content = json.loads(file.read_text())
        read = Costs(float(content["operation"]), float(content["entry"]))
        if content["machine"] == machine and all(1e-9 < number < 1e-3 for number in (read.operation, 100 * read.entry)):
            kept = read
    found = measured(_TRIES) if kept is None else _fastest(kept, measured(1))
    if kept is not None and not any(new < _FASTER * old for new, old in zip(_times(found), _times(kept), strict=True)):
        return kept.bounded()
    try:
        write_json(file, {"machine": machine, **found._asdict()})
    except OSError:
        return REFERENCE
    return found.bounded()


def measured(tries: int) -> Costs:
    """The costs, from the fastest of some short timings of each try."""
    found = _try()
    for _ in range(tries - 1):
        time.sleep(_PAUSE)
        found = _fastest(found, _try())
    return found


def _try() -> Costs:
    """The costs, of timings one right after the other."""
    program, starts = _program(), [torch.ones(size) for size in (_FEW, _MANY)]
    seconds: list[list[float]] = [[], []]
    with torch.no_grad(), scripts_as_they_are():
        for _ in range(_TIMINGS):
            for start, times in zip(starts, seconds, strict=True):
                begun = _clock()
                for _ in range(_CALLS):
                    program(start)
                times.append((_clock() - begun) / _CALLS / _OPERATIONS)
    return _of_times(*map(min, seconds))


def _times(of: Costs) -> tuple[float, float]:
    """Seconds of an operation on few and on many entries, which are what is measured."""
    return of.operation, of.operation + of.entry * _MANY


def _of_times(few: float, many: float) -> Costs:
    return Costs(few, max(many - few, 0.0) / _MANY)


def _fastest(one: Costs, other: Costs) -> Costs:
    return _of_times(*map(min, _times(one), _times(other)))


@functools.cache
def _program() -> Callable[..., Any]:
    """A program of multiplications."""
    graph = fx.Graph()
    value = first = graph.placeholder("value")
    for _ in range(_OPERATIONS):
        value = graph.call_function(torch.ops.aten.mul.Tensor, (value, first))
    graph.output([value])
    return script(graph)
