"""CIFAR-10: batches in the published layout, small ones made here with hashes of their own, and what is refused."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import io
import json
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyrodrop import data
from pyrodrop.data.cifar10 import ARCHIVE, CLASSES, FOLDER, JPEG_SHA256, SHA256

COUNT = 12  # images of a small batch
module = importlib.import_module("pyrodrop.data.cifar10")


def batches() -> dict[str, bytes]:
    """Six batches of random images, with all labels."""
    rng = np.random.default_rng(0)
    made = {}
    for name in SHA256:
        records = rng.integers(0, 256, (COUNT, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(COUNT) % 10
        made[name] = records.tobytes()
    return made


def packed(files: dict[str, bytes]) -> bytes:
    """A .tar.gz of these files."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def in_folder(files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{FOLDER}/{name}": content for name, content in files.items()}


def trusted(monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes], archive: bytes | None = None) -> None:
    """Take the hashes of these files for the published ones, and their size for that of a batch."""
    monkeypatch.setattr(module, "RECORDS", COUNT)
    monkeypatch.setattr(module, "SHA256", {name: hashlib.sha256(files[name]).hexdigest() for name in SHA256})
    if archive is not None:
        monkeypatch.setattr(module, "HASHES", {kind: hashlib.new(kind, archive).hexdigest() for kind in module.HASHES})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where CIFAR-10 is read from."""
    monkeypatch.setenv("PYRODROP_DATA", str(tmp_path))
    (tmp_path / "cifar10" / FOLDER).mkdir(parents=True)
    return tmp_path / "cifar10"


def unpack(place: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (place / FOLDER / name).write_bytes(content)


def as_archive(place: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> None:
    content = packed({f"{FOLDER}/batches.meta.txt": b"airplane\n", **in_folder(files)})
    (place / ARCHIVE).write_bytes(content)
    trusted(monkeypatch, files, content)


@pytest.mark.parametrize("layout", ["archive", "folder"])
def test_images_are_channels_first(layout: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pixel by pixel, from the published description: label, red, green, blue, each row by row."""
    files = batches()
    if layout == "archive":
        as_archive(place, monkeypatch, files)
    else:
        unpack(place, files)
        trusted(monkeypatch, files)
    split = data.cifar10()
    assert split.name == "cifar10"
    assert (tuple(split.train.x.shape), tuple(split.test.x.shape)) == ((5 * COUNT, 3, 32, 32), (COUNT, 3, 32, 32))
    assert (split.train.x.dtype, split.train.y.dtype) == (torch.float32, torch.int64)
    for part, index, name, record in (
        (split.train, 0, "data_batch_1.bin", 0),
        (split.train, COUNT + 3, "data_batch_2.bin", 3),
        (split.train, 5 * COUNT - 1, "data_batch_5.bin", COUNT - 1),
        (split.test, 7, "test_batch.bin", 7),
    ):
        own = files[name][3073 * record : 3073 * (record + 1)]
        assert int(part.y[index]) == own[0]
        for channel, row, column in ((0, 0, 0), (0, 1, 5), (1, 31, 2), (2, 17, 31)):
            byte = own[1 + 1024 * channel + 32 * row + column]
            assert float(part.x[index, channel, row, column]) == pytest.approx(byte / 255, rel=1e-6)


def test_channels_are_standardised_by_the_training_images(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = batches()
    unpack(place, files)
    trusted(monkeypatch, files)
    split = data.cifar10()
    for part in (split.train, split.test):
        x = split.train.x.double()
        torch.testing.assert_close(part.inputs.loc.flatten().double(), x.mean((0, 2, 3)))  # type: ignore[union-attr]
        spread = x.transpose(0, 1).flatten(1).std(1, correction=0)
        torch.testing.assert_close(part.inputs.scale.flatten().double(), spread)  # type: ignore[union-attr]
    standard = split.train.inputs(split.train.x)  # type: ignore[misc]
    torch.testing.assert_close(standard.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)


def short(files: dict[str, bytes]) -> None:
    files["data_batch_3.bin"] = files["data_batch_3.bin"][:-1]


def long(files: dict[str, bytes]) -> None:
    files["test_batch.bin"] += bytes(3073)


def label(files: dict[str, bytes]) -> None:
    changed = bytearray(files["data_batch_2.bin"])
    changed[3073 * 4] = 10
    files["data_batch_2.bin"] = bytes(changed)


def pixel(files: dict[str, bytes]) -> None:
    changed = bytearray(files["data_batch_5.bin"])
    changed[100] ^= 1
    files["data_batch_5.bin"] = bytes(changed)


def exchanged(files: dict[str, bytes]) -> None:
    files["data_batch_1.bin"] = files["data_batch_2.bin"]


BROKEN: list[tuple[Callable[[dict[str, bytes]], None], str]] = [
    (short, r"data_batch_3.bin.* is no batch of 12 images.*has 36,875 bytes and should have 36,876, 3,073 for every image"),
    (label, r"data_batch_2.bin.*labels must be from 0 to 9; got 10 for image 4 and 1 such labels in all"),
    (pixel, r"data_batch_5.bin.* is not the published data_batch_5.bin: its SHA-256 hash is [0-9a-f]{64} and should be"),
    (exchanged, r"data_batch_1.bin.* is not the published data_batch_1.bin: its SHA-256"),
    (long, r"test_batch.bin.* must have at most 36,876 bytes when unpacked"),
]  # fmt: skip


@pytest.mark.parametrize("layout", ["archive", "folder"])
@pytest.mark.parametrize(("change", "message"), BROKEN, ids=[change.__name__ for change, _ in BROKEN])
def test_a_batch_that_is_not_the_published_one_is_refused(
    change: Callable[[dict[str, bytes]], None],
    message: str,
    layout: str,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right, wrong = batches(), batches()
    change(wrong)
    unpack(place, wrong)
    archive = packed(in_folder(wrong))
    if layout == "archive":
        (place / ARCHIVE).write_bytes(archive)
    trusted(monkeypatch, right, archive)
    with pytest.raises(ValueError, match=f"{place}.*remove it and try again") as found:
        data.cifar10()
    assert_matches(message, str(found.value))


def assert_matches(pattern: str, text: str) -> None:
    with pytest.raises(ValueError, match=pattern):
        raise ValueError(text)


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_both_hashes_of_the_archive_are_checked(kind: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_archive(place, monkeypatch, batches())
    data.cifar10()
    monkeypatch.setitem(module.HASHES, kind, "0" * len(module.HASHES[kind]))
    with pytest.raises(ValueError, match=f"{ARCHIVE} is not .* its {kind.upper()} hash is .* and should be 000"):
        data.cifar10()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda: packed(in_folder(batches()))[:-200], "is not a complete archive"),
        (lambda: b"no archive", "is not a complete archive"),
        (lambda: packed(batches()), "it lacks data_batch_1.bin, .*, test_batch.bin"),
        (lambda: packed(in_folder(dict(list(batches().items())[:5]))), "it lacks test_batch.bin"),
    ],
)
def test_an_archive_that_lacks_something_is_refused(
    content: Callable[[], bytes], message: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if it had the right hashes."""
    archive = content()  # once: gzip writes the time into it
    (place / ARCHIVE).write_bytes(archive)
    trusted(monkeypatch, batches(), archive)
    with pytest.raises(ValueError, match=message):
        data.cifar10()


def test_nothing_of_an_archive_is_written(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that leave the folder, links in the place of a batch and files beside the batches are passed over."""
    stream, files = io.BytesIO(), batches()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in {"../evil": b"1", "/evil": b"1", **in_folder(files)}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo(f"{FOLDER}/test_batch.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    (place / ARCHIVE).write_bytes(stream.getvalue())
    trusted(monkeypatch, files, stream.getvalue())
    before = sorted(place.parent.rglob("*"))
    assert len(data.cifar10().test) == COUNT
    assert sorted(place.parent.rglob("*")) == before


@pytest.mark.parametrize("version", ["binary", "jpeg-subset"])
def test_bombs_are_refused_in_little_memory(version: Any, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """50 MB of zeros, where a batch has 37 kB."""
    if version == "binary":
        bomb = packed({f"{FOLDER}/data_batch_1.bin": bytes(50_000_000)})
        (place / ARCHIVE).write_bytes(bomb)
        trusted(monkeypatch, batches(), bomb)
    else:
        (place.parent / "cifar10_jpeg_subset").mkdir()
        (place.parent / "cifar10_jpeg_subset" / "data_batch_1.bin.gz").write_bytes(gzip.compress(bytes(50_000_000)))
        trusted(monkeypatch, batches())
    tracemalloc.start()
    with pytest.raises(ValueError, match="must have at most 36,876 bytes when unpacked.*remove it and try again"):
        data.cifar10(version=version)
    assert tracemalloc.get_traced_memory()[1] < 10**7
    tracemalloc.stop()


def test_what_is_missing_is_said(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpack(place, {"data_batch_1.bin": b"1"})
    with pytest.raises(
        FileNotFoundError, match=r"expected as .*tar.gz or as the six batches.*lacks data_batch_2.bin, .*toronto"
    ):
        data.cifar10()
    with pytest.raises(FileNotFoundError, match="data_batch_1.bin.gz of the JPEG subset of CIFAR-10 is expected at"):
        data.cifar10(version="jpeg-subset")
    monkeypatch.delenv("PYRODROP_DATA")
    with pytest.raises(FileNotFoundError, match="version='jpeg-subset' is not downloaded: set PYRODROP_DATA"):
        data.cifar10(version="jpeg-subset")
    with pytest.raises(ValueError, match="version must be .*binary.*jpeg-subset.*got 'jpeg'"):
        data.cifar10(version="jpeg")  # type: ignore[arg-type]


def test_the_jpeg_subset_is_named_and_of_equal_classes(data_folder: Path) -> None:
    split = data.cifar10(version="jpeg-subset")
    assert split.name == "cifar10-jpeg-subset"
    assert "JPEG" in split.source
    assert split.train.y.bincount().tolist() == [1000] * 10
    assert split.test.y.bincount().tolist() == [200] * 10
    assert len(CLASSES) == 10
    assert 0 <= float(split.test.x.min()) < float(split.test.x.max()) <= 1


def test_the_jpeg_subset_is_never_taken_for_cifar10(
    data_folder: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batch has the size of a published one; put in the place of CIFAR-10, it is recognised by its hash."""
    with gzip.open(data_folder / "cifar10_jpeg_subset" / "data_batch_1.bin.gz") as file:
        content = file.read()
    assert hashlib.sha256(content).hexdigest() == JPEG_SHA256["data_batch_1.bin"]
    unpack(place, dict.fromkeys(SHA256, content))
    with pytest.raises(
        ValueError, match="is not the published data_batch_1.bin.*JPEG subset, which is version='jpeg-subset'"
    ):
        data.cifar10()


def test_the_hashes_are_those_that_are_published() -> None:
    """The MD5 is that of the page of the data set; all are hexadecimal, distinct, and none is of the subset."""
    assert module.HASHES["md5"] == "c32a1d4ab5d03f1284b67883e8d87530"
    every = [module.HASHES["sha256"], *SHA256.values(), *JPEG_SHA256.values()]
    assert len(set(every)) == len(every) == 9
    assert all(len(value) == 64 and int(value, 16) for value in json.loads(json.dumps(every)))
