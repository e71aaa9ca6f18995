"""Two tables of the UCI Machine Learning Repository: the noise of airfoils, and bicycles hired per hour.

If PYRODROP_DATA is set, files are read from ``$PYRODROP_DATA/tables``. Otherwise they are downloaded once and cached. Tables
are those of https://github.com/scikit-learn-contrib/bde, and so is the first split: scikit-learn's ``train_test_split`` with
``random_state=0``.
"""

from __future__ import annotations

import gzip
import io
import os

import numpy as np
import torch

from pyrodrop.data.download import data_file
from pyrodrop.data.splits import Splits

COMMIT = "4774a289e10ab81211be7bc0ae77548e987de47a"
URL = f"https://raw.githubusercontent.com/scikit-learn-contrib/bde/{COMMIT}/bde/data/{{file}}"
SOURCE = f"UCI Machine Learning Repository (CC BY 4.0), by GitHub scikit-learn-contrib/bde at {COMMIT}"
AIRFOIL = "356556903993df2c20396f645e473f363df736f7f93899c2e25350f56d0e4d92"
BIKES = "b03a2d02e8c10f435c43c7f0b358b7e34a003afea53dbc37f0183f2763295133"
BIKES_GZ = "4aed933551d6ee59c59c4a8a56f3888023d1c7058a12d7691f5084424183a161"  # of the same table in PYRODROP_DATA
_NOT_INPUTS = {"instant", "dteday", "casual", "registered"}  # y is the sum of the last two


def airfoil() -> Splits:
    """The sound level of airfoils in a wind tunnel: x ``[N, 5]``, y ``[N, 1]`` in dB, 1,503 rows, five random splits.

    Raises:
        FileNotFoundError: PYRODROP_DATA is set, but the file does not exist.
        ConnectionError: the file cannot be downloaded.
        ValueError: the file has the wrong content.
    """
    path = data_file("tables/airfoil.csv", "the table of airfoils", URL.format(file="airfoil.csv"), AIRFOIL)
    return _splits("airfoil", path.read_text(encoding="utf-8"), "target", 5)


def bikes() -> Splits:
    """Bicycles hired per hour in Washington, 2011 and 2012: x ``[N, 12]``, counts y ``[N, 1]``, 17,379 rows, one split.

    x describes calendar and weather by numbers: season, year, month, hour, holiday, day of the week, working day, weather,
    temperature, felt temperature, humidity and wind. The hours before and after a test row are mostly training rows, but
    their counts are not in x.

    Raises:
        FileNotFoundError, ConnectionError, ValueError: as `airfoil`.
    """
    local, url = bool(os.environ.get("PYRODROP_DATA")), URL.format(file="bike_sharing_dataset/hour.csv")
    name = "bike_sharing_hour.csv" + ".gz" * local
    path = data_file(f"tables/{name}", "the table of bicycles", url, BIKES_GZ if local else BIKES)
    content = path.read_bytes()
    return _splits("bikes", (gzip.decompress(content) if local else content).decode(), "cnt", 1)


def _splits(name: str, content: str, target: str, count: int) -> Splits:
    """Random splits of a table with a header: the first fifth of each permutation of its rows, rounded up, is held out."""
    header, *_ = content.split("\n", 1)
    names = [column.strip() for column in header.split(",")]
    inputs = [number for number, column in enumerate(names) if column not in _NOT_INPUTS | {target}]
    values = np.genfromtxt(io.StringIO(content), delimiter=",", skip_header=1)
    orders = [np.random.RandomState(seed).permutation(len(values)) for seed in range(count)]
    held_out = -(-len(values) // 5)
    x, y = (torch.from_numpy(values[:, columns].copy()) for columns in (inputs, [names.index(target)]))
    return Splits(name, x, y, [(order[held_out:], order[:held_out]) for order in orders], SOURCE)
