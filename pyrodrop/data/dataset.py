"""A data set: inputs and observations in the units they were measured in."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pyrodrop.data.fingerprint import fingerprint
from pyrodrop.inputs import Inputs, mapped, num_rows, parts
from pyrodrop.scaling import Standardize


class Dataset:
    """Inputs x and observations y with one row per example each, checked.

    Args:
        x: inputs, shape ``[N, ...]``; ``[N]`` is taken as ``[N, 1]``. Or a tuple or mapping of tensors ``[N, ...]``, the
            positional or named arguments of the network, such as ``(ids, mask)``; their shapes are left as they are.
        y: observations, shape ``[N]`` or ``[N, ...]``.
        inputs, targets: the standardisations a network should use for them; those of other data, usually (a test set
            carries its training set's). None leaves the values as they are. Only an x of one tensor of real numbers can
            have `inputs`.

    Raises:
        TypeError: x or y is not a tensor or an array of numbers, nor x a tuple or mapping of such.
        ValueError: the tensors of x and y differ in length, are empty, or hold NaN or infinite values; `inputs` for an x
            that cannot be standardised.

    Example:
        >>> import torch
        >>> from pyrodrop import data
        >>> train = data.Dataset(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 20.0, 30.0])).standardized()
        >>> train.x.shape, len(train)
        (torch.Size([3, 1]), 3)
        >>> train.targets.loc, train.rows(slice(2)).y
        (tensor(20.), tensor([10., 20.]))
    """

    def __init__(
        self,
        x: Inputs,
        y: Tensor,
        *,
        inputs: Standardize | None = None,
        targets: Standardize | None = None,
    ) -> None:
        self.x: Any = check_inputs(x)
        y = check_finite("y", torch.as_tensor(y))
        if num_rows(self.x) != len(y):
            raise ValueError(
                f"x and y must have one row per observation each; got {num_rows(self.x)} and {len(y)} rows"
            )
        self.y = y
        if inputs is not None:
            _check_standardizable("x", self.x)
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.y)

    @functools.cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that equal data have in common: see `pyrodrop.data.fingerprint`."""
        return fingerprint(self.x, self.y)

    @classmethod
    def of(cls, data: Data) -> Dataset:
        """`data` itself, or a pair (x, y) checked and wrapped."""
        if isinstance(data, Dataset):
            return data
        try:
            x, y = data
        except (TypeError, ValueError):
            raise TypeError(
                "data is a Dataset or a pair (x, y), where x may be a tuple or mapping of tensors, ((ids, mask), y); "
                f"got {type(data).__name__}"
            ) from None
        return cls(x, y)

    def first(self, count: int) -> Dataset:
        """The first `count` observations, with the same standardisations."""
        if not 1 <= count <= len(self):
            raise ValueError(f"count is the number of observations to keep, from 1 to {len(self)}; got {count}")
        return self.rows(slice(count))

    def rows(self, chosen: slice | Tensor) -> Dataset:
        """Some observations, by a slice, their numbers or a mask ``[N]``, with the same standardisations."""
        x = mapped(lambda part: part[chosen], self.x)
        return Dataset(x, self.y[chosen], inputs=self.inputs, targets=self.targets)

    def standardized(self) -> Dataset:
        """The same data, with the standardisation of its own columns.

        Raises:
            ValueError: x is several tensors, or x or y are whole numbers, such as labels and token ids.
        """
        _check_standardizable("x", self.x)
        _check_standardizable("y", self.y)
        return Dataset(self.x, self.y, inputs=Standardize.of(self.x), targets=Standardize.of(self.y))


# What functions take as data: a `Dataset`, or a pair (x, y).
Data: TypeAlias = Dataset | tuple[Inputs, Tensor]


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


def check_inputs(x: Inputs) -> Any:
    """Inputs finite and not empty, with one first axis; a single tensor has a column dimension.

    Raises:
        TypeError: neither a tensor or an array of numbers, nor a tuple or mapping of such.
        ValueError: tensors without rows, of different lengths, or with NaN or infinite values.
    """
    if isinstance(x, Mapping):
        wrong = [name for name in x if not isinstance(name, str)]
        if wrong:
            raise TypeError(
                f"a mapping of inputs has the names of the network's arguments, which are str; got {wrong[0]!r}"
            )
        return _one_length({name: check_finite(f"x[{name!r}]", _tensor(value)) for name, value in x.items()})
    if isinstance(x, tuple) and not all(isinstance(value, int | float) for value in x):
        return _one_length(tuple(check_finite(f"x[{place}]", _tensor(value)) for place, value in enumerate(x)))
    x = check_finite("x", _tensor(x))
    return x[:, None] if x.dim() == 1 else x


def _tensor(value: Any) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            "x is a tensor or an array of numbers, or a tuple or mapping of them with a common first axis, the examples; "
            f"got a {type(value).__name__}: {error}"
        ) from None


def _one_length(x: Any) -> Any:
    """x if its tensors have one length."""
    found = {name: len(part) for name, part in zip(x if isinstance(x, dict) else range(len(x)), parts(x), strict=True)}
    if not found:
        raise ValueError(f"x must hold at least one tensor; got an empty {type(x).__name__}")
    if len(set(found.values())) > 1:
        rows = ", ".join(f"x[{name!r}] {count}" for name, count in found.items())
        raise ValueError(f"all tensors of x must have one row per example, a common first axis; got rows {rows}")
    return x


def _check_standardizable(name: str, values: Any) -> None:
    """A ValueError unless there is one tensor of real numbers."""
    if not isinstance(values, Tensor):
        raise ValueError(
            f"only one tensor of real numbers is standardised; {name} is a {type(values).__name__} of {len(values)}: "
            "standardise its parts beforehand, and give Dataset the targets alone"
        )
    if not values.is_floating_point():
        raise ValueError(
            f"only real numbers are standardised; {name} has dtype {values.dtype}: convert measurements by .float(), and "
            "leave labels and token ids as they are"
        )


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
