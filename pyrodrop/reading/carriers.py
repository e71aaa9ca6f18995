"""Which weight carries the mask of a dropout call.

    f(x z / p; W) = f(x; M diag(z)),          M = W / p, p the keep rate

A weight carries a mask in its input units if the network's output is the same with the mask and with the weight multiplied
by it. Between mask and weight there may be reshapes, and operations that commute with the mask, such as ReLU and pooling.
This is tested with random masks and with weights in double precision that are perturbed at random, so that no weight is
exactly 0. A mask that differs between rows of an example (tokens, positions) is carried by no weight, as all rows share the
weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pyrodrop.checks import num_rows
from pyrodrop.distributions import InputUnits
from pyrodrop.networks.dropouts import Dropout
from pyrodrop.networks.trial import close
from pyrodrop.reading.found import Passes


def carriers(passes: Passes, weights: Mapping[str, InputUnits]) -> list[Dropout]:
    """The dropout calls of a network, each with the weight that carries its mask, if any does.

    Args:
        weights: the weights that have a prior, with their input units.
    """
    calls = list(passes.dropouts)
    for number, call in enumerate(calls):
        if call.kind != "dropout of attention" and call.layout.joint and call.layout.axis is not None:
            free = {n: u for n, u in weights.items() if all(n != other.weight for other in calls)}
            possible = _candidates(passes, call, passes.times[number], free)
            calls[number] = next((c for c in possible if _carries(passes, number, c)), call)
    return calls


def _candidates(passes: Passes, call: Dropout, time: int, weights: Mapping[str, InputUnits]) -> Iterator[Dropout]:
    """Weights used after the call with as many input units as the mask has entries, or as many blocks, the nearest first."""
    entries = call.shape.numel()
    first = {name: min((use for use in passes.uses.get(name, ()) if use > time), default=None) for name in weights}
    for name in sorted((n for n in weights if first[n] is not None), key=lambda n: first[n]):  # type: ignore[arg-type,return-value]
        units = weights[name]
        count = units.count(passes.values[name].shape) if units.axis is not None else 0
        if count == entries:
            yield replace(call, weight=name, units=units)
        elif count and entries > 1 and units.groups == 1 and count % entries == 0:
            yield replace(call, weight=name, units=InputUnits(units.axis, size=count // entries))


def _carries(passes: Passes, number: int, call: Dropout) -> bool:
    """Whether the output is the same with random masks and with the weight multiplied by them, and differs between masks."""
    assert call.weight is not None
    weight, keep, rows = passes.values[call.weight], 1 - call.drop_rate, num_rows(passes.x)
    generator = torch.Generator().manual_seed(number)
    first, second = ((torch.rand(call.shape, generator=generator) < 0.5).to(weight) for _ in range(2))
    full = call.layout.of_examples(call.shape, rows)
    nothing: list[Tensor | None] = [None] * len(passes.dropouts)

    def masks(of_call: Tensor) -> list[Tensor | None]:
        return [*nothing[:number], of_call.expand(full), *nothing[number + 1 :]]

    masked: list[Any] = []
    scaled: list[Any] = []
    for mask in (first, 1 - first, second):
        changed = {call.weight: weight * call.units.over(mask.flatten() / keep, weight.shape)}
        masked.append((masks(call.layout.spread(mask, full, rows)), {}))
        scaled.append((masks(mask.new_full((1,), keep)), changed))
    want, got = passes.masked([*masked, *scaled]).chunk(2)
    tolerance = 1e-8 if got.dtype == torch.float64 else 1e-4
    return close(want, got, largest=tolerance) and not close(want[0], want[1], largest=tolerance)
