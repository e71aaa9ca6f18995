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

from pyrodrop import arguments
from pyrodrop.compression.steps import Affine, Picked, Plain, Rescaled, Step, network_of
from pyrodrop.compression.stored import steps_of
from pyrodrop.files import read_tensors, write_tensors

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
        record, own = _record(step, bits, compact)
        records.append(record)
        tensors |= {f"{number}.{name}": value for name, value in own.items()}
    write_tensors(file, tensors, {"steps": records})
    return file


def read_network(path: str | Path) -> fx.GraphModule:
    """Read a network from a file of `write_network`, in single precision.

    Nothing in the file is run, and nothing is allocated before its size is known (`pyrodrop.compression.stored`).

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
