"""A fingerprint of a data set, used to check whether two fits are of the same data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from pyrodrop.inputs import Inputs, named_parts

_AT_A_TIME = 2**20  # values that are converted at a time


def fingerprint(x: Inputs, y: Tensor) -> str:
    """Hash of the values, order, names and shapes of x and y, as 32 hexadecimal digits.

    Equal values of different floating-point precision give the same fingerprint, and so do y ``[N]`` and y ``[N, 1]``.
    Different data have the same fingerprint with a probability of about 10^-38.
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
    """All values in order, in vectors of limited length that are converted one at a time."""
    rows = max(1, _AT_A_TIME // max(1, values[0].numel()))
    for first in range(0, len(values), rows):
        yield values[first : first + rows].detach().flatten()
