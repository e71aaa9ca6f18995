"""Turned images, against scipy.ndimage."""

from __future__ import annotations

import pytest
import torch
from scipy import ndimage

from pyrodrop.data import turned


@pytest.mark.parametrize("size", [28, 7])
def test_images_turn_as_scipy_turns_them(size: int) -> None:
    x, angles = torch.rand(3, 2, size, size), torch.tensor([0.0, 16.4, 90.0, 137.0, 180.0, -30.0])
    ours = turned(x, angles)
    assert ours.shape == (6, 3, 2, size, size)
    for a, degrees in enumerate(angles.tolist()):
        theirs = ndimage.rotate(x.numpy(), degrees, axes=(3, 2), reshape=False, order=1)
        rows, columns = torch.meshgrid(*(torch.arange(size) - (size - 1) / 2,) * 2, indexing="ij")
        within = (rows**2 + columns**2).sqrt() < size / 2 - 1
        torch.testing.assert_close(ours[a][..., within], torch.tensor(theirs)[..., within], atol=1e-4, rtol=0)


def test_a_quarter_turns_exactly_and_counterclockwise() -> None:
    x = torch.rand(1, 1, 5, 5)
    torch.testing.assert_close(turned(x, torch.tensor([90.0]))[0], torch.rot90(x, 1, (2, 3)), atol=1e-5, rtol=0)
    torch.testing.assert_close(turned(x, torch.tensor([0.0, 180.0]))[1], x.flip(2, 3), atol=1e-5, rtol=0)
