"""A fingerprint of a data set, by which fits know whether they are of the same data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from pyrodrop.inputs import Inputs, named_parts

_AT_A_TIME = 2**20  # numbers that are converted at a time


def fingerprint(x: Inputs, y: Tensor) -> str:
    """32 hexadecimal digits of the values of x and y, in their order, with their names and shapes.

    Floats count by value, whatever their precision; a last axis of one column of y does not count. Equal data have equal
    fingerprints, and other data others but for a chance of one in 10^38.
    """
    digest = hashlib.blake2b(digest_size=16)
    if y.dim() == 2 and y.shape[1] == 1:
        y = y[:, 0]
    for name, part in {**named_parts(x), "observations": y}.items():
        exact = not (part.is_floating_point() or part.is_complex())
        digest.update(f"{name} {tuple(part.shape)} {'integer' if exact else 'real'};".encode())
        for piece in _pieces(part):
            kind = torch.int64 if exact else torch.complex128 if part.is_complex() else torch.float64
            digest.update(piece.to("cpu", kind).numpy().tobytes())
    return digest.hexdigest()


def _pieces(values: Tensor) -> Iterator[Tensor]:
    """All values in their order, as vectors short enough to be converted one by one."""
    rows = max(1, _AT_A_TIME // max(1, values[0].numel()))
    for first in range(0, len(values), rows):
        yield values[first : first + rows].detach().flatten()
