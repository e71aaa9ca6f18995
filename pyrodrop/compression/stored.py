"""The steps of a network from what a file says of them, which is checked before it is used.

A file is written by anyone. A step must be one of the known kinds, with the options of that kind and tensors that fit
together; what they would take in memory is known before anything is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pyrodrop.arguments import count, flag, shown
from pyrodrop.compression.layers import PLAIN
from pyrodrop.compression.steps import Affine, Picked, Plain, Rescaled, Standardised, Step
from pyrodrop.devices import available
from pyrodrop.names import known

_KINDS = {kind.__name__: kind for kind in PLAIN}
_CONVOLUTION = ("stride", "padding", "dilation")
_LARGEST = 2**31 - 1


def steps_of(records: Any, tensors: Mapping[str, Tensor]) -> list[Step]:
    """The steps that the header of a file describes.

    Args:
        records: of the steps, as read from the header.
        tensors: of the file, by the number of the step and their own name, ``0.weight``.

    Raises:
        ValueError: these are no steps of a network; the message names the step.
    """
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records) or not records:
        raise ValueError(f"its steps must be a list of at least one record; got {shown(records)}")
    own: list[dict[str, Tensor]] = [{} for _ in records]
    for name, value in tensors.items():
        place, _, rest = name.partition(".")
        if not place.isdecimal() or int(place) >= len(records):
            raise ValueError(f"the tensor {name!r} belongs to none of its {len(records)} steps")
        own[int(place)][rest] = value
    steps = []
    for number, (record, values) in enumerate(zip(records, own, strict=True)):
        try:
            steps.append(_step(dict(record), values))
        except (ValueError, TypeError) as error:
            raise ValueError(f"step {number}: {error}") from None
    return steps


def _step(record: dict[str, Any], values: dict[str, Tensor]) -> Step:
    kind = record.pop("step", None)
    if kind == "Affine":
        return _affine(record, values)
    if kind == "Standardised":
        _exactly(record, values, (), ("loc", "scale"))
        return Standardised(_reals(values, "loc"), _positive(values, "scale"))
    if kind == "Rescaled":
        _exactly(record, values, ("columns",), ("loc", "scale"))
        columns = count(record["columns"], "columns", "the number of outputs", most=_LARGEST)
        return Rescaled(_reals(values, "loc"), _positive(values, "scale"), columns)
    if kind == "Picked":
        _exactly(record, values, (), ("columns",))
        return Picked(_places(values, "columns", below=_LARGEST))
    known(str(kind), [*_KINDS, "Affine", "Standardised", "Rescaled", "Picked"], "step of a network")
    return _plain(str(kind), record, values)


def _plain(kind: str, record: dict[str, Any], values: dict[str, Tensor]) -> Plain:
    """A layer without weights; its options are those of `PLAIN`, numbers or lists of whole numbers."""
    layer = _KINDS[kind]
    _exactly(record, values, PLAIN[layer], ())
    for name, value in record.items():
        each = value if isinstance(value, list) else [value]
        if name == "approximate":
            known(str(value), ("none", "tanh"), "approximation of GELU")
        elif not each or not all(v is None or (isinstance(v, int | float) and math.isfinite(v)) for v in each):
            raise ValueError(f"{name} of {kind} must be a number or a list of numbers; got {shown(value)}")
    try:
        made = Plain(layer, _tuples(record))
        made.module()
    except Exception as error:  # whatever the layer raises for options that it does not take
        raise ValueError(f"these options are none of {kind}: {error}") from None
    return made


def _affine(record: dict[str, Any], values: dict[str, Tensor]) -> Affine:
    shape = record.pop("shape", None)
    if not isinstance(shape, list) or not 2 <= len(shape) <= 5:
        raise ValueError(f"the shape of a layer's weight must be a list of 2 to 5 numbers; got {shown(shape)}")
    shape = [count(n, "shape", "the shape of a layer's weight", least=0, most=_LARGEST) for n in shape]
    options = _CONVOLUTION if len(shape) > 2 else ()
    given = [name for name in options if name in record]
    stored = [n for n in ("weight", "values", "places", "counts") if n in values]
    _exactly(record, values, ("csr", "name", *given), (*stored, "bias"))
    if not isinstance(record["name"], str):
        raise ValueError(f"the name of a layer must be a str; got {shown(record['name'])}")
    for name in given:
        _check_window(name, record[name], len(shape) - 2)
    csr = flag(record["csr"], "csr", "whether the weight is stored by rows")
    if csr and len(shape) > 2:
        raise ValueError("only dense layers are stored by rows; this is a convolution")
    bias = _reals(values, "bias")
    if bias.shape != (shape[0],):
        raise ValueError(f"the bias must have shape {[shape[0]]}; got {list(bias.shape)}")
    return Affine(record["name"], _weight(values, shape), bias, _tuples({n: record[n] for n in given}), csr)


def _weight(values: dict[str, Tensor], shape: list[int]) -> Tensor:
    """The dense weight ``[out, ...]`` of a layer, stored dense or as the nonzero values by row."""
    if "weight" in values:
        weight = _reals(values, "weight")
        if list(weight.shape) != shape:
            raise ValueError(f"the weight must have shape {shape}; got {list(weight.shape)}")
        return weight
    need = 4 * math.prod(shape)
    if need > available(torch.device("cpu")):
        raise ValueError(f"a weight of shape {shape} needs {need / 2**30:,.1f} GiB, more than this machine has free")
    weight = torch.zeros(shape)
    if need == 0:
        return weight
    if not {"values", "places", "counts"} <= values.keys():
        raise ValueError("it has neither a weight nor values, places and counts")
    counts, places = _places(values, "counts", below=_LARGEST), _places(values, "places", below=math.prod(shape[1:]))
    numbers = _reals(values, "values")
    if counts.shape != (shape[0],) or numbers.shape != places.shape or int(counts.sum()) != len(places):
        raise ValueError(
            f"values and places must have one entry per nonzero weight and counts one per unit, with that sum; got "
            f"{len(numbers)}, {len(places)} and {list(counts.shape)} with sum {int(counts.sum())}"
        )
    weight.flatten(1)[torch.arange(shape[0]).repeat_interleave(counts), places] = numbers
    return weight


def _check_window(name: str, value: Any, axes: int) -> None:
    """Raise a ValueError unless this is a stride, padding or dilation of a convolution with so many axes."""
    if name == "padding" and value in ("same", "valid"):
        return
    each = value if isinstance(value, list) else [value]
    if len(each) not in (1, axes):
        raise ValueError(f"{name} must have 1 or {axes} numbers; got {len(each)}")
    for one in each:
        count(one, name, "a number of places", least=0 if name == "padding" else 1, most=_LARGEST)


def _exactly(
    record: Mapping[str, Any], values: Mapping[str, Tensor], options: tuple[str, ...], tensors: tuple[str, ...]
) -> None:
    """Raise a ValueError unless these are the options and tensors of the step."""
    for what, got, want in (("options", record, options), ("tensors", values, tensors)):
        if set(got) != set(want):
            raise ValueError(
                f"its {what} must be {', '.join(want) or 'none'}; got {', '.join(map(repr, got)) or 'none'}"
            )


def _reals(values: Mapping[str, Tensor], name: str) -> Tensor:
    value = values[name]
    if not value.is_floating_point() or not bool(value.isfinite().all()):
        raise ValueError(f"{name} must consist of finite real numbers; got {value.dtype}, or NaN or infinite values")
    return value.float()


def _positive(values: Mapping[str, Tensor], name: str) -> Tensor:
    value = _reals(values, name)
    if not bool((value > 0).all()):
        raise ValueError(f"{name} must be positive; its least value is {float(value.min()):g}")
    return value


def _places(values: Mapping[str, Tensor], name: str, below: int) -> Tensor:
    value = values[name]
    if value.dim() != 1 or value.dtype not in (torch.uint8, torch.int16, torch.int32, torch.int64):
        raise ValueError(f"{name} must be one axis of whole numbers; got {value.dtype} of shape {list(value.shape)}")
    if len(value) and not 0 <= int(value.min()) <= int(value.max()) < below:
        raise ValueError(f"{name} must lie in 0 ... {below - 1}; got {int(value.min())} to {int(value.max())}")
    return value.long()


def _tuples(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert lists, as read from JSON, back to tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
