"""Small files of compressed networks, in the safetensors format.

A weight is stored in the smaller of two forms: dense, or sparse by rows, as the nonzero values, their positions in the row
and their number per row. Positions take 1, 2 or 4 bytes, values 4 or 2 bytes. The header describes the steps of the network
as plain JSON. A file therefore contains the complete network, and reading it does not execute any code from the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, fx

from pyrodrop.compression.layers import PLAIN
from pyrodrop.compression.steps import Affine, Picked, Plain, Rescaled, Standardised, Step, network_of
from pyrodrop.files import read_tensors, write_tensors

Bits = Literal[16, 32]
_KINDS = {kind.__name__: kind for kind in PLAIN}
_NUMBERS: dict[str, tuple[type[Any], tuple[str, ...]]] = {
    "Standardised": (Standardised, ("loc", "scale")),
    "Rescaled": (Rescaled, ("loc", "scale")),
    "Picked": (Picked, ("columns",)),
}


def write_network(path: str | Path, steps: Sequence[Step], *, bits: Bits = 32, compact: bool = True) -> Path:
    """Write the steps of a network to a file.

    An interrupted call does not leave an incomplete file.

    Args:
        path: path of the file.
        steps: steps of the network.
        bits: size of a stored value, 32 or 16. With 16, weights and biases are rounded to half precision.
        compact: whether to use the sparse form for weights where it is smaller.

    Raises:
        ValueError: `bits` is neither 16 nor 32.
    """
    if bits not in (16, 32):
        raise ValueError(f"bits is the size of a stored value, 16 or 32; got {bits}")
    tensors: dict[str, Tensor] = {}
    records = []
    for number, step in enumerate(steps):
        record, own = _record(step, bits, compact)
        records.append(record)
        tensors |= {f"{number}.{name}": value for name, value in own.items()}
    write_tensors(Path(path), tensors, {"steps": records})
    return Path(path)


def read_network(path: str | Path) -> fx.GraphModule:
    """Read a network from a file of `write_network`, in single precision.

    Raises:
        ValueError: the file does not contain a network.
    """
    tensors, about = read_tensors(Path(path))
    if "steps" not in about:
        raise ValueError(f"{path} does not contain a network; files of networks are written by write_network")
    steps = []
    for number, record in enumerate(about["steps"]):
        own = {n.removeprefix(f"{number}."): v for n, v in tensors.items() if n.startswith(f"{number}.")}
        steps.append(_step(record, own))
    return network_of(steps)


def _record(step: Step, bits: int, compact: bool) -> tuple[dict[str, Any], dict[str, Tensor]]:
    name = type(step).__name__
    if isinstance(step, Plain):
        return {"step": step.kind.__name__, **step.options}, {}
    if isinstance(step, Affine):
        value = torch.float16 if bits == 16 else torch.float32
        weight, bias = step.weight.to(value), step.bias.to(value)
        about = {"step": name, "name": step.name, "shape": list(weight.shape), "csr": step.csr, **step.options}
        sparse = _sparse(weight.flatten(1)) if weight.numel() and compact else {}
        dense = {"weight": weight} if weight.numel() else {}
        smaller = sparse if sparse and _bytes(sparse) < _bytes(dense) else dense
        return about, {**smaller, "bias": bias}
    _, fields = _NUMBERS[name]
    numbers = {n: getattr(step, n) for n in fields}
    if isinstance(step, Picked):
        numbers = {"columns": _small(step.columns)}
    return {"step": name, **({"columns": step.columns} if isinstance(step, Rescaled) else {})}, numbers


def _step(record: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Step:
    about = dict(record)
    name = about.pop("step")
    if name in _KINDS:
        return Plain(_KINDS[name], _tuples(about))
    if name in _NUMBERS:
        made, _ = _NUMBERS[name]
        own = {n: v.long() if name == "Picked" else v for n, v in tensors.items()}
        step: Step = made(**own, **about)
        return step
    shape, csr, layer = about.pop("shape"), about.pop("csr"), about.pop("name")
    weight = torch.zeros(shape)
    if "weight" in tensors:
        weight = tensors["weight"].float()
    elif "values" in tensors:
        rows = torch.arange(shape[0]).repeat_interleave(tensors["counts"].long())
        weight.flatten(1)[rows, tensors["places"].long()] = tensors["values"].float()
    return Affine(layer, weight, tensors["bias"].float(), _tuples(about), csr)


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


def _tuples(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert lists, as read from JSON, back to tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
