"""A data set: inputs and observations in their original units."""

from __future__ import annotations

import hashlib
import numbers
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pyrodrop.arrays import copied, tensor_of, without_graph
from pyrodrop.checks import Inputs, all_finite, instance, mapped, named_parts, num_rows, parts, shown
from pyrodrop.checks import count as whole_number
from pyrodrop.data.columns import Columns, read_frame
from pyrodrop.scaling import Standardize

_HASHED = 2**20  # number of values that the fingerprint converts at a time


class Dataset:
    """Inputs x and observations y with one row per example, checked for shape and finite values.

    Args:
        x: inputs, ``[N, ...]``; ``[N]`` is converted to ``[N, 1]``. A tensor, a NumPy array, a DataFrame or Series (of
            pandas, polars or pyarrow), or a list of numbers. Or a tuple or mapping of these, the positional or named
            arguments of the network, such as ``(ids, mask)``; their shapes are not changed.
        y: observations, ``[N]`` or ``[N, ...]``, in one of the same forms.
        inputs: standardisation of x that a network should use; x is not changed itself. A test set usually has the
            standardisation of its training set. None means no standardisation. Only allowed if x is one tensor of real
            numbers.
        targets: standardisation of y, likewise.

    `from_frame` converts a DataFrame with named columns and categories. Its data set has `columns`, which describe how the
    columns of the frame became x and y; `columns` is None for other data.

    Data are constants: arrays and tensors are copied (an ``np.memmap`` stays mapped), and no gradient flows into them. Whole
    numbers and bools keep their dtype, as labels and token ids; a network whose first layer is linear converts whole numbers
    of x to real ones. Rows are matched by their order, never by the index of a pandas table.

    Raises:
        TypeError: x or y is no array of real numbers (complex numbers, text, dates, categories, rows of unequal length,
            sparse or quantised tensors), nor is x a tuple or mapping of arrays; `inputs` or `targets` is no `Standardize`.
        ValueError: the tensors of x and y differ in length, are empty, or contain NaN, masked or infinite values; x
            cannot be standardised, but `inputs` is given; or `inputs` or `targets` has another number of columns than the
            data.

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
        self.x: Any = check_inputs(x, copy=True)
        y = check_finite("y", copied(without_graph(tensor_of(y, "y"), "y"), y))
        if num_rows(self.x) != len(y):
            raise ValueError(
                f"x and y must have one row per observation each; got {num_rows(self.x)} and {len(y)} rows"
            )
        self.y = y
        self.columns: Columns | None = None
        for name, standardisation, values in (("inputs", inputs, self.x), ("targets", targets, y)):
            if standardisation is not None:
                _check_standardisation(name, standardisation, values)
        self.inputs: Standardize | None = inputs
        self.targets: Standardize | None = targets

    def __len__(self) -> int:
        return len(self.y)

    @property
    def fingerprint(self) -> str:
        """Hash of the values, order, names and shapes of x and y, as 32 hexadecimal digits; computed anew each time.

        Equal values of different floating-point precision give the same fingerprint, and so do y ``[N]`` and y ``[N, 1]``.
        Different data have the same fingerprint with a probability of about 10^-38.
        """
        digest = hashlib.blake2b(digest_size=16)
        y = self.y[:, 0] if self.y.dim() == 2 and self.y.shape[1] == 1 else self.y
        for name, values in {**named_parts(self.x), "observations": y}.items():
            exact = not values.is_floating_point()
            digest.update(f"{name} {tuple(values.shape)} {'integer' if exact else 'real'};".encode())
            for piece in values.detach().flatten().split(_HASHED):
                digest.update(piece.to("cpu", torch.int64 if exact else torch.float64).numpy().tobytes())
        return digest.hexdigest()

    @classmethod
    def from_frame(cls, df: Any, target: Any, *, categories: Sequence[Any] = ()) -> Dataset:
        """The columns of a DataFrame as x and y, float32, or float64 where float32 would round a column too much.

        Too much is more than 2e-5 of the column's standard deviation, as for times in seconds. The frame is one of pandas,
        polars or pyarrow, read by narwhals (https://narwhals-dev.github.io/narwhals); sparse columns become dense.

        All columns but the target's are inputs, in the order of the frame, numbers first. The index is ignored. A prior
        with the same scale for all weights, and a single learning rate, suit inputs of equal scale. So numbers are
        standardised, inputs and target: mean 0 and standard deviation 1 over the rows. As in any `Dataset`, x and y keep
        their units, and the model standardises them; observation noise and predictions are in the units of y. A constant
        column is only centred, so that it has no effect. A column that has the same value in most rows gets a standard
        deviation below 1 (`Standardize.of_inputs` of `pyrodrop.scaling`).

        Text, categorical dtypes and columns named in `categories` become one column of 0 and 1 per value. Bools and these
        columns stay 0 and 1, so that every category has the same prior, however rare it is. Divided by its standard
        deviation, the column of a category in a fraction r of the rows would be about 1 / sqrt(r). Under the prior, its
        effect would have a standard deviation of this order.

        Missing inputs are filled: numbers by their median, bools by their more frequent value, each with a further column of
        x that is 1 where they are missing; missing categories are a category of their own.

        Args:
            df: the frame.
            target: name of the column of y, or a list of names of columns of numbers. Text, bools and categorical dtypes are
                class labels, as is a column of whole numbers that is named in `categories`. A column of 0 and 1 that is not
                named there is read as numbers, with a warning in the log. They may not be missing.
            categories: names of further columns whose values are categories, such as numbers. Values are those that a
                categorical dtype of pandas or an Enum of polars declares, otherwise those that occur, sorted.

        Returns:
            A data set with y ``[N, targets]``, or class labels ``[N]`` of int64, and `columns`, which has the names, the
            categories and the classes. `like` converts further frames to data sets and ``columns.x`` to inputs; a fit to
            this data set predicts at frames, too.

        Raises:
            TypeError: `df` is no DataFrame; a column has dates, or values that are neither numbers, bools, text nor
                categories.
            ValueError: a name is that of no column, or of several; values are infinite; the target is constant; text has too
                many values to be categories; whole numbers are larger than float64 holds exactly.

        Example:
            >>> import pandas as pd
            >>> from pyrodrop import data
            >>> df = pd.DataFrame({"age": [30, 40, 50], "kind": ["b", "a", "b"], "price": [1.0, 2.0, 4.0]})
            >>> train = data.Dataset.from_frame(df, target="price")
            >>> train.columns.names, train.x[0]
            (('age', 'kind=a', 'kind=b'), tensor([30.,  0.,  1.]))
            >>> train.columns.x(pd.DataFrame({"kind": ["a"], "age": [45]}))
            tensor([[45.,  1.,  0.]])
        """
        return cls._of_frame(df, *read_frame(df, target, categories))

    def like(self, df: Any) -> Dataset:
        """Another frame as a data set with the columns, categories and standardisation of this one, such as a test set.

        Args:
            df: a frame with the columns of the inputs and of the target, which are found by name; others are ignored.

        Raises:
            TypeError: `df` is no DataFrame, or a column that must have numbers has other values; this data set was not made
                from a frame.
            ValueError: a column is missing or occurs twice; values are infinite, or categories that this data set does not
                have.
        """
        if self.columns is None:
            raise TypeError("like needs the columns of a frame, which a data set of Dataset.from_frame has; got arrays")
        return self._of_frame(df, self.columns, self.inputs, self.targets)

    @classmethod
    def _of_frame(cls, df: Any, columns: Columns, inputs: Standardize | None, targets: Standardize | None) -> Dataset:
        dataset = cls(columns.x(df), columns.y(df), inputs=inputs, targets=targets)
        dataset.columns = columns
        return dataset

    def with_values(self, **changes: Any) -> Dataset:
        """A data set with the same columns of a frame, and with some of `x`, `y`, `inputs` and `targets` replaced."""
        values = {name: getattr(self, name) for name in ("x", "y", "inputs", "targets")}
        dataset = Dataset(**values | changes)
        dataset.columns = self.columns
        return dataset

    @classmethod
    def of(cls, data: Data, name: str = "data") -> Dataset:
        """Return `data` itself if it is a `Dataset`, or convert a pair (x, y).

        Args:
            data: a `Dataset` or a pair.
            name: name of the argument, for messages.

        Raises:
            TypeError, ValueError: `data` is neither, or as `Dataset`.
        """
        if isinstance(data, Dataset):
            return data
        if not isinstance(data, tuple | list) or len(data) != 2:
            size = f" of {len(data)}" if isinstance(data, tuple | list) else ""
            raise TypeError(
                f"{name} must be a Dataset or a pair (x, y), where x may be a tuple or mapping of tensors, ((ids, mask), "
                f"y); got {shown(data)}{size}: Dataset.from_frame reads a data frame, and pyrodrop.fit a DataLoader, or a "
                "mapping of the arguments of a Pyro program"
            )
        x, y = data
        return cls(x, y)

    def first(self, count: int) -> Dataset:
        """The first `count` examples, with the same standardisations.

        Raises:
            TypeError: `count` is not a whole number.
            ValueError: `count` is not between 1 and the number of examples.
        """
        return self.rows(slice(whole_number(count, "count", "the number of observations to keep", most=len(self))))

    def rows(self, chosen: slice | Tensor) -> Dataset:
        """Some of the examples, with the same standardisations.

        Args:
            chosen: a slice, a tensor of row indices or a boolean mask ``[N]``; or an array or list of such.

        Raises:
            TypeError: `chosen` is something else.
            IndexError: an index is out of range, or a mask does not have N entries.
            ValueError: a column of y has no value in the rows.
        """
        if not isinstance(chosen, slice):
            rows = tensor_of(chosen, "chosen")
            if rows.is_floating_point() or rows.dim() != 1:
                raise TypeError(
                    "chosen must be a slice, a vector of row indices or a boolean mask [N]; got "
                    f"{rows.dtype} of shape {list(rows.shape)}"
                )
            chosen = rows if rows.dtype is torch.bool else rows.long()  # PyTorch would read a uint8 tensor as a mask
        return self.with_values(x=mapped(lambda tensor: tensor[chosen], self.x), y=self.y[chosen])

    def standardized(self) -> Dataset:
        """The same data, with standardisations computed from the columns of x and y.

        Columns get mean 0 and standard deviation 1; columns of x with the same value in most rows get less, see
        `Standardize.of_inputs` of `pyrodrop.scaling`. Standardisations of values far from zero, such as times in seconds or
        a y of 100,000,000 +- 1, are float64: the mean is subtracted in float64 before a network gets x, and predictions are
        float64 if the standardisation of y is.

        Raises:
            ValueError: x consists of several tensors, or x or y has an integer dtype, like labels and token ids.
        """
        _check_standardizable("x", self.x)
        _check_standardizable("y", self.y)
        return self.with_values(inputs=Standardize.of_inputs(self.x), targets=Standardize.of(self.y))


# Data that functions accept: a `Dataset`, or a pair (x, y). Training also accepts the keyword arguments of a Pyro program.
Data: TypeAlias = Dataset | tuple[Inputs, Tensor]


def check_inputs(x: Inputs, argument: str = "x", *, copy: bool = False) -> Any:
    """Convert inputs to tensors, with `copy` in memory of their own, and check them. A single ``[N]`` becomes ``[N, 1]``.

    Raises:
        TypeError: x is neither an array of numbers (see `pyrodrop.arrays`), nor a tuple or mapping of such.
        ValueError: a tensor has no rows or contains NaN or infinite values, or the lengths differ.
    """
    if isinstance(x, Mapping):
        wrong = [name for name in x if not isinstance(name, str)]
        if wrong:
            raise TypeError(
                f"the keys of a mapping of inputs must be names of the network's arguments, which are str; got {wrong[0]!r}"
            )
        return _one_length({name: _part(value, f"{argument}[{name!r}]", copy) for name, value in x.items()})
    if isinstance(x, tuple) and not (x and all(isinstance(value, numbers.Real) for value in x)):
        return _one_length(tuple(_part(value, f"{argument}[{place}]", copy) for place, value in enumerate(x)))
    x = _part(x, argument, copy)
    return x[:, None] if x.dim() == 1 else x


def _part(values: Any, name: str, copy: bool) -> Tensor:
    """A tensor of x, without its graph."""
    tensor = without_graph(tensor_of(values, name), name)
    return check_finite(name, copied(tensor, values) if copy else tensor)


def _one_length(x: Any) -> Any:
    """Return x; raise a ValueError unless all of its tensors have the same length."""
    names = x if isinstance(x, dict) else range(len(x))
    lengths = {name: len(tensor) for name, tensor in zip(names, parts(x), strict=True)}
    if not lengths:
        raise ValueError(f"x must contain at least one tensor; got an empty {type(x).__name__}")
    if len(set(lengths.values())) > 1:
        rows = ", ".join(f"x[{name!r}] {count}" for name, count in lengths.items())
        raise ValueError(f"all tensors of x must have one row per example, a common first axis; got rows {rows}")
    return x


def _check_standardisation(name: str, standardisation: Any, values: Any) -> None:
    """Check the type of the standardisation passed as `name`, and that its shape fits `values`."""
    instance(standardisation, Standardize, name, "a Standardize of pyrodrop.scaling, or None")
    if name == "inputs":
        _check_standardizable("x", values)
    for statistic in (standardisation.loc, standardisation.scale):
        if statistic.dim() > values.dim() or any(
            length not in (1, size)
            for length, size in zip(reversed(statistic.shape), reversed(values.shape), strict=False)
        ):
            raise ValueError(
                f"{name} must be one standardisation for all values or one per column, of shape {list(values.shape[1:])}; "
                f"got a Standardize of shape {list(statistic.shape)}"
            )


def _check_standardizable(name: str, values: Any) -> None:
    """Raise a ValueError unless `values` is one tensor of real numbers."""
    if not isinstance(values, Tensor):
        raise ValueError(
            f"only a single tensor of real numbers can be standardised; {name} is a {type(values).__name__} of "
            f"{len(values)}: standardise its parts yourself and pass Dataset only targets="
        )
    if not values.is_floating_point():
        raise ValueError(
            f"only real numbers can be standardised; {name} has dtype {values.dtype}: convert measurements and "
            "counts with .double(), and do not standardise labels and token ids"
        )


def check_finite(name: str, values: Tensor) -> Tensor:
    """Return `values`; raise a ValueError if they are empty or contain NaN or infinite values."""
    if values.dim() == 0 or len(values) == 0:
        raise ValueError(f"{name} must contain at least one observation; got shape {list(values.shape)}")
    all_finite(values, name)
    return values
