"""A data set: inputs and observations in the units they were measured in."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyrodrop.scaling import Standardize


class Dataset:
    """Inputs x and observations y of one length, checked.

    Args:
        x: inputs, shape ``[N, ...]``; ``[N]`` is taken as ``[N, 1]``.
        y: observations, shape ``[N]`` or ``[N, D]``.
        inputs, targets: the standardisations a network should use for them; those of other data, usually (a test set
            carries its training set's). None leaves the values as they are.

    Raises:
        TypeError: x or y is not a tensor or an array of numbers.
        ValueError: x and y differ in length, are empty, or hold NaN or infinite values.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        *,
        inputs: Standardize | None = None,
        targets: Standardize | None = None,
    ) -> None:
        self.x = check_inputs(x)
        y = check_finite("y", torch.as_tensor(y))
        if len(self.x) != len(y):
            raise ValueError(f"x and y must have one row per observation each; got {len(self.x)} and {len(y)} rows")
        self.y = y
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.x)

    @classmethod
    def of(cls, data: Dataset | tuple[Tensor, Tensor]) -> Dataset:
        """`data` itself, or a pair (x, y) checked and wrapped."""
        if isinstance(data, Dataset):
            return data
        try:
            x, y = data
        except (TypeError, ValueError):
            raise TypeError(f"data is a Dataset or a pair (x, y); got {type(data).__name__}") from None
        return cls(x, y)

    def first(self, count: int) -> Dataset:
        """The first `count` observations, with the same standardisations."""
        if not 1 <= count <= len(self):
            raise ValueError(f"count is the number of observations to keep, from 1 to {len(self)}; got {count}")
        return Dataset(self.x[:count], self.y[:count], inputs=self.inputs, targets=self.targets)

    def standardized(self) -> Dataset:
        """The same data, with the standardisation of its own columns."""
        return Dataset(self.x, self.y, inputs=Standardize.of(self.x), targets=Standardize.of(self.y))


@dataclass(frozen=True)
class Split:
    """A data set in two parts; `test` carries the standardisation of `train`.

    Attributes:
        name: what to call it.
        train, test: the parts.
        x_unit, y_unit: units of x and y, for axes and tables.
        source: where the data come from, and their licence.
        period: of a season that is known beforehand, in units of x.
        truth: whether `test` has real observations; without, its y is there only for its shape.
    """

    name: str
    train: Dataset
    test: Dataset
    x_unit: str
    y_unit: str
    source: str
    period: float | None = None
    truth: bool = True


def check_inputs(x: Tensor) -> Tensor:
    """Inputs with a column dimension, finite and not empty, or a ValueError."""
    x = check_finite("x", torch.as_tensor(x))
    return x[:, None] if x.dim() == 1 else x


def check_finite(name: str, values: Tensor) -> Tensor:
    """`values`, or a ValueError if they are empty, NaN or infinite."""
    if values.dim() == 0 or len(values) == 0:
        raise ValueError(f"{name} must hold at least one observation; got shape {tuple(values.shape)}")
    if bool(torch.isfinite(values.sum())):  # then every value is, and no second array of them is made
        return values
    bad = int((~torch.isfinite(values)).sum())
    if bad:
        where = (~torch.isfinite(values)).nonzero()[0].tolist()
        raise ValueError(
            f"{name} must be finite; got {bad} NaN or infinite of {values.numel()} values, the first at index {where}"
        )
    return values
