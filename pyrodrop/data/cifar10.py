"""CIFAR-10: 50,000 colour images for training and 10,000 for testing, 32 x 32 pixels, ten classes.

Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images, https://www.cs.toronto.edu/~kriz/cifar.html. A
batch has 10,000 records of 3,073 bytes: the label, then 1,024 red, 1,024 green and 1,024 blue values, row by row.

If the environment variable PYRODROP_DATA is set, the published binary version is read from
``$PYRODROP_DATA/cifar10/cifar-10-binary.tar.gz``. Otherwise it (170 MB) is downloaded once and cached. Its hash is
checked, and nothing is unpacked to the disk.
"""

from __future__ import annotations

import tarfile
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from pyrodrop.checks import Flag, checked
from pyrodrop.data.dataset import Dataset
from pyrodrop.data.download import data_file
from pyrodrop.data.splits import Split
from pyrodrop.scaling import Standardize

ARCHIVE = "cifar-10-binary.tar.gz"
URL = f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}"
ARCHIVE_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
FOLDER = "cifar-10-batches-bin"  # in the archive
TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = "test_batch.bin"
SHAPE = (3, 32, 32)
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SOURCE = "Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images: CIFAR-10"
_RECORD = 1 + 3 * 32 * 32


@checked
def cifar10(*, progress: Annotated[bool, Flag("whether to show a progress bar")] = True) -> Split:
    """CIFAR-10: images x in [0, 1], float32, channels first, ``[N, 3, 32, 32]``, and classes y, int64, ``[N]``.

    Both parts have the same standardisation of x: the mean and the standard deviation of every channel over the training
    images. The names of the classes are in `pyrodrop.data.cifar10.CLASSES`.

    Args:
        progress: whether to show a progress bar on a terminal during the download.

    Raises:
        FileNotFoundError: PYRODROP_DATA is set, but does not have the archive.
        ConnectionError: the archive cannot be downloaded.
        ValueError: the archive has the wrong content.
        TypeError: `progress` is neither True nor False.

    Source: https://www.cs.toronto.edu/~kriz/cifar.html
    """
    path = data_file(f"cifar10/{ARCHIVE}", f"{ARCHIVE} of CIFAR-10", URL, ARCHIVE_SHA256, progress=progress)
    with tarfile.open(path, "r:gz") as archive:
        *batches, test = (_records(archive.extractfile(f"{FOLDER}/{name}")) for name in (*TRAIN, TEST))
    train = np.concatenate(batches)
    inputs = _per_channel(train)
    return Split("cifar10", _dataset(train, inputs), _dataset(test, inputs), "value of a pixel", "class", SOURCE)


def _records(batch: Any) -> np.ndarray:
    """The records of a batch of the archive, ``[N, 3073]`` bytes."""
    return np.frombuffer(batch.read(), np.uint8).reshape(-1, _RECORD)


def _per_channel(records: np.ndarray) -> Standardize:
    """Mean and standard deviation of every channel of x, ``[3, 1, 1]``, from the counts of the 256 values."""
    values = np.arange(256) / 255
    loc, scale = [], []
    for pixels in np.moveaxis(_pixels(records), 1, 0):
        share = np.bincount(pixels.reshape(-1), minlength=256) / pixels.size
        mean = float(share @ values)
        loc.append(mean)
        scale.append(float(share @ (values - mean) ** 2) ** 0.5)
    return Standardize(torch.tensor(loc).reshape(3, 1, 1), torch.tensor(scale).reshape(3, 1, 1))


def _dataset(records: np.ndarray, inputs: Standardize) -> Dataset:
    x = torch.from_numpy(_pixels(records).astype(np.float32)).div_(255)
    labels: Tensor = torch.from_numpy(records[:, 0].astype(np.int64))
    return Dataset(x, labels, inputs=inputs, targets=Standardize())


def _pixels(records: np.ndarray) -> np.ndarray:
    return records[:, 1:].reshape(-1, *SHAPE)
