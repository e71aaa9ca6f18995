"""Small files of compressed networks, in the safetensors format.

A weight is stored in the smaller of two forms: dense, or sparse by rows, as the nonzero values, their positions in the row
and their number per row. Positions take 1, 2 or 4 bytes, values 4 or 2 bytes. The header describes the steps of the network
as plain JSON. A file therefore contains the complete network, and reading it does not execute any code from the file.

A file is written by anyone. A step must be one of the known kinds, with the options of that kind and tensors that fit
together; what they would take in memory is known before anything is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, fx

from pyrodrop import arguments
from pyrodrop.arguments import count, flag, shown
from pyrodrop.compression.layers import PLAIN
from pyrodrop.compression.steps import Affine, Picked, Plain, Rescaled, Standardised, Step, network_of
from pyrodrop.devices import available
from pyrodrop.files import read_tensors, write_tensors
from pyrodrop.names import known

Bits = Literal[16, 32]
_NUMBERS = {"Standardised": ("loc", "scale"), "Rescaled": ("loc", "scale"), "Picked": ("columns",)}


def write_network(path: str | Path, steps: Sequence[Step], *, bits: Bits = 32, compact: bool = True) -> Path:
    """Write the steps of a network to a file.

    An interrupted call does not leave an incomplete file.

    Args:
        path: path of the file.
        steps: steps of the network.
        bits: size of a stored value, 32 or 16. With 16, weights and biases are rounded to half precision.
        compact: whether to use the sparse form for weights where it is smaller.

    Raises:
        ValueError: `bits` is neither 16 nor 32, there are no steps, or a weight is not finite in this precision.
        TypeError: an argument is of another type.
    """
    file = arguments.path(path, "path", "the file of the network")
    arguments.flag(compact, "compact", "whether to use the sparse form for weights where it is smaller")
    if arguments.count(bits, "bits", "the size of a stored value, 16 or 32,", least=16, most=32) not in (16, 32):
        raise ValueError(f"bits is the size of a stored value and must be 16 or 32; got {bits}")
    if not isinstance(steps, Sequence) or not steps or not all(hasattr(step, "add") for step in steps):
        raise TypeError(f"steps must be a list of the steps of a network; got {arguments.shown(steps)}")
    tensors: dict[str, Tensor] = {}
    records = []
    for number, step in enumerate(steps):
        record, values = _record(step, bits, compact)
        records.append(record)
        tensors |= {f"{number}.{name}": value for name, value in values.items()}
    write_tensors(file, tensors, {"steps": records})
    return file


def read_network(path: str | Path) -> fx.GraphModule:
    """Read a network from a file of `write_network`, in single precision.

    Nothing in the file is run, and nothing is allocated before its size is known (`pyrodrop.compression.storage`).

    Raises:
        ValueError: the file does not contain a network, or it is damaged.
        FileNotFoundError: there is no such file.
        TypeError: `path` is no path.
    """
    tensors, about = read_tensors(arguments.path(path, "path", "the file of a network"))
    if "steps" not in about:
        raise ValueError(f"{path} does not contain a network; files of networks are written by write_network")
    try:
        return network_of(steps_of(about["steps"], tensors))
    except ValueError as error:
        raise ValueError(f"{path} is not a file of write_network, or it is damaged: {error}") from None


def _record(step: Step, bits: int, compact: bool) -> tuple[dict[str, Any], dict[str, Tensor]]:
    name = type(step).__name__
    if isinstance(step, Plain):
        return {"step": step.kind.__name__, **step.options}, {}
    if isinstance(step, Affine):
        value = torch.float16 if bits == 16 else torch.float32
        weight, bias = step.weight.to(value), step.bias.to(value)
        if not bool(weight.isfinite().all() & bias.isfinite().all()):
            raise ValueError(
                f"the weights of {step.name} must be finite as {value}; the largest is {float(step.weight.abs().max()):g}"
            )
        about = {"step": name, "name": step.name, "shape": list(weight.shape), "csr": step.csr, **step.options}
        sparse = _sparse(weight.flatten(1)) if weight.numel() and compact else {}
        dense = {"weight": weight} if weight.numel() else {}
        smaller = sparse if sparse and _bytes(sparse) < _bytes(dense) else dense
        return about, {**smaller, "bias": bias}
    numbers = {n: getattr(step, n) for n in _NUMBERS[name]}
    if isinstance(step, Picked):
        numbers = {"columns": _small(step.columns)}
    return {"step": name, **({"columns": step.columns} if isinstance(step, Rescaled) else {})}, numbers


def _sparse(matrix: Tensor) -> dict[str, Tensor]:
    places = matrix.nonzero()
    return {
        "values": matrix[places[:, 0], places[:, 1]],
        "places": _small(places[:, 1], matrix.shape[1]),
        "counts": _small((matrix != 0).sum(1)),
    }


def _small(numbers: Tensor, below: int | None = None) -> Tensor:
    """Convert nonnegative integers to the smallest integer dtype that can represent them."""
    most = int(numbers.max()) if below is None and numbers.numel() else (below or 1) - 1
    return numbers.to(torch.uint8 if most < 2**8 else torch.int16 if most < 2**15 else torch.int32)


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors.values())


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
    by_step: list[dict[str, Tensor]] = [{} for _ in records]
    for name, value in tensors.items():
        place, _, rest = name.partition(".")
        if not place.isdecimal() or int(place) >= len(records):
            raise ValueError(f"the tensor {name!r} belongs to none of its {len(records)} steps")
        by_step[int(place)][rest] = value
    steps = []
    for number, (record, values) in enumerate(zip(records, by_step, strict=True)):
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
