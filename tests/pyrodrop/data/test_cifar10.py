"""CIFAR-10: batches in the published layout, small ones made here with hashes of their own."""

from __future__ import annotations

import hashlib
import importlib
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from pyrodrop import data
from pyrodrop.data.cifar10 import ARCHIVE, FOLDER, TEST, TRAIN

COUNT = 12  # images of a small batch
module = importlib.import_module("pyrodrop.data.cifar10")


@pytest.fixture
def batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Six batches of random images in an archive whose hash is taken for the published one."""
    rng = np.random.default_rng(0)
    files = {}
    for name in (*TRAIN, TEST):
        records = rng.integers(0, 256, (COUNT, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(COUNT) % 10
        files[name] = records.tobytes()
    monkeypatch.setenv("PYRODROP_DATA", str(tmp_path))
    (tmp_path / "cifar10").mkdir()
    path = tmp_path / "cifar10" / ARCHIVE
    with tarfile.open(path, mode="w:gz") as archive:
        for name, content in {"batches.meta.txt": b"airplane\n", **files}.items():
            member = tarfile.TarInfo(f"{FOLDER}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    monkeypatch.setattr(module, "ARCHIVE_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    return files


def test_images_are_channels_first(batches: dict[str, bytes]) -> None:
    """Pixel by pixel, from the published description: label, red, green, blue, each row by row."""
    split = data.cifar10()
    assert split.name == "cifar10"
    assert (tuple(split.train.x.shape), tuple(split.test.x.shape)) == ((5 * COUNT, 3, 32, 32), (COUNT, 3, 32, 32))
    assert (split.train.x.dtype, split.train.y.dtype) == (torch.float32, torch.int64)
    for part, index, name, number in (
        (split.train, 0, "data_batch_1.bin", 0),
        (split.train, COUNT + 3, "data_batch_2.bin", 3),
        (split.train, 5 * COUNT - 1, "data_batch_5.bin", COUNT - 1),
        (split.test, 7, "test_batch.bin", 7),
    ):
        record = batches[name][3073 * number : 3073 * (number + 1)]
        assert int(part.y[index]) == record[0]
        for channel, row, column in ((0, 0, 0), (0, 1, 5), (1, 31, 2), (2, 17, 31)):
            byte = record[1 + 1024 * channel + 32 * row + column]
            assert float(part.x[index, channel, row, column]) == pytest.approx(byte / 255, rel=1e-6)


@pytest.mark.usefixtures("batches")
def test_channels_are_standardised_by_the_training_images() -> None:
    split = data.cifar10()
    x = split.train.x.double()
    for part in (split.train, split.test):
        torch.testing.assert_close(part.inputs.loc.flatten().double(), x.mean((0, 2, 3)))  # type: ignore[union-attr]
        spread = x.transpose(0, 1).flatten(1).std(1, correction=0)
        torch.testing.assert_close(part.inputs.scale.flatten().double(), spread)  # type: ignore[union-attr]
