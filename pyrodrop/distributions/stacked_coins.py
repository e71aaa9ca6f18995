"""Dropout masks of several replicates for several consecutive steps, from random bits (`pyrodrop.distributions.coins`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from pyrodrop.distributions.coins import _cuts, _split, _words


def words_of(shapes: Sequence[Sequence[int]]) -> int:
    """The number of random words of masks in these shapes."""
    return sum(_words(torch.Size(shape).numel()) for shape in shapes)


class StackedMasks:
    """Draws the masks of several consecutive steps with one call of each replicate's CPU generator.

    The bytes are those of one `Masks` per step, since every step takes whole random words, in the same memory every time.

    Args:
        keeps: probabilities of a one for each mask, by mask and replicate; they broadcast to its shape.
        shapes: shape of each mask.
        generators: one per replicate.
        places: memory for each mask, bytes ``[steps, R, *shape]``.
        words: of the generators, `words_of` the shapes for every step, and the same memory for several objects if need be.
    """

    def __init__(
        self,
        keeps: Sequence[Sequence[Tensor]],
        shapes: Sequence[Sequence[int]],
        generators: Sequence[torch.Generator],
        places: Sequence[Tensor],
        bits: Tensor,
        fill: Callable[[int, Sequence[torch.Generator]], None],
    ) -> None:
        sizes, steps = [torch.Size(shape) for shape in shapes], len(places[0])
        self._fill, self._generators, self._step = fill, generators, words_of(shapes)
        own = bits[:, : steps * self._step].view(torch.int16).unflatten(1, (steps, -1))
        pieces = own.split([4 * _words(shape.numel()) for shape in sizes], 2)
        self._draws = []
        for keep, shape, own, place in zip(keeps, sizes, pieces, places, strict=True):
            coins, dither = _split(own, shape)
            rates = torch.stack([_rate(rate.double(), len(shape)) for rate in keep])[:, None]
            mask = place.view(torch.bool).transpose(0, 1)
            self._draws.append((rates.numpy(), coins.numpy(), dither.numpy(), mask.numpy()))

    def draw(self, count: int) -> None:
        """Draw new masks for the first `count` steps."""
        self._fill(count * self._step, self._generators)
        for rates, coins, dither, mask in self._draws:
            np.less_equal(coins[:, :count], _cuts(rates, dither[:, :count]), out=mask[:, :count])


def _rate(keep: Tensor, axes: int) -> Tensor:
    """The probabilities of a mask with so many axes; one number where all are equal."""
    if keep.numel() and bool((keep == keep.max()).all()):
        return keep.flatten()[0].reshape((1,) * axes)
    return keep.reshape(*(1,) * (axes - keep.dim()), *keep.shape)
