"""A data set: inputs and observations in their original units."""

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
    """Inputs x and observations y with one row per example, checked for shape and finite values.

    Args:
        x: inputs, ``[N, ...]``; ``[N]`` is converted to ``[N, 1]``. Or a tuple or mapping of tensors ``[N, ...]``, the
            positional or named arguments of the network, such as ``(ids, mask)``; their shapes are not changed.
        y: observations, ``[N]`` or ``[N, ...]``.
        inputs: standardisation of x that a network should use; x is not changed itself. A test set usually has the
            standardisation of its training set. None means no standardisation. Only allowed if x is one tensor of real
            numbers.
        targets: standardisation of y, likewise.

    Raises:
        TypeError: x or y is not a tensor or an array of numbers, and x is not a tuple or mapping of such either.
        ValueError: the tensors of x and y differ in length, are empty, or contain NaN or infinite values, or `inputs` is
            given for an x that cannot be standardised.

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
        """32 hexadecimal digits that are equal for equal data; see `pyrodrop.data.fingerprint`."""
        return fingerprint(self.x, self.y)

    @classmethod
    def of(cls, data: Data) -> Dataset:
        """Return `data` itself if it is a `Dataset`, or convert a pair (x, y).

        Raises:
            TypeError: `data` is neither.
        """
        if isinstance(data, Dataset):
            return data
        try:
            x, y = data
        except (TypeError, ValueError):
            raise TypeError(
                "data must be a Dataset or a pair (x, y), where x may be a tuple or mapping of tensors, ((ids, mask), y); "
                f"got {type(data).__name__}"
            ) from None
        return cls(x, y)

    def first(self, count: int) -> Dataset:
        """The first `count` examples, with the same standardisations.

        Raises:
            ValueError: `count` is not between 1 and the number of examples.
        """
        if not 1 <= count <= len(self):
            raise ValueError(
                f"count is the number of observations to keep and must lie in 1 ... {len(self)}; got {count}"
            )
        return self.rows(slice(count))

    def rows(self, chosen: slice | Tensor) -> Dataset:
        """Some of the examples, with the same standardisations.

        Args:
            chosen: a slice, a tensor of row indices or a boolean mask ``[N]``.
        """
        x = mapped(lambda part: part[chosen], self.x)
        return Dataset(x, self.y[chosen], inputs=self.inputs, targets=self.targets)

    def standardized(self) -> Dataset:
        """The same data, with standardisations computed from the columns of x and y.

        Raises:
            ValueError: x consists of several tensors, or x or y has an integer dtype, like labels and token ids.
        """
        _check_standardizable("x", self.x)
        _check_standardizable("y", self.y)
        return Dataset(self.x, self.y, inputs=Standardize.of(self.x), targets=Standardize.of(self.y))


# What functions take as data: a `Dataset`, or a pair (x, y).
Data: TypeAlias = Dataset | tuple[Inputs, Tensor]


@dataclass(frozen=True)
class Split:
    """A data set in a training and a test part; `test` has the standardisations of `train`.

    Attributes:
        name: name of the data set.
        train: training part.
        test: test part.
        x_unit: unit of x, for axes and tables.
        y_unit: unit of y, for axes and tables.
        source: source and licence of the data.
        period: known period of a seasonal component, in units of x; None if there is none.
        truth: whether `test` has real observations. If False, its y only has the right shape.
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
    """Convert inputs to tensors and check them. A single tensor ``[N]`` becomes ``[N, 1]``.

    Raises:
        TypeError: x is neither a tensor or an array of numbers, nor a tuple or mapping of such.
        ValueError: a tensor has no rows or contains NaN or infinite values, or the lengths differ.
    """
    if isinstance(x, Mapping):
        wrong = [name for name in x if not isinstance(name, str)]
        if wrong:
            raise TypeError(
                f"the keys of a mapping of inputs must be names of the network's arguments, which are str; got {wrong[0]!r}"
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
            "x must be a tensor or an array of numbers, or a tuple or mapping of them with a common first axis, the "
            f"examples; got a {type(value).__name__}: {error}"
        ) from None


def _one_length(x: Any) -> Any:
    """Return x; raise a ValueError unless all of its tensors have the same length."""
    found = {name: len(part) for name, part in zip(x if isinstance(x, dict) else range(len(x)), parts(x), strict=True)}
    if not found:
        raise ValueError(f"x must contain at least one tensor; got an empty {type(x).__name__}")
    if len(set(found.values())) > 1:
        rows = ", ".join(f"x[{name!r}] {count}" for name, count in found.items())
        raise ValueError(f"all tensors of x must have one row per example, a common first axis; got rows {rows}")
    return x


def _check_standardizable(name: str, values: Any) -> None:
    """Raise a ValueError unless `values` is one tensor of real numbers."""
    if not isinstance(values, Tensor):
        raise ValueError(
            f"only a single tensor of real numbers can be standardised; {name} is a {type(values).__name__} of "
            f"{len(values)}: standardise its parts yourself and pass Dataset only targets="
        )
    if not values.is_floating_point():
        raise ValueError(
            f"only real numbers can be standardised; {name} has dtype {values.dtype}: convert measurements with .float(), "
            "and do not standardise labels and token ids"
        )


def check_finite(name: str, values: Tensor) -> Tensor:
    """Return `values`; raise a ValueError if they are empty or contain NaN or infinite values."""
    if values.dim() == 0 or len(values) == 0:
        raise ValueError(f"{name} must contain at least one observation; got shape {tuple(values.shape)}")
    if bool(torch.isfinite(values.sum())):  # then all values are finite; this needs no second array
        return values
    bad = int((~torch.isfinite(values)).sum())
    if bad:
        where = (~torch.isfinite(values)).nonzero()[0].tolist()
        raise ValueError(
            f"{name} must be finite; got {bad} NaN or infinite of {values.numel()} values, the first at index {where}"
        )
    return values
