"""MNIST, and the experiments on it at the size of a test."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pytest
import torch

from pyrodrop import cli
from pyrodrop.analysis.lab.experiments import kingma_table1
from pyrodrop.analysis.lab.experiments.rotated_digit.experiment import turned
from pyrodrop.data import mnist
from pyrodrop.data.files import FILES

pytestmark = pytest.mark.filterwarnings("ignore::pyrodrop.priors.ImproperPrior")


@pytest.mark.more
def test_mnist_is_what_it_should_be(data_folder: Path) -> None:
    split = mnist()
    assert split.train.x.shape == (60_000, 784)
    assert split.test.x.shape == (10_000, 784)
    assert split.train.y[:5].tolist() == [5, 0, 4, 1, 9]
    assert torch.bincount(split.test.y).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert float(split.train.x.min()) == 0
    assert float(split.train.x.max()) == 1
    assert float(split.train.x.mean()) == pytest.approx(0.1307, abs=1e-4)
    assert mnist(flat=False).test.x.shape == (10_000, 1, 28, 28)


def test_files_that_are_not_mnist_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYRODROP_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="PYRODROP_DATA is set, so the published file of train-images"):
        mnist()
    folder = tmp_path / "mnist"
    folder.mkdir()
    file = folder / "train-images-idx3-ubyte.gz"
    content = b"\0\0\x08\x03" + b"\0" * 40
    file.write_bytes(gzip.compress(content))
    found, wanted = hashlib.sha256(content).hexdigest(), FILES["train-images-idx3-ubyte"].sha256
    with pytest.raises(
        ValueError,
        match=f"{file} is not the published file of train-images.* is {found} and should be {wanted}; remove it",
    ):
        mnist()
    for broken in (b"half a file", gzip.compress(content)[:-9]):
        file.write_bytes(broken)
        with pytest.raises(ValueError, match=f"{file} is not a complete gzip file.*remove it"):
            mnist()


def test_a_quarter_turns_exactly_and_counterclockwise() -> None:
    x = torch.rand(1, 1, 5, 5)
    torch.testing.assert_close(turned(x, torch.tensor([90.0]))[0], torch.rot90(x, 1, (2, 3)), atol=1e-5, rtol=0)
    torch.testing.assert_close(turned(x, torch.tensor([0.0, 180.0]))[1], x.flip(2, 3), atol=1e-5, rtol=0)


@pytest.mark.slow
def test_variances_are_in_kingmas_order(tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """local < per example < shared in both layers, and all above no noise, after a few steps of training."""
    monkeypatch.setattr(kingma_table1, "EPOCHS", (8, 9))
    monkeypatch.setitem(kingma_table1.PRESETS, "default", ("kingma/variational-b-small", 2000, 12, 12))  # type: ignore[index]
    monkeypatch.setattr(kingma_table1, "BATCH", 250)
    assert cli.main(["run", "kingma-table1", "--out", str(tmp_path), "--quiet"]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    for column in ("top, 10 epochs", "bottom, 10 epochs"):
        values = [results["measured"][row][column] for row in ("no noise", "local", "per_example", "shared")]
        assert values == sorted(values), (column, values)
