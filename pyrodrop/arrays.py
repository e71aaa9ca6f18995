"""Numbers that users bring, as tensors: tensors, NumPy arrays, pandas tables and columns, and lists of numbers.

    tensor              as it is, without a copy
    NumPy array         of any real dtype, byte order and strides; long doubles become float64; np.memmap stays mapped
    pandas DataFrame    [rows, columns] of their common dtype; nullable columns too, if no value is missing
    pandas Series       [rows], in the order of its rows, whatever its index says
    list, tuple, range  of numbers: torch's default dtype for real numbers, int64 for whole ones

Whole numbers stay whole and bools stay bools, so that labels and token ids keep their meaning. Unsigned numbers of 16 bits
and more, for which torch has few operations, become int64. pandas is not imported: its tables are known by their methods.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrodrop.arguments import shown

_DTYPES = frozenset({
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
})  # fmt: skip
_UNSIGNED = frozenset({torch.uint16, torch.uint32, torch.uint64})
_REAL = "biuf"  # NumPy's kinds of bools, whole and real numbers
_ALLOWED = "must be a tensor, a NumPy array, a pandas DataFrame or Series, or a list of real numbers"


def tensor_of(values: Any, name: str, *, missing: bool = False) -> Tensor:
    """The values as a dense tensor of real numbers, whole numbers or bools, which shares memory where it can.

    Raises:
        TypeError: it is no array of numbers: text, objects, dates, categories, complex numbers, a ragged list; or a sparse,
            quantised or nested tensor.
        ValueError: values are missing (a mask, NaN or NA of a table), a tensor has no values (``meta``), or a number is too
            large for int64.
    """
    if isinstance(values, Tensor):
        return _checked(values, name)
    if isinstance(values, np.ma.MaskedArray):
        return _checked(_of_numpy(_unmasked(values, name), name), name)
    if is_frame(values):
        return _checked(_of_numpy(_of_frame(values, name, missing), name), name)
    if hasattr(values, "index") and hasattr(values, "iloc"):
        label = "" if getattr(values, "name", None) is None else f", column {values.name!r}"
        return _checked(_of_numpy(_of_column(values, f"{name}{label}", values, missing), name), name)
    if hasattr(values, "__array__") or isinstance(values, memoryview):
        return _checked(_of_numpy(np.asarray(values), name), name)
    if isinstance(values, Sequence) and not isinstance(values, str | bytes | bytearray):
        return _checked(_of_list(values, name), name)
    raise TypeError(f"{name} {_ALLOWED}; got {shown(values)}")


def is_frame(values: Any) -> bool:
    """Whether this is a pandas DataFrame, which is known by its methods."""
    return hasattr(values, "columns") and hasattr(values, "iloc") and not isinstance(values, type)


def _checked(values: Tensor, name: str) -> Tensor:
    """A tensor, if it is dense, has values, and these are real numbers."""
    if values.is_nested:
        raise TypeError(f"{name} {_ALLOWED}, with rows of one shape; got a nested tensor")
    if values.layout != torch.strided:
        raise TypeError(
            f"{name} {_ALLOWED}, and a tensor must be dense; got a {values.layout} tensor of shape {list(values.shape)}: "
            "convert it with .to_dense()"
        )
    if values.is_quantized:
        raise TypeError(f"{name} {_ALLOWED}; got a quantised tensor, {values.dtype}: convert it with .dequantize()")
    if values.is_meta:
        raise ValueError(f"{name} must have values; got a meta tensor of shape {list(values.shape)}, which has none")
    if values.dtype in _UNSIGNED:
        wide = values.to(torch.int64)
        if bool((wide < 0).any()):
            raise ValueError(
                f"{name} must be at most {2**63 - 1}, what int64 holds; got larger numbers of {values.dtype}"
            )
        return wide
    if values.dtype not in _DTYPES:
        hint = ": pass real and imaginary part as columns, torch.view_as_real(...)" if values.is_complex() else ""
        raise TypeError(f"{name} {_ALLOWED}; got {values.dtype} of shape {list(values.shape)}{hint}")
    return values.resolve_neg()


def _of_numpy(values: np.ndarray[Any, Any], name: str) -> Tensor:
    """An array of any strides and byte order."""
    if values.dtype.kind == "c":
        raise TypeError(
            f"{name} {_ALLOWED}; got complex numbers, {values.dtype} of shape {list(values.shape)}: pass real and imaginary "
            "part as columns"
        )
    if values.dtype.kind not in _REAL:
        raise TypeError(f"{name} {_ALLOWED}; got an array of dtype {values.dtype} and shape {list(values.shape)}")
    if values.dtype.kind == "f" and values.dtype.itemsize > 8:
        with np.errstate(over="ignore"):  # what becomes infinite is refused later
            values = values.astype(np.float64)
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


def _unmasked(values: Any, name: str) -> np.ndarray[Any, Any]:
    """The data of a masked array without a masked value."""
    masked = np.argwhere(np.ma.getmaskarray(values))
    if len(masked):
        raise ValueError(
            f"{name} must have a value everywhere; got a masked array of shape "
            f"{list(values.shape)} with {len(masked)} of {values.size} values masked, the first at "
            f"index {masked[0].tolist()}: fill them (.filled(...)) or leave their rows out"
        )
    return np.asarray(values.data)


def _of_frame(frame: Any, name: str, missing: bool) -> np.ndarray[Any, Any]:
    """A table of numbers, ``[rows, columns]``."""
    labels = list(frame.columns)
    columns = [
        _of_column(frame.iloc[:, place], f"{name}, column {label!r}", frame, missing)
        for place, label in enumerate(labels)
    ]
    return np.stack(columns, 1) if columns else np.empty((len(frame), 0))


def _of_column(column: Any, name: str, of: Any, allowed: bool) -> np.ndarray[Any, Any]:
    """A column of numbers in the order of its rows; its errors name column and row, and the table that it is `of`."""
    kind = getattr(column.dtype, "kind", "O")
    if kind not in _REAL:
        hint = ": pass its codes, .cat.codes" if hasattr(column, "cat") else ": convert it to numbers first"
        raise TypeError(f"{name}, must be of real numbers; got dtype {column.dtype} in {shown(of)}{hint}")
    missing = np.flatnonzero(np.asarray(column.isna()))
    if len(missing) and allowed:
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    if len(missing):
        row = int(missing[0])
        raise ValueError(
            f"{name}, must have a number in every row; got NaN or NA in {len(missing)} rows of {shown(of)}, the first in "
            f"row {row}, index {column.index[row]!r}"
        )
    return np.asarray(column.to_numpy(dtype=f"{kind}{getattr(column.dtype, 'itemsize', 8)}"))


def _of_list(values: Sequence[Any], name: str) -> Tensor:
    """Numbers, or nested lists of equally many numbers."""
    if not values:
        raise ValueError(f"{name} must contain at least one observation; got an empty {type(values).__name__}")
    if any(isinstance(value, Tensor) and value.dim() for value in values):
        raise TypeError(
            f"{name} {_ALLOWED}; got a {type(values).__name__} of tensors, which may be rows or several inputs: join rows "
            "with torch.stack(...), and pass several inputs as a tuple"
        )
    if any(isinstance(value, np.ndarray) for value in values):
        shapes = {np.shape(value) for value in values}
        if len(shapes) > 1:
            raise TypeError(
                f"{name} {_ALLOWED} of equally long rows; got rows of the shapes {sorted(map(str, shapes))}"
            )
        return _of_numpy(np.asarray(values), name)
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise TypeError(f"{name} {_ALLOWED} in equally long rows; got {shown(values)}: {error}") from None
