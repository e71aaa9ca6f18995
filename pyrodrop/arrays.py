"""Convert the data of users to tensors: tensors, NumPy arrays, tables and their columns, and lists of numbers.

    tensor              as it is, without a copy
    NumPy array         of any real dtype but long doubles, byte order and strides; np.memmap stays mapped
    DataFrame           of pandas, polars or pyarrow: [rows, columns] of their common dtype, if no value is missing
    Series              [rows], in the order of its rows, whatever its index says
    list, tuple, range  of numbers: torch's default dtype for real numbers, int64 for whole ones

Whole numbers stay whole and bools stay bools, so that labels and token ids keep their meaning. Unsigned numbers of 16 bits
and more, for which torch has few operations, are refused. Tables are read by narwhals.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import torch
from narwhals.exceptions import DuplicateError
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from pyrodrop.checks import shown, why_not_real
from pyrodrop.private_apis import in_function_transform

_UNSIGNED = frozenset({torch.uint16, torch.uint32, torch.uint64})
_REAL = "biuf"  # NumPy's kinds of bools, whole and real numbers
_ALLOWED = "must be a tensor, a NumPy array, a DataFrame or Series, or a list of real numbers"


def tensor_of(values: Any, name: str) -> Tensor:
    """The values as a dense tensor of real numbers, whole numbers or bools, which shares memory where it can.

    Raises:
        TypeError: text, objects, dates, categories, complex numbers, a list of unequal rows; a sparse or nested tensor.
        ValueError: an array is masked, values of a table are missing, a tensor has no values, a list is
            empty, a number is too large for int64, or two columns of a table have the same name.
    """
    if isinstance(values, Tensor):
        return _checked(values, name)
    refuse_masked(values, name)
    table = as_table(values, name)
    if isinstance(table, nw.Series):
        array = _of_column(table, name if table.name in (None, "") else f"{name}, column {table.name!r}", shown(values))
    elif isinstance(table, nw.DataFrame):
        columns = [_of_column(one, f"{name}, column {one.name!r}", shown(values)) for one in table.iter_columns()]
        array = np.stack(columns, 1) if columns else np.empty((len(table), 0))
    elif hasattr(values, "__array__") or isinstance(values, memoryview):
        array = np.asarray(values)
    elif isinstance(values, Sequence) and not isinstance(values, str | bytes | bytearray):
        return _checked(_of_list(values, name), name)
    else:
        hint = ": pass one of its tensors, such as its mean, f or y" if hasattr(values, "log_density") else ""
        raise TypeError(f"{name} {_ALLOWED}; got {shown(values)}{hint}")
    return _checked(_of_numpy(array, name), name)


def without_graph(values: Tensor, name: str) -> Tensor:
    """Data of a user that nothing computes a gradient by.

    Raises:
        RuntimeError: the call is inside a transform of torch.func, or the data require a gradient, which would be 0.
    """
    if in_function_transform() or unpack_dual(values).tangent is not None:
        what = "a tensor of a transform of torch.func, or with a tangent"
    elif values.requires_grad and torch.is_grad_enabled():
        what = f"{shown(values)}, which requires a gradient"
    else:
        return values.detach()
    raise RuntimeError(
        f"{name} must be data alone: trainings, predictions and scores keep no gradient by it, and a derivative would be 0; "
        f"got {what}: differentiate run.module(draws=...), a torch.nn.Module of draws from the posterior, or pass "
        f"{name}.detach() outside of transforms"
    )


def copied(values: Any, source: Any = None) -> Any:
    """A copy of a tensor or an array, without its graph, which later changes by the caller do not reach.

    If `source`, of which the values were made and by default themselves, is in a file that is mapped, they stay there.
    """
    if _is_mapped(values if source is None else source):
        return values
    return values.detach().clone() if isinstance(values, Tensor) else values.copy()


def is_frame(values: Any) -> bool:
    """Whether this is a data frame of pandas, polars or pyarrow."""
    return nw.dependencies.is_into_dataframe(values)


def as_table(values: Any, name: str) -> Any:
    """A data frame or a column of pandas, polars or pyarrow as that of narwhals; other values as they are.

    Sparse columns of pandas, which narwhals does not read, become dense.

    Raises:
        ValueError: columns have the same name.
    """
    pandas = nw.dependencies.get_pandas()
    if nw.dependencies.is_pandas_dataframe(values):
        kinds = {label: kind.subtype for label, kind in values.dtypes.items() if isinstance(kind, pandas.SparseDtype)}
        values = values.astype(kinds) if kinds else values
    elif nw.dependencies.is_pandas_series(values) and isinstance(values.dtype, pandas.SparseDtype):
        values = values.sparse.to_dense()
    try:
        return nw.from_native(values, eager_only=True, allow_series=True, pass_through=True)
    except DuplicateError:
        raise ValueError(
            f"{name} must have columns of different names; got a DataFrame in which one is twice"
        ) from None


def refuse_masked(values: Any, name: str) -> None:
    """Raise a ValueError for a masked array, or a list that has one."""
    for each in (values, *(values if isinstance(values, list | tuple) else ())):
        if isinstance(each, np.ma.MaskedArray):
            raise ValueError(
                f"{name} must have a value everywhere; got a masked array of shape {list(each.shape)}: fill it "
                "(.filled(...)), or leave rows out"
            )


def labels_of(labels: Any, rows: int, name: str) -> list[Hashable]:
    """One label per row, from a list, an array, a tensor or a column.

    Raises:
        ValueError: another number of labels, or labels that have no hash or are missing: None, NaN or masked.
    """
    listed = labels.tolist() if hasattr(labels, "tolist") else labels
    listed = list(listed) if not isinstance(listed, str) and hasattr(listed, "__iter__") else []
    if len(listed) != rows or not all(isinstance(label, Hashable) for label in listed):
        raise ValueError(
            f"{name} must have one label for each of the {rows} rows; got {shown(labels)} with {len(listed)}"
        )
    missing = [row for row, label in enumerate(listed) if label is None or (label == label) is not True]
    if missing:
        raise ValueError(
            f"{name} must have a label in every row; got None or NaN in {len(missing)} of {rows} rows, the first in row "
            f"{missing[0]}: give each of these rows the label of its group, or leave them out"
        )
    return listed


def _checked(values: Tensor, name: str) -> Tensor:
    """A tensor, if it is dense, has values, and these are real numbers."""
    if values.is_nested:
        raise TypeError(f"{name} {_ALLOWED}, with rows of one shape; got a nested tensor")
    reason = why_not_real(values)
    if reason:
        kind = ValueError if values.is_meta else TypeError
        raise kind(f"{name} {_ALLOWED}; got {shown(values)}, {reason}")
    if values.dtype in _UNSIGNED:
        raise TypeError(f"{name} {_ALLOWED}; got {shown(values)} of {values.dtype}: convert it to int64")
    return values.resolve_neg()


def _of_numpy(values: np.ndarray[Any, Any], name: str) -> Tensor:
    """An array of any strides and byte order."""
    if values.dtype.kind not in _REAL or values.dtype.itemsize > 8:
        raise TypeError(f"{name} {_ALLOWED}; got an array of dtype {values.dtype} and shape {list(values.shape)}")
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    odd = any(step < 0 or step % values.dtype.itemsize for step in values.strides)
    if odd or not (values.flags.writeable or _is_mapped(values)):
        values = np.array(values, order="C")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # data are never written to
        return torch.from_numpy(values)


def _is_mapped(values: Any) -> bool:
    """Whether the values are in a file that is mapped into memory: a copy would take the memory of all of it."""
    while values is not None and not isinstance(values, np.memmap):
        values = getattr(values, "base", None)
    return values is not None


def _of_column(column: Any, name: str, of: str) -> np.ndarray[Any, Any]:
    """A column of numbers in the order of its rows; its errors name the column, the row, and the table (`of`)."""
    if not (column.dtype.is_numeric() or column.dtype == nw.Boolean):
        raise TypeError(
            f"{name}, must be of real numbers; got dtype {column.dtype} in {of}: convert it to numbers first; "
            "Dataset.from_frame reads text and categories"
        )
    rows = column.is_null().to_numpy()
    if rows.any():
        raise ValueError(
            f"{name}, must have a number in every row; got NaN or null in {int(rows.sum())} rows of {of}, the first in "
            f"row {int(rows.argmax())}"
        )
    return (column.cast(nw.Float64) if column.dtype.is_decimal() else column).to_numpy()


def _of_list(values: Sequence[Any], name: str) -> Tensor:
    """Numbers, or nested lists of equally many numbers."""
    if not values:
        raise ValueError(f"{name} must contain at least one observation; got an empty {type(values).__name__}")
    try:
        return torch.as_tensor(np.asarray(values) if any(isinstance(value, np.ndarray) for value in values) else values)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise TypeError(f"{name} {_ALLOWED} in equally long rows; got {shown(values)}: {error}") from None


def near(want: Tensor, got: Tensor, tolerance: float, least: float = 0.0) -> bool:
    """Whether two tensors agree up to rounding, relative to the largest entry or to `least` if that is larger.

    Integers must be equal. Entries are not compared where `want` is NaN or infinite.
    """
    if want.shape != got.shape or not (want.is_floating_point() and want.numel()):
        return torch.equal(want, got)
    error, size = (value.where(want.isfinite(), 0).abs().max() for value in (want - got, want))
    return bool(error <= tolerance * size.clamp_min(max(least, torch.finfo(want.dtype).tiny)))
