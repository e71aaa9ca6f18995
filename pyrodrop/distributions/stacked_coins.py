"""Dropout masks of several replicates for several consecutive steps, from random bits (`pyrodrop.distributions.coins`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pyrodrop.distributions.coins import _cuts, _fill, _split, _words


class StackedTosses:
    """Draws the masks of several consecutive steps with one call of each replicate's CPU generator.

    The bytes are those of one `Tosses` per step, since every step takes whole random words, in the same memory every time.

    Args:
        keeps: probabilities of a one for each mask, by mask and replicate; they broadcast to its shape.
        shapes: shape of each mask.
        generators: one per replicate.
        places: memory for each mask, bytes ``[steps, R, *shape]``.
    """

    def __init__(
        self,
        keeps: Sequence[Sequence[Tensor]],
        shapes: Sequence[Sequence[int]],
        generators: Sequence[torch.Generator | None],
        places: Sequence[Tensor],
    ) -> None:
        sizes, steps = [torch.Size(shape) for shape in shapes], len(places[0])
        words = [_words(shape.numel()) for shape in sizes]
        bits = torch.empty(len(generators), steps, sum(words), dtype=torch.int64)
        self._rows = list(zip(bits.unbind(0), generators, strict=True))
        pieces = bits.view(torch.int16).split([4 * n for n in words], 2)
        self._draws = []
        for keep, shape, own, place in zip(keeps, sizes, pieces, places, strict=True):
            coins, dither = _split(own.flatten(0, 1), shape)
            both = (len(generators), steps)
            rates = torch.stack([_rate(rate.double(), len(shape)) for rate in keep])[:, None]
            mask = place.view(torch.bool).transpose(0, 1)
            self._draws.append(
                (rates.numpy(), coins.unflatten(0, both).numpy(), dither.unflatten(0, both).numpy(), mask.numpy())
            )

    def draw(self, count: int) -> None:
        """Draw new masks for the first `count` steps."""
        for row, generator in self._rows:
            _fill(row[:count], generator)
        for rates, coins, dither, mask in self._draws:
            np.less_equal(coins[:, :count], _cuts(rates, dither[:, :count]), out=mask[:, :count])


def _rate(keep: Tensor, axes: int) -> Tensor:
    """The probabilities of a mask with so many axes; one number where all are equal."""
    if keep.numel() and bool((keep == keep.max()).all()):
        return keep.flatten()[0].reshape((1,) * axes)
    return keep.reshape(*(1,) * (axes - keep.dim()), *keep.shape)
