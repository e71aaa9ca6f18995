"""Which weight carries the mask of a dropout call.

    input units     f(x z / p; W) = f(x; M diag(z)),          M = W / p, p the keep rate
    output units    (z / p) (W x + b) = (diag(z) M) x + z b / p
    of a table      rows of an embedding, or single weights: W is multiplied by the mask itself

A weight carries a mask if the network's output is the same with the mask and with the weight multiplied by it. Between mask
and weight there may be reshapes, and operations that commute with the mask, such as ReLU and pooling. This is tested with
random masks and with weights in double precision that are perturbed at random, so that no weight is exactly 0. A mask that
differs between rows of an example (tokens, positions) is carried by no weight, as all rows share the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pyrodrop.checks import num_rows
from pyrodrop.distributions import InputUnits
from pyrodrop.networks.dropouts import Dropout
from pyrodrop.networks.trial import close
from pyrodrop.reading.found import Passes

_NEVER = ("alpha dropout", "dropout of attention")  # not a product with the mask; within an operation


def carriers(passes: Passes, weights: Mapping[str, InputUnits], vectors: Sequence[str]) -> list[Dropout]:
    """The dropout calls of a network, each with the weight that carries its mask, if any does.

    Args:
        weights: the weights that have a prior, with their input units.
        vectors: the names of all vectors; the biases are among them.
    """
    calls = list(passes.dropouts)
    for candidates in (_by_inputs, _by_table, _by_outputs):
        for number, call in enumerate(calls):
            if call.weight is None and call.kind not in _NEVER and call.layout.joint:
                free = {n: u for n, u in weights.items() if all(n != other.weight for other in calls)}
                possible = candidates(passes, call, passes.times[number], free)
                calls[number] = next((c for c in possible if _carries(passes, number, c, vectors)), call)
    return calls


def _by_inputs(passes: Passes, call: Dropout, time: int, weights: Mapping[str, InputUnits]) -> Iterator[Dropout]:
    """Weights used after the call with as many input units as the mask has entries, or as many blocks of them."""
    entries = call.shape.numel()
    for name in _nearest(passes, call, time, weights, after=True):
        units = weights[name]
        count = units.count(passes.values[name].shape)
        if count == entries:
            yield replace(call, weight=name, units=units)
        elif entries > 1 and units.groups == 1 and count % entries == 0:
            yield replace(call, weight=name, units=InputUnits(units.axis, size=count // entries))


def _by_outputs(passes: Passes, call: Dropout, time: int, weights: Mapping[str, InputUnits]) -> Iterator[Dropout]:
    """Weights used before the call with as many output units as the mask has entries."""
    for name in _nearest(passes, call, time, weights, after=False):
        units = weights[name].outputs
        if units.count(passes.values[name].shape) == call.shape.numel():
            yield replace(call, weight=name, units=units, of_outputs=True)


def _by_table(passes: Passes, call: Dropout, time: int, weights: Mapping[str, InputUnits]) -> Iterator[Dropout]:
    """Weights that could be multiplied by the mask itself: element by element, or along one axis."""
    along = [axis for axis, size in enumerate(call.shape) if size != 1]
    for name in weights if call.layout.axis is None else ():
        shape = passes.values[name].shape
        if call.shape == shape:
            yield replace(call, weight=name)
        if len(call.shape) == len(shape) and len(along) == 1 and shape[along[0]] == call.shape[along[0]]:
            yield replace(call, weight=name, units=InputUnits(along[0]))


def _nearest(passes: Passes, call: Dropout, when: int, weights: Mapping[str, InputUnits], *, after: bool) -> list[str]:
    """Weights with units that are used after (or before) a call for examples at the time `when`, the nearest first."""
    far: dict[str, int] = {}
    for name, units in weights.items() if call.layout.axis is not None else ():
        times = [abs(time - when) for time in passes.uses.get(name, ()) if (time > when) == after]
        if times and units.axis is not None:
            far[name] = min(times)
    return sorted(far, key=far.__getitem__)


def _carries(passes: Passes, number: int, call: Dropout, vectors: Sequence[str]) -> bool:
    """Whether the output is the same with random masks and with the weight multiplied by them, and differs between masks."""
    assert call.weight is not None
    weight, keep, rows = passes.values[call.weight], 1 - call.drop_rate, num_rows(passes.x)
    bias = call.bias(vectors)
    generator = torch.Generator().manual_seed(number)
    first, second = ((torch.rand(call.shape, generator=generator) < 0.5).to(weight) for _ in range(2))
    full = call.layout.of_examples(call.shape, rows)
    masked: list[Any] = []
    scaled: list[Any] = []
    for mask in (first, 1 - first, second):
        flat = mask.flatten() / keep
        scales = mask / keep if call.units is None else call.units.over(flat, weight.shape)
        changed = {call.weight: weight * scales}
        if bias is not None:
            changed[bias] = passes.values[bias] * flat
        nothing = mask.new_full((1,), keep)
        for sets, of_call, values in ((masked, call.layout.spread(mask, full, rows), {}), (scaled, nothing, changed)):
            masks: list[Tensor | None] = [None] * len(passes.dropouts)
            masks[number] = of_call.expand(full)
            sets.append((masks, values))
    want, got = passes.masked([*masked, *scaled]).chunk(2)
    tolerance = 1e-8 if got.dtype == torch.float64 else 1e-4
    return close(want, got, largest=tolerance) and not close(want[0], want[1], largest=tolerance)
