"""Dropout masks from random bits.

A generator gives 64-bit random words. They are cut into integers u, and a unit is kept or dropped by comparing its u with
a threshold t. This is several times as fast as drawing one float per unit. Three functions do it:

    coins          keep = [u < t],    t = max(floor(2^16 (1 - r) + v), 1)     training: any rates, one operation in a trace
    keep_mask      keep = [u >= t],   t = floor(2^b r) + [v < frac(2^b r)]    prediction: one rate
    fill_stacked   keep = [u < t] or [u = t and v < frac(2^8 (1 - r))],   t = floor(2^8 (1 - r))    replicates

r is the drop rate, u is uniform on {0, ..., 2^b - 1} and v is uniform on [0, 1). b = 16, but 8 for `keep_mask` where 2^8 r
is whole. The threshold is random ("dithered") so that the rate is exact on average, E[t] = 2^16 (1 - r) or 2^b r. A fixed
threshold would be wrong by up to 2^-b. The maximum, without which t = 0 would need a 17th bit, matters only for
1 - r < 2^-16.

`coins` draws one v per mask, `keep_mask` one v per row, where a row is all entries along the last axis. `fill_stacked` draws
one v for every entry with u = t, so that its entries are independent. Entries with the same v share their threshold, which
gives any two of them the correlation

    corr = F (1 - F) / (4^16 r (1 - r)),   F = frac(2^16 r)

It is 0 where r is a multiple of 2^-16 and at most 1 / (4^17 r (1 - r)) elsewhere: for r = .1, 6e-10. Entries with
different v are independent.

`coins` returns floats and `keep_mask` booleans. On a CPU both compare with NumPy, whose comparison is vectorised, unlike
PyTorch's. On a GPU `coins` and `fill_stacked` compare a uniform float per entry with 1 - r: a mask is two kernels there. The
engines take the masks of `coins` as bytes, which PyTorch converts to floats faster than booleans.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pyrodrop.checks import shown, tensor
from pyrodrop.distributions.weight import Size
from pyrodrop.private_apis import in_function_transform

_LOWEST = -(2**15)  # the smallest 16-bit integer


def coins(keep: Tensor, shape: Size) -> Tensor:
    """Draw independent zeros and ones.

    Args:
        keep: probability of a one. It broadcasts to `shape`; its dtype and device are those of the result.
        shape: shape of the result.
    """
    # The operation below has no rule for the randomness of torch.vmap.
    if in_function_transform():
        return torch.bernoulli(keep.expand(torch.Size(shape)))
    return torch.ops.pyrodrop.coins(keep, list(shape)).to(keep.dtype)


def _coins(keep: Tensor, shape: Sequence[int]) -> Tensor:
    """Draw `coins` as bytes."""
    shape = torch.Size(shape)
    if keep.is_cuda:
        return (torch.rand(shape, device=keep.device) < keep).view(torch.uint8)
    count = shape.numel()
    bits = _fill(torch.empty((count + 4) // 4, dtype=torch.int64))  # 16 bits for each entry, and for the dither
    pieces = bits.numpy().view(np.int16)
    single = keep.numel() and not any(keep.stride())  # one rate, which may have been expanded
    cuts = _cuts(float(keep.flatten()[0]) if single else keep.double().numpy(), pieces[count])
    return torch.from_numpy(np.asarray(pieces[:count].reshape(shape) <= cuts)).view(torch.uint8)


def _shape_of_coins(keep: Tensor, shape: Sequence[int]) -> Tensor:
    return torch.empty(shape, dtype=torch.uint8, device=keep.device)


# An operation of PyTorch, so that a trace records one node. `torch.library.custom_op` would import the compiler.
_LIBRARY = torch.library.Library("pyrodrop", "FRAGMENT")
_LIBRARY.define("coins(Tensor keep, SymInt[] shape) -> Tensor", tags=[torch.Tag.nondeterministic_seeded])
_LIBRARY.impl("coins", _coins, "CPU")
_LIBRARY.impl("coins", _coins, "CUDA")
_LIBRARY.impl("coins", _shape_of_coins, "Meta")


def _cuts(keep: float | np.ndarray, dither: np.ndarray) -> np.ndarray:
    """The largest 16-bit integers for which a unit is kept."""
    cuts = np.floor(2**16 * keep + (dither - float(_LOWEST)) / 2**16) + (_LOWEST - 1)
    return np.maximum(cuts, _LOWEST).astype(np.int16)


class Masks:
    """Draws the masks of several consecutive steps with one call of PyTorch's default CPU generator. The masks equal those
    of one call of `coins` for each mask and step; they are written to the same memory every time.

    Args:
        keeps: for each mask of a step, the probabilities of a one, which broadcast to its shape.

    Attributes:
        masks: the masks of all steps, ``[steps, *shape]`` for every shape, after `draw` and `compare`.
    """

    def __init__(self, keeps: Sequence[Tensor], shapes: Sequence[Size | Sequence[int]], steps: int) -> None:
        sizes = [torch.Size(shape) for shape in shapes]
        words = [(shape.numel() + 4) // 4 for shape in sizes]
        self._bits = torch.empty(steps, sum(words), dtype=torch.int64)
        self.masks: list[Tensor] = [torch.empty((steps, *shape), dtype=torch.uint8) for shape in sizes]
        self._draws = []
        pieces = self._bits.view(torch.int16).split([4 * n for n in words], 1)
        for keep, shape, piece, mask in zip(keeps, sizes, pieces, self.masks, strict=True):
            count = shape.numel()
            entries = (piece[:, :count].unflatten(1, shape) if shape else piece[:, 0]).numpy()
            dither = piece[:, count][(..., *(None,) * len(shape))].numpy()
            rates = _rate(keep.double(), len(shape)).numpy()
            self._draws.append((rates, entries, dither, mask.view(torch.bool).numpy()))

    def draw(self, steps: slice) -> None:
        """Draw the random bits of some of the steps."""
        _fill(self._bits[steps])

    def compare(self, count: int) -> None:
        """Compute the masks of the first `count` steps from their bits."""
        for rates, pieces, dither, mask in self._draws:
            np.less_equal(pieces[:count], _cuts(rates, dither[:count]), out=mask[:count])


def fill_stacked(masks: Tensor, keep: Tensor) -> None:
    """Draw the masks of several replicates, with PyTorch's default generator.

    On a CPU an entry is kept if a random byte u < t = floor(256 keep); if u = t, as for one entry in 256, it is kept with
    probability 256 keep - t. So every entry is kept with exactly its probability, independently of the others.

    Args:
        masks: contiguous bytes of any shape, for zeros and ones.
        keep: probabilities of a one, which broadcast to that shape.
    """
    keep = keep.double()
    if masks.is_cuda:
        masks.copy_(torch.rand(masks.shape, device=masks.device) < keep)
        return
    count = masks.numel()
    words = _fill(torch.empty(-(-count // 8), dtype=torch.int64))
    drawn = words.view(torch.uint8)[:count].view(masks.shape).numpy()
    whole = (256 * keep).floor().clamp_max(255)
    cuts, kept = whole.to(torch.uint8).numpy(), masks.view(torch.bool).numpy()
    np.less(drawn, cuts, out=kept)
    rest = 256 * keep - whole
    if bool((rest > 0).any()):
        ties = np.flatnonzero(np.equal(drawn, cuts, out=drawn.view(np.bool_)))  # in place of the bytes
        chances = rest.flatten()[:1]
        if not bool((rest == chances).all()):
            chances = rest.expand(masks.shape)[torch.unravel_index(torch.from_numpy(ties), masks.shape)]
        kept.reshape(-1)[ties] = (torch.rand(len(ties)) < chances).numpy()


def _rate(keep: Tensor, axes: int) -> Tensor:
    """The probabilities of a mask, reshaped to `axes` axes; a single one if all are equal."""
    if keep.numel() and bool((keep == keep.max()).all()):
        return keep.flatten()[0].reshape((1,) * axes)
    return keep.reshape(*(1,) * (axes - keep.dim()), *keep.shape)


def keep_mask(shape: Size, drop_rate: float, *, device: torch.device | str | None = None) -> Tensor:
    """Draw independent booleans that are True with probability 1 - `drop_rate`.

    Args:
        shape: shape of the mask. Entries along its last axis share a random threshold, see the module's docstring.
        drop_rate: probability of False, in [0, 1).
        device: device of the mask, whose default generator is used; the CPU if None.
    """
    shape = torch.Size(shape)
    bits, piece, lowest = (8, torch.uint8, 0) if (256 * drop_rate).is_integer() else (16, torch.int16, _LOWEST)
    words = _fill(torch.empty(-(-shape.numel() * bits // 64), dtype=torch.int64, device=device))
    pieces = words.view(piece)[: shape.numel()].view(shape)
    # The smaller of the two probabilities has a threshold that fits into `bits` bits.
    rare = drop_rate > 0.5
    fraction, whole = math.modf(2**bits * (1 - drop_rate if rare else drop_rate))
    threshold: Tensor | int = int(whole) + lowest
    if fraction:  # one threshold per row
        dither = torch.rand((*shape[:-1], 1) if shape else (), device=device) < fraction
        threshold = dither.to(piece) + threshold
    if pieces.device.type == "cpu":
        cuts = threshold if isinstance(threshold, int) else threshold.numpy()
        return torch.from_numpy(np.asarray(pieces.numpy() < cuts if rare else pieces.numpy() >= cuts))
    return pieces < threshold if rare else pieces >= threshold


def check_drop_rate(drop_rate: float | Tensor, where: str = "") -> None:
    """Raise an error unless the rate, or every rate of a tensor, is a number in [0, 1)."""
    allowed = "drop_rate is the probability of dropping an input unit and must lie in [0, 1); got"
    place = f" for layer {where!r}" if where else ""
    if isinstance(drop_rate, Tensor):
        rates = tensor(drop_rate, "drop_rate", "the probability of dropping an input unit, in [0, 1),", finite=False)
        if not bool(((rates >= 0) & (rates < 1)).all()):
            got = str(rates.item()) if rates.dim() == 0 else f"rates from {rates.min():g} to {rates.max():g}"
            raise ValueError(f"{allowed} {got}{place}")
    elif not isinstance(drop_rate, numbers.Real) or isinstance(drop_rate, bool):
        raise TypeError(f"{allowed} {shown(drop_rate)}{place}")
    elif not 0 <= drop_rate < 1:
        raise ValueError(f"{allowed} {drop_rate}{place}")


def _fill(words: Tensor) -> Tensor:
    """Fill with random 64-bit words; ``random_()`` without bounds would leave the sign bit 0."""
    return words.random_(-(2**63), None)
