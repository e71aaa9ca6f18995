"""Rotation of images about their centre.

x'(r) = x(R(-angle) r),   zero outside,   bilinear between pixels
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pyrodrop.arguments import tensor


def turned(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate every image counterclockwise by every angle: ``[A, N, C, H, H]``.

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
