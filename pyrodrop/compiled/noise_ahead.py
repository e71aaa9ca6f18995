"""Noise of several consecutive steps, drawn at once into the same memory every time: the numbers of drawing step by step.

A generator fills memory in order, so one call for several steps gives the numbers of one call for each, where

    masks     every step takes whole random words for each of its masks, which it does in any case
    uniform   always
    normal    every step takes a multiple of 16 numbers: PyTorch draws them in groups of 16 and others by other algorithms

and where all random inputs of a step are of one of these kinds. Otherwise every step draws for itself, into its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pyrodrop.compiled.noise import Noise, sources
from pyrodrop.distributions.coins import MasksAhead

_LINE = 64  # bytes: PyTorch's alignment of tensors, on which the rounding of matrix products may depend
_GROUP = 16  # of normal numbers


class NoiseAhead:
    """Draws the random inputs of up to `steps` consecutive steps from torch's default CPU generator.

    Attributes:
        inputs: the random inputs of every step, by reference; `draw`, for each of some steps, and then `finish` fill them.
    """

    def __init__(self, noises: Sequence[Noise], steps: int) -> None:
        self._draw: Callable[[slice], object]
        self.finish: Callable[[int], object] = lambda count: None
        if noises and all(noise.kind == "coins" for noise in noises):
            masks_of_steps = MasksAhead([noise.like for noise in noises], [noise.shape for noise in noises], steps)
            drawn, self._draw, self.finish = masks_of_steps.masks, masks_of_steps.draw, masks_of_steps.compare
        elif _is_one_stream(noises):
            sizes = [noise.like.numel() for noise in noises]
            stream = noises[0].like.new_empty(steps, sum(sizes))
            drawn = [
                part.unflatten(1, noise.like.shape) if noise.like.dim() else part[:, 0]
                for part, noise in zip(stream.split(sizes, 1), noises, strict=True)
            ]
            fill = torch.Tensor.normal_ if noises[0].kind == "normal" else torch.Tensor.uniform_
            self._draw = lambda steps: fill(stream[steps])
        else:
            drawn = [spaced(noise.empty(), steps) for noise in noises]
            self._sources = sources(noises)
            self._draw = self._by_step
        self.inputs = list(zip(*(of.unbind(0) for of in drawn), strict=True)) if drawn else [()] * steps

    def draw(self, steps: slice) -> None:
        """Draw for some of the steps."""
        self._draw(steps)

    def _by_step(self, steps: slice) -> None:
        for places in self.inputs[steps]:
            left = iter(places)
            for source in self._sources:
                source.fill(left)


def _is_one_stream(noises: Sequence[Noise]) -> bool:
    """Whether one call may draw all random inputs of several steps."""
    kinds = {(noise.kind, noise.like.dtype) for noise in noises}
    if len(kinds) != 1 or not kinds <= {(kind, dtype) for kind in ("normal", "uniform") for dtype in _REAL}:
        return False
    return all(not n.numbers and n.like.numel() and n.like.numel() % _GROUP == 0 for n in noises)


_REAL = (torch.float32, torch.float64)


def spaced(like: Tensor, steps: int) -> Tensor:
    """Uninitialised memory for a contiguous tensor per step, ``[steps, ...]``, each aligned like a tensor of its own."""
    unit = max(1, _LINE // like.element_size())
    size = -(-like.numel() // unit) * unit
    return (
        like.new_empty(steps, size)[:, : like.numel()].unflatten(1, like.shape)
        if like.dim()
        else (like.new_empty(steps, size)[:, 0])
    )
