"""Standardisation: the affine map between the units of the data and those of the network."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyrodrop.arguments import instance, real_or_tensor


class Standardize(torch.nn.Module):
    """Standardise with ``forward``, (values - loc) / scale, and undo it with ``inverse``.

    Args:
        loc: location to subtract, a scalar or one value per column ``[D]``.
        scale: positive scale to divide by, a scalar or one value per column ``[D]``.

    Raises:
        ValueError: a scale is not positive and finite, a location is not finite, or the shapes differ.
        TypeError: an argument is neither a number nor a tensor of numbers.
    """

    loc: Tensor
    scale: Tensor

    def __init__(self, loc: Tensor | float = 0.0, scale: Tensor | float = 1.0) -> None:
        super().__init__()
        real_or_tensor(loc, "loc", "the location to subtract")
        real_or_tensor(scale, "scale", "the positive scale to divide by", above=0)
        scale = torch.as_tensor(scale)
        if not scale.is_floating_point():  # whole numbers, with which a location would be rounded
            scale = scale.to(torch.get_default_dtype())
        loc = torch.as_tensor(loc, dtype=scale.dtype)
        if loc.dim() and scale.dim() and loc.shape != scale.shape:
            raise ValueError(
                "loc and scale must be numbers or have one value per column each; got shapes "
                f"{list(loc.shape)} and {list(scale.shape)}"
            )
        self.register_buffer("loc", loc)
        self.register_buffer("scale", scale)

    @classmethod
    def of(cls, values: Tensor, dtype: torch.dtype | None = None) -> Standardize:
        """The standardisation of the columns of `values`, ``[N, D]``, computed in their dtype.

        A column that is constant up to rounding, see `varies`, is only centred, on its first value. If its range is above 1,
        it is divided by the range. Its mean and standard deviation would be those of the rounding errors: even of equal
        numbers the standard deviation need not be 0, because their mean is rounded.

        Args:
            values: ``[N, D]``. NaN are missing values, which are left out.
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
        missing = values.isnan()
        if bool(missing.any()):
            each = zip(*(tensor.reshape(len(values), -1).unbind(1) for tensor in (values, missing)), strict=True)
            columns = [cls.of(column[~absent], dtype) for column, absent in each]
            loc, scale = (torch.stack([getattr(one, statistic) for one in columns]) for statistic in ("loc", "scale"))
            return cls(loc.reshape(values.shape[1:]), scale.reshape(values.shape[1:]))
        scale, changing = values.std(0, correction=0), varies(values, dtype)
        width = values.amax(0) - values.amin(0)
        width = torch.where(width > 1, width, torch.ones_like(width))
        return cls(torch.where(changing, values.mean(0), values[0]), torch.where(changing, scale, width))

    def forward(self, values: Tensor) -> Tensor:
        return (values - self.loc) / self.scale

    def inverse(self, values: Tensor) -> Tensor:
        return values * self.scale + self.loc

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        """Load saved values of any shape: they are scalars before `of` a data set, and ``[D]`` afterwards."""
        for name in ("loc", "scale"):
            if f"{prefix}{name}" in state_dict:
                setattr(self, name, state_dict[f"{prefix}{name}"].to(getattr(self, name)))
        super()._load_from_state_dict(state_dict, prefix, *rest)


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


def check_spread(values: Tensor, name: str, least: float) -> None:
    """Check that the values of every column that varies differ by what float32 can compute with.

    Args:
        values: ``[N, ...]``; NaN and infinite values are left out.
        least: what the largest and the smallest value of a column must differ by, if they are not equal.

    Raises:
        ValueError: they differ by less.
    """
    if not values.is_floating_point():
        return
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
