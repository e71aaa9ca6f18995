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
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pyrodrop.checks import num_rows
from pyrodrop.distributions import InputUnits
from pyrodrop.networks.dropouts import Dropout
from pyrodrop.reading.found import Found, Passes

_NEVER = ("alpha dropout", "dropout of attention")  # not a product with the mask; within an operation


@dataclass(frozen=True)
class _Candidate:
    weight: str
    units: InputUnits | None
    bias: str | None = None
    of_outputs: bool = False


def carriers(passes: Passes, found: Found, weights: Mapping[str, InputUnits], vectors: Sequence[str]) -> list[Dropout]:
    """The dropout calls of a network, each with the weight that carries its mask, if any does.

    Args:
        weights: the weights that have a prior, with their input units.
        vectors: the names of all vectors; the biases are among them.
    """
    calls = found.dropouts
    taken: dict[int, _Candidate] = {}
    search = _Search(passes, found.uses, vectors)
    for role in (search.of_inputs, search.of_table, search.of_outputs):
        for number, (call, time) in enumerate(zip(calls, found.times, strict=True)):
            if number in taken or call.kind in _NEVER or not call.layout.joint:
                continue
            free = {n: u for n, u in weights.items() if all(n != other.weight for other in taken.values())}
            for candidate in role(call, time, free):
                if _carries(passes, calls, number, candidate):
                    taken[number] = candidate
                    break
    return [
        replace(call, weight=taken[n].weight, units=taken[n].units, of_outputs=taken[n].of_outputs)
        if n in taken
        else call
        for n, call in enumerate(calls)
    ]


class _Search:
    """The weights that might carry a mask, by the shape of the mask and the order in which the network uses the weights.

    Args:
        vectors: the names of all vectors; the biases are among them.
    """

    def __init__(self, passes: Passes, uses: Mapping[str, Sequence[int]], vectors: Sequence[str]) -> None:
        self.shapes = {name: value.shape for name, value in passes.values.items()}
        self.uses, self.vectors = uses, vectors

    def of_inputs(self, call: Dropout, time: int, weights: Mapping[str, InputUnits]) -> Iterator[_Candidate]:
        """Weights used after the call with as many input units as the mask has entries, or as many blocks of them."""
        if call.layout.axis is None:
            return
        entries = call.shape.numel()
        for name in self._nearest(time, weights, after=True):
            units = weights[name]
            count = units.count(self.shapes[name])
            if count == entries:
                yield _Candidate(name, units)
            elif entries > 1 and units.groups == 1 and count % entries == 0:
                yield _Candidate(name, InputUnits(units.axis, size=count // entries))

    def of_outputs(self, call: Dropout, time: int, weights: Mapping[str, InputUnits]) -> Iterator[_Candidate]:
        """Weights used before the call with as many output units as the mask has entries."""
        if call.layout.axis is None:
            return
        for name in self._nearest(time, weights, after=False):
            units = weights[name].outputs
            if units.count(self.shapes[name]) == call.shape.numel():
                prefix, _, short = name.rpartition(".")
                bias = f"{prefix}.bias" if prefix else "bias"
                yield _Candidate(
                    name, units, bias if short == "weight" and bias in self.vectors else None, of_outputs=True
                )

    def of_table(self, call: Dropout, time: int, weights: Mapping[str, InputUnits]) -> Iterator[_Candidate]:
        """Weights that could be multiplied by the mask itself: element by element, or along one axis."""
        if call.layout.axis is not None:
            return
        for name in weights:
            shape = self.shapes[name]
            if call.shape == shape:
                yield _Candidate(name, None)
            along = [axis for axis, size in enumerate(call.shape) if size != 1]
            if len(call.shape) == len(shape) and len(along) == 1 and shape[along[0]] == call.shape[along[0]]:
                yield _Candidate(name, InputUnits(along[0]))

    def _nearest(self, when: int, weights: Mapping[str, InputUnits], *, after: bool) -> list[str]:
        """Weights with units that are used after (or before) the time `when`, the nearest first."""
        far: dict[str, int] = {}
        for name, units in weights.items():
            times = [abs(time - when) for time in self.uses.get(name, ()) if (time > when) == after]
            if times and units.axis is not None:
                far[name] = min(times)
        return sorted(far, key=far.__getitem__)


def _carries(passes: Passes, calls: Sequence[Dropout], number: int, candidate: _Candidate) -> bool:
    """Whether the output is the same with random masks and with the weight multiplied by them, and differs between masks."""
    call, weight = calls[number], passes.values[candidate.weight]
    keep, rows = 1 - call.drop_rate, num_rows(passes.x)
    generator = torch.Generator().manual_seed(number)
    first, second = ((torch.rand(call.shape, generator=generator) < 0.5).to(weight) for _ in range(2))
    full = call.layout.of_examples(call.shape, rows)
    masked: list[Any] = []
    scaled: list[Any] = []
    for mask in (first, 1 - first, second):
        flat = mask.flatten() / keep
        scales = mask / keep if candidate.units is None else candidate.units.over(flat, weight.shape)
        changed = {candidate.weight: weight * scales}
        if candidate.bias is not None:
            changed[candidate.bias] = passes.values[candidate.bias] * flat
        nothing = mask.new_full((1,), keep)
        for sets, of_call, values in ((masked, call.layout.spread(mask, full, rows), {}), (scaled, nothing, changed)):
            masks: list[Tensor | None] = [None] * len(calls)
            masks[number] = of_call.expand(full)
            sets.append((masks, values))
    want, got = passes.masked([*masked, *scaled]).chunk(2)
    return _equal(want, got) and not _equal(want[0], want[1])


def _equal(one: Tensor, two: Tensor) -> bool:
    """Whether outputs are equal up to rounding, relative to the largest entry."""
    scale = float(two.abs().max()) if two.numel() else 0.0
    tolerance = 1e-8 if two.dtype == torch.float64 else 1e-4
    return bool(((one - two).abs() <= tolerance * scale).all())
