"""MNIST: 60,000 digits for training and 10,000 for testing, 28 x 28 grey values.

LeCun, Cortes & Burges, The MNIST database of handwritten digits. Files are read from ``$PYRODROP_DATA/mnist`` where that is
set, and otherwise fetched once, resuming if need be, and cached; either way what they hold is checked by its hash.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path

import numpy as np
import pooch
import torch
from torch import Tensor

from pyrodrop.data.dataset import Dataset, Split
from pyrodrop.data.download import fetch
from pyrodrop.scaling import Standardize

URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
# SHA-256 of the IDX files without compression: mirrors wrap the same bytes in different gzip headers.
SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
SOURCE = "LeCun, Cortes & Burges, The MNIST database of handwritten digits"


def mnist(*, flat: bool = True, progress: bool = True) -> Split:
    """The digits: x in [0, 1], ``[N, 784]`` or ``[N, 1, 28, 28]`` float32, y the digit, ``[N]``.

    Args:
        flat: whether an image is a row.
        progress: whether a download shows a bar on a terminal.

    Raises:
        FileNotFoundError: PYRODROP_DATA is set and a file is not there.
        ConnectionError: a file cannot be fetched.
        ValueError: a file does not hold what it should.
    """
    parts = {}
    for part, stem in (("train", "train"), ("test", "t10k")):
        images = _read(f"{stem}-images-idx3-ubyte", progress).float().div_(255)
        labels = _read(f"{stem}-labels-idx1-ubyte", progress).long()
        x = images.flatten(1) if flat else images[:, None]
        parts[part] = Dataset(x, labels, inputs=Standardize(), targets=Standardize())
    return Split("mnist", parts["train"], parts["test"], "grey value", "digit", SOURCE)


def _read(name: str, progress: bool) -> Tensor:
    path = _path(name, progress)
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise ValueError(
            f"{path} is not a whole gzip file ({error}) of MNIST's {name}, whose content has the SHA-256 {SHA256[name]}; "
            "remove it and try again"
        ) from None
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256[name]:
        raise ValueError(
            f"{path} does not hold MNIST's {name}: the SHA-256 of its content is {found} and should be {SHA256[name]}; "
            "remove it and try again"
        )
    header = 4 + 4 * content[3]
    shape = tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, header, 4))
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy())


def _path(name: str, progress: bool) -> Path:
    local = os.environ.get("PYRODROP_DATA")
    if local:
        path = Path(local) / "mnist" / f"{name}.gz"
        if not path.is_file():
            raise FileNotFoundError(
                f"PYRODROP_DATA is set, so MNIST's {name}.gz is expected at {path}; it is not there"
            )
        return path
    try:
        return fetch(URL + f"{name}.gz", Path(pooch.os_cache("pyrodrop")) / "mnist" / f"{name}.gz", progress=progress)
    except OSError as error:
        raise ConnectionError(
            f"MNIST's {name}.gz could not be fetched from {URL} ({error}); with the four .gz files in a folder mnist, set "
            "PYRODROP_DATA to the folder above it"
        ) from error
