"""MNIST, and the experiments on it at the size of a test."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import image
from matplotlib.figure import Figure

from pyrodrop import cli
from pyrodrop.analysis.lab.experiments import kingma_table1
from pyrodrop.data import mnist
from pyrodrop.data.mnist import SHA256

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
    with pytest.raises(FileNotFoundError, match="PYRODROP_DATA is set, so MNIST's train-images"):
        mnist()
    folder = tmp_path / "mnist"
    folder.mkdir()
    file = folder / "train-images-idx3-ubyte.gz"
    content = b"\0\0\x08\x03" + b"\0" * 40
    file.write_bytes(gzip.compress(content))
    found, wanted = hashlib.sha256(content).hexdigest(), SHA256["train-images-idx3-ubyte"]
    with pytest.raises(ValueError, match=f"{file} does not contain.* is {found} and should be {wanted}; remove it"):
        mnist()
    for broken in (b"half a file", gzip.compress(content)[:-9]):
        file.write_bytes(broken)
        with pytest.raises(ValueError, match=f"{file} is not a complete gzip file.*remove it"):
            mnist()


@pytest.mark.slow
def test_variances_are_in_kingmas_order(tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """local < per example < shared in both layers, and all above no noise, after a few steps of training."""
    monkeypatch.setattr(kingma_table1, "EPOCHS", (8, 9))
    monkeypatch.setitem(kingma_table1.PRESETS, "default", ("kingma/variational-b-small", 2000, 12, 12))  # type: ignore[index]
    monkeypatch.setattr("pyrodrop.zoo.kingma.TABLE_1_BATCH", 250)
    monkeypatch.setattr(kingma_table1, "BATCH", 250)
    drawn: list[Figure] = []
    plain = kingma_table1.draw
    monkeypatch.setattr(kingma_table1, "draw", lambda measured: drawn.append(plain(measured)) or drawn[-1])
    assert cli.main(["run", "kingma-table1", "--out", str(tmp_path), "--quiet"]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    for column in ("top, 10 epochs", "bottom, 10 epochs"):
        values = [results["measured"][row][column] for row in ("no noise", "local", "per_example", "shared")]
        assert values == sorted(values), (column, values)
    assert_shows_variances(drawn.pop(), results)
    assert image.imread(tmp_path / "figure.png").shape == (352, 1210, 4)


def assert_shows_variances(figure: Figure, results: dict[str, Any]) -> None:
    """A panel per column, in it for each estimator the measured bar beside the published one, on a log scale."""
    estimators_ = list(results["published"])
    assert [axes.get_title("left") for axes in figure.axes] == list(results["published"]["local"])
    for axes in figure.axes:
        assert axes.get_yscale() == "log"
        assert [label.get_text().replace("\n", "_") for label in axes.get_xticklabels()] == estimators_
        for bars, (kind, side) in zip(axes.containers, (("measured", -1), ("published", 1)), strict=True):
            assert bars.get_label() == kind
            want = [results[kind][row][axes.get_title("left")] for row in estimators_]
            assert [bar.get_height() for bar in bars] == pytest.approx(want)
            assert [bar.get_x() + bar.get_width() / 2 for bar in bars] == pytest.approx(np.arange(4) + 0.2 * side)
    assert figure.axes[0].get_ylabel() == "variance of the gradient"
    assert [text.get_text() for text in figure.axes[-1].get_legend().get_texts()] == ["measured", "published"]
