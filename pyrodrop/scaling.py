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

    @classmethod
    def of_inputs(cls, values: Tensor, dtype: torch.dtype | None = None) -> Standardize:
        """As `of`, for the inputs of a network: the values of a rare event stay near those of other rows.

        A column that has one value in most rows is divided by half of the root mean square by which the other rows differ
        from it, if that is more than its standard deviation. So a column of 0 and 1 is divided by 1/2, however rare its ones
        are. Divided by its standard deviation, a one in a fraction r of the rows would be about 1 / sqrt(r): under a prior
        over weights the function, and noise that depends on x, would be as much larger there than anywhere else.

        Args:
            values, dtype: as of `of`, without missing values.
        """
        made = cls.of(values, dtype)
        off = (values - values.median(0).values).double()  # 0 in most rows of such a column: no other has a larger half
        half = (off.square().sum(0) / off.count_nonzero(0).clamp(min=1)).sqrt() / 2
        return cls(made.loc, torch.maximum(made.scale, half.to(made.scale)))

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
