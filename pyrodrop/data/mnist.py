"""MNIST: 60,000 digits for training and 10,000 for testing, 28 x 28 grey values; and rotations of images.

LeCun, Cortes & Burges, The MNIST database of handwritten digits. If the environment variable PYRODROP_DATA is set, files
are read from ``$PYRODROP_DATA/mnist``. Otherwise they are downloaded once and cached. In both cases the hash of the content
is checked.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pyrodrop.checks import Flag, checked, tensor
from pyrodrop.data.dataset import Dataset
from pyrodrop.data.download import data_file
from pyrodrop.data.splits import Split
from pyrodrop.failed import Failed
from pyrodrop.scaling import Standardize

URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
MD5 = {  # of the files at this address, the same as in torchvision
    "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
}
SHA256 = {  # of the uncompressed IDX files, because the gzip headers differ between mirrors
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
SOURCE = "LeCun, Cortes & Burges, The MNIST database of handwritten digits"


@checked
def mnist(
    *,
    flat: Annotated[bool, Flag("whether images are flattened")] = True,
    progress: Annotated[bool, Flag("whether to show a progress bar")] = True,
) -> Split:
    """MNIST: grey values x in [0, 1], float32, ``[N, 784]`` or ``[N, 1, 28, 28]``, and digits y, int64, ``[N]``.

    Args:
        flat: whether images are flattened to ``[N, 784]``.
        progress: whether to show a progress bar on a terminal during downloads.

    Raises:
        FileNotFoundError: PYRODROP_DATA is set, but a file does not exist.
        ConnectionError: a file cannot be downloaded.
        ValueError: a file has the wrong content.
        TypeError: an argument is neither True nor False.
    """
    splits = {}
    for name, stem in (("train", "train"), ("test", "t10k")):
        images = _read(f"{stem}-images-idx3-ubyte", progress).float().div_(255)
        labels = _read(f"{stem}-labels-idx1-ubyte", progress).long()
        x = images.flatten(1) if flat else images[:, None]
        splits[name] = Dataset(x, labels, inputs=Standardize(), targets=Standardize())
    return Split("mnist", splits["train"], splits["test"], "grey value", "digit", SOURCE)


def _read(name: str, progress: bool) -> Tensor:
    """Read a file in the IDX format: the number of axes is in the fourth byte, then come their sizes and the values."""
    known_hash = None if os.environ.get("PYRODROP_DATA") else f"md5:{MD5[name]}"
    path = data_file(f"mnist/{name}.gz", f"MNIST's {name}.gz", f"{URL}{name}.gz", known_hash, progress=progress)
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise Failed(f"{path} is not a complete gzip file ({error}); remove it and try again") from None
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != SHA256[name]:
        raise Failed(
            f"{path} does not contain MNIST's {name}: the SHA-256 of its content is {sha256} and should be {SHA256[name]}; "
            "remove it and try again"
        )
    header = 4 + 4 * content[3]
    shape = tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, header, 4))
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy())


def turned(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate every image counterclockwise about its centre by every angle: ``[A, N, C, H, H]``.

        x'(r) = x(R(-angle) r),   zero outside,   bilinear between pixels

    Args:
        images: square images, ``[N, C, H, H]``.
        degrees: angles in degrees, ``[A]``.

    Raises:
        ValueError: a shape is wrong, or a value is NaN or infinite.
        TypeError: an argument is no tensor of real numbers, or the images are not of a floating-point dtype.
    """
    tensor(images, "images", "the images to rotate")
    tensor(degrees, "degrees", "the angles")
    if not images.is_floating_point():
        raise TypeError(f"images must be of a floating-point dtype; got {images.dtype}: convert them with .float()")
    if images.dim() != 4 or images.shape[-1] != images.shape[-2] or degrees.dim() != 1:
        raise ValueError(
            f"turned needs square images [N, C, H, H] and degrees [A]; got {tuple(images.shape)} and {tuple(degrees.shape)}"
        )
    angles, (n, *shape) = torch.deg2rad(degrees.to(images)), images.shape
    cos, sin, zero = angles.cos(), angles.sin(), torch.zeros_like(angles)
    # The source position of each pixel, with x to the right and y down: counterclockwise as displayed.
    back = torch.stack([torch.stack([cos, -sin, zero], -1), torch.stack([sin, cos, zero], -1)], 1)
    count = len(angles)
    grid = F.affine_grid(back, [count, n * shape[0], *shape[1:]], align_corners=False)
    stack = images.reshape(1, n * shape[0], *shape[1:]).expand(count, -1, -1, -1)
    return F.grid_sample(stack, grid, align_corners=False).reshape(count, n, *shape)
