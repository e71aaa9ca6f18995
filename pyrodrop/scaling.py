"""Standardisation: the affine map between the units of the data and those of the network.

A network computes in float32, which has 7 digits. For y = 1,000,000 +- 1 or seconds since 1970, few of them or none are left
for the variation. So values far from zero and their standardisation stay in float64 (`narrowed`, `Standardize.beside`): the
offset is subtracted before x is rounded, and added after f is computed.
"""

from __future__ import annotations

import copy
import functools
import math
from typing import Any

import torch
from torch import Tensor

from pyrodrop.checks import instance, real_or_tensor

ROUNDING = 2e-5  # largest change of a value by float32, as a fraction of the standard deviation of its column


class Standardize(torch.nn.Module):
    """Standardise with ``forward``, (values - loc) / scale, and undo it with ``inverse``.

    Both compute in the wider of the dtypes of the values and of loc, also if loc is a scalar.

    Args:
        loc: location to subtract, a scalar or one value per column ``[D]``.
        scale: positive scale to divide by, a scalar or one value per column ``[D]``.

    Raises:
        ValueError: a scale is not positive and finite, a location is not finite, or the shapes differ.
        TypeError: an argument is neither a number nor a tensor of numbers.
    """

    any_shape = True  # the buffers may have any shape in a file

    loc: Tensor
    scale: Tensor

    def __init__(self, loc: Tensor | float = 0.0, scale: Tensor | float = 1.0) -> None:
        super().__init__()
        real_or_tensor(loc, "loc", "the location to subtract")
        real_or_tensor(scale, "scale", "the positive scale to divide by", above=0)
        kinds = [value.dtype for value in (loc, scale) if isinstance(value, Tensor) and value.is_floating_point()]
        loc, scale = (torch.as_tensor(v, dtype=None if isinstance(v, Tensor) else torch.float64) for v in (loc, scale))
        dtype = functools.reduce(torch.promote_types, kinds, kinds[0]) if kinds else torch.get_default_dtype()
        dtype = dtype if kinds else _holding(loc, scale, dtype)
        loc, scale = loc.to(dtype, copy=True), scale.to(dtype, copy=True)
        if loc.dim() and scale.dim() and loc.shape != scale.shape:
            raise ValueError(
                "loc and scale must be numbers or have one value per column each; got shapes "
                f"{list(loc.shape)} and {list(scale.shape)}"
            )
        self.register_buffer("loc", loc)
        self.register_buffer("scale", scale)

    @classmethod
    def of(cls, values: Tensor, dtype: torch.dtype | None = None) -> Standardize:
        """The standardisation of the columns of `values`, ``[N, D]``, computed in their dtype, or in float64 far from zero.

        A column that is constant up to rounding, see `varies`, is only centred, on its first value; if its range is above 1,
        it is also divided by the range. Its standard deviation would be that of rounding errors: it need not be 0 even for
        equal numbers, because their mean is rounded.

        Args:
            values: ``[N, D]``.
            dtype: the dtype in which the values will be standardised; that of `values` if None.

        Raises:
            TypeError: `values` are no tensor of a floating-point dtype.
        """
        instance(values, Tensor, "values", "a tensor, the values to standardise")
        if not values.is_floating_point() or values.dim() == 0:
            raise TypeError(
                "values must be a tensor of a floating-point dtype with a row per observation; got "
                f"{values.dtype} of shape {list(values.shape)}"
            )
        loc, scale, changing = values.mean(0), values.std(0, correction=0), varies(values, dtype)
        if _holding(loc[changing], scale[changing], values.dtype) != values.dtype:
            return cls.of(values.double(), dtype or values.dtype)
        width = values.amax(0) - values.amin(0)
        width = torch.where(width > 1, width, torch.ones_like(width))
        return cls(torch.where(changing, loc, values[0]), torch.where(changing, scale, width))

    @classmethod
    def of_inputs(cls, values: Tensor, dtype: torch.dtype | None = None) -> Standardize:
        """As `of`, for the inputs of a network, so that a rare value of a column does not become large.

        A column that has one value in most rows is divided by half of the root mean square by which the other rows differ
        from it, if that is more than its standard deviation. So a column of 0 and 1 is divided by 1/2, however rare its ones
        are. Divided by its standard deviation, a one in a fraction r of the rows would be about 1 / sqrt(r): under a prior
        over weights, the function and any noise that depends on x would be larger there by this factor.

        Args:
            values, dtype: as of `of`.
        """
        made = cls.of(values, dtype)
        off = (values - values.median(0).values).double()  # 0 in most rows of such a column: no other has a larger half
        half = (off.square().sum(0) / off.count_nonzero(0).clamp(min=1)).sqrt() / 2
        return cls(made.loc, torch.maximum(made.scale, half.to(made.scale)))

    def forward(self, values: Tensor) -> Tensor:
        return (self.widened(values) - self.loc) / self.scale

    def inverse(self, values: Tensor) -> Tensor:
        return self.widened(values) * self.scale + self.loc

    def widened(self, values: Tensor) -> Tensor:
        """The values in the wider of their dtype and that of loc; PyTorch's promotion ignores the dtype of scalars."""
        return values.to(torch.promote_types(values.dtype, self.loc.dtype))

    def beside(self, weight: Tensor) -> Standardize:
        """A copy on the device of a network's weight and in its dtype, or in float64 where that dtype would round loc, and
        with it f, by more than 2e-5 of scale."""
        return copy.deepcopy(self).to(weight.device, _holding(self.loc, self.scale, weight.dtype))

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        """Load saved values of any shape, scalar or ``[D]``; values in float64 stay in float64."""
        for name in ("loc", "scale"):
            if f"{prefix}{name}" in state_dict:
                saved, before = state_dict[f"{prefix}{name}"], getattr(self, name)
                setattr(self, name, saved.to(before.device, torch.promote_types(saved.dtype, before.dtype)))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _holding(loc: Tensor, scale: Tensor, dtype: torch.dtype) -> torch.dtype:
    """The dtype, or float64 if it rounds a location, and values near it, by more than 2e-5 of the scale."""
    if loc.is_meta:  # it has no value yet
        return dtype
    rounding = torch.finfo(dtype).eps / 2 * loc.abs()
    return torch.float64 if bool((rounding > ROUNDING * scale).any()) else dtype


def varies(values: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Whether the values of a column differ by more than rounding errors, ``[N, D]`` to ``[D]``; NaN are left out.

    Rounding errors are differences of at most 4 eps max |value|, which are 4 to 8 steps of floating-point numbers.

    Args:
        values: ``[N, D]``.
        dtype: the dtype in which the values will be used; that of `values` if None.
    """
    missing = values.isnan()
    low, high = values.masked_fill(missing, math.inf).amin(0), values.masked_fill(missing, -math.inf).amax(0)
    return high - low > 4 * torch.finfo(dtype or values.dtype).eps * torch.maximum(high, -low)


def narrowed(values: Tensor) -> Tensor:
    """The values ``[N, ...]`` in float32, or unchanged if float32 changes one by more than 2e-5 of the standard deviation
    of its column, as it does values far from zero; NaN are left out."""
    return values.float() if bool(within(values, torch.float32, ROUNDING).all()) else values


def within(values: Tensor, dtype: torch.dtype, share: float) -> Tensor:
    """Whether rounding to `dtype` changes values by at most this share of the standard deviation of their column.

    True for columns that are constant, see `varies`. NaN and infinities are ignored.

    Args:
        values: ``[N, ...]``; the result is ``[...]``.
    """
    if not values.numel():
        return torch.ones(values.shape[1:], dtype=torch.bool)
    seen = values.isfinite()
    changed = (values.to(dtype).to(values.dtype) - values).abs().masked_fill(~seen, 0.0).amax(0)
    count = seen.sum(0).clamp_min(1)
    mean = values.masked_fill(~seen, 0.0).sum(0) / count
    sd = ((values - mean).masked_fill(~seen, 0.0).square().sum(0) / count).sqrt()
    return ~varies(values.masked_fill(~seen, math.nan)) | (changed <= share * sd)


def check_spread(values: Tensor, name: str, least: float) -> None:
    """Check that the range of every column is 0, or large enough to compute with in float32.

    Args:
        values: ``[N, ...]``; NaN and infinite values are ignored.
        least: smallest range, the largest minus the smallest value, of a column that is not constant.

    Raises:
        ValueError: the range of a column is above 0 and below `least`.
    """
    if not values.is_floating_point():
        return
    low, high = values.amin(0), values.amax(0)
    if not bool((low.isfinite() & high.isfinite()).all()):  # otherwise without a copy of all values
        outside = ~values.isfinite()
        low, high = values.masked_fill(outside, math.inf).amin(0), values.masked_fill(outside, -math.inf).amax(0)
    spread = (high.double() - low.double()).reshape(-1)
    small = ((spread > 0) & (spread < least)).nonzero()
    if len(small):
        column = int(small[0])
        raise ValueError(
            f"{name}: the values of a column must be equal, or differ by at least {least:g}, for float32 to hold them; "
            f"got values that differ by {float(spread[column]):.2g} in column {column}: change their unit"
        )
