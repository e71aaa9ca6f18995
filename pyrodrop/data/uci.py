"""The UCI regression data sets of Hernández-Lobato & Adams (2015), arXiv:1502.05336, and Gal & Ghahramani (2016),
arXiv:1506.02142, with the published splits.

YearPredictionMSD has the split of the repository, in which no artist is in both parts. The first split of `airfoil` and
`bikes` is scikit-learn's ``train_test_split`` with ``random_state=0``, as in scikit-learn-contrib/bde.
"""

from __future__ import annotations

import numpy as np

from pyrodrop.data.splits import Splits, permuted
from pyrodrop.data.tables import BDE_AT, TABLES, UCI, UCI_AT, YEAR_URL, numbers
from pyrodrop.failed import Failed
from pyrodrop.names import known

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
