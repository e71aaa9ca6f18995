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
from dataclasses import dataclass

import torch
from torch import Tensor

from pyrodrop.distributions import InputUnits
from pyrodrop.inputs import num_rows
from pyrodrop.networks.dropouts import Dropout
from pyrodrop.reading.found import Found, Trial

_NEVER = ("alpha dropout", "dropout of attention")  # not a product with the mask; within an operation
_TRIED = 3  # random masks per candidate


@dataclass(frozen=True)
class _Candidate:
    weight: str
    units: InputUnits | None
    bias: str | None = None
    of_outputs: bool = False


def carriers(
    trial: Trial,
    calls: Sequence[Found],
    uses: Mapping[str, Sequence[int]],
    weights: Mapping[str, InputUnits],
    vectors: Sequence[str],
) -> list[Dropout]:
    """The dropout calls of a network, each with the weight that carries its mask, if any does.

    Args:
        weights: the weights that have a prior, with their input units.
        vectors: the names of all vectors; the biases are among them.
    """
    taken: dict[int, _Candidate] = {}
    search, without = _Search(trial, uses, vectors), trial()
    for role in (search.of_inputs, search.of_table, search.of_outputs):
        for number, call in enumerate(calls):
            if number in taken or call.kind in _NEVER:
                continue
            free = {n: u for n, u in weights.items() if all(n != other.weight for other in taken.values())}
            for candidate in role(call, free):
                if _carries(trial, without, calls, number, candidate):
                    taken[number] = candidate
                    break
    dropouts = []
    for number, call in enumerate(calls):
        carrier = taken.get(number)
        dropouts.append(
            Dropout(
                name=_name(calls, number),
                kind=call.kind,
                drop_rate=call.drop_rate,
                shape=call.shape,
                layout=call.layout,
                weight=None if carrier is None else carrier.weight,
                units=None if carrier is None else carrier.units,
                of_outputs=carrier is not None and carrier.of_outputs,
            )
        )
    return dropouts


def _name(calls: Sequence[Found], number: int) -> str:
    """A name for a call: its module, and a number if the module makes several calls."""
    module = calls[number].module or "forward"
    same = [i for i, call in enumerate(calls) if (call.module or "forward") == module]
    return f"dropout {module}" if len(same) == 1 else f"dropout {module} {same.index(number) + 1}"


class _Search:
    """The weights that might carry a mask, by the shape of the mask and the order in which the network uses the weights.

    Args:
        vectors: the names of all vectors; the biases are among them.
    """

    def __init__(self, trial: Trial, uses: Mapping[str, Sequence[int]], vectors: Sequence[str]) -> None:
        self.shapes = {name: value.shape for name, value in trial.values.items()}
        self.uses, self.vectors = uses, vectors

    def of_inputs(self, call: Found, weights: Mapping[str, InputUnits]) -> Iterator[_Candidate]:
        """Weights used after the call with as many input units as the mask has entries, or as many blocks of them."""
        if call.layout.axis is None:
            return
        entries = call.shape.numel()
        for name in self._nearest(call.when, weights, after=True):
            units = weights[name]
            count = units.count(self.shapes[name])
            if count == entries:
                yield _Candidate(name, units)
            elif entries > 1 and units.groups == 1 and count % entries == 0:
                yield _Candidate(name, InputUnits(units.axis, size=count // entries))

    def of_outputs(self, call: Found, weights: Mapping[str, InputUnits]) -> Iterator[_Candidate]:
        """Weights used before the call with as many output units as the mask has entries."""
        if call.layout.axis is None:
            return
        for name in self._nearest(call.when, weights, after=False):
            units = weights[name].outputs
            if units.count(self.shapes[name]) == call.shape.numel():
                prefix, _, short = name.rpartition(".")
                bias = f"{prefix}.bias" if prefix else "bias"
                yield _Candidate(
                    name, units, bias if short == "weight" and bias in self.vectors else None, of_outputs=True
                )

    def of_table(self, call: Found, weights: Mapping[str, InputUnits]) -> Iterator[_Candidate]:
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
            times = [abs(time - when) for time in self.uses[name] if (time > when) == after]
            if times and units.axis is not None:
                far[name] = min(times)
        return sorted(far, key=far.__getitem__)


def _carries(trial: Trial, without: Tensor, calls: Sequence[Found], number: int, candidate: _Candidate) -> bool:
    """Whether the output is the same with random masks and with the weight multiplied by them."""
    call, weight = calls[number], trial.values[candidate.weight]
    keep = 1 - call.drop_rate
    generator = torch.Generator().manual_seed(number)
    moved = False
    rows = num_rows(trial.x)
    for _ in range(_TRIED):
        mask = (torch.rand(call.shape, generator=generator) < 0.5).to(weight)
        flat = mask.flatten() / keep
        masks: list[Tensor | None] = [None] * len(calls)
        masks[number] = call.layout.spread(mask, call.layout.of_examples(call.shape, rows), rows)
        scales = mask / keep if candidate.units is None else candidate.units.over(flat, weight.shape)
        changed = {candidate.weight: weight * scales}
        if candidate.bias is not None:
            changed[candidate.bias] = trial.values[candidate.bias] * flat
        want, got = trial(masks), trial(values=changed)
        moved = moved or not _equal(want, without)
        if not _equal(want, got):
            return False
    return moved


def _equal(one: Tensor, two: Tensor) -> bool:
    """Whether outputs are equal up to rounding, relative to the largest entry."""
    scale = float(two.abs().max()) if two.numel() else 0.0
    tolerance = 1e-8 if two.dtype == torch.float64 else 1e-4
    return bool(((one - two).abs() <= tolerance * scale).all())
