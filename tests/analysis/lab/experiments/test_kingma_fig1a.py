"""Error by width: cells that are kept, and what they are made of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pyrodrop import cli
from pyrodrop.analysis.lab.experiments.kingma_fig1a import COLORS
from pyrodrop.data import mnist
from pyrodrop.zoo.kingma import METHODS, PUBLISHED_WIDTHS, falling, network, training

pytestmark = pytest.mark.filterwarnings("ignore::pyrodrop.priors.ImproperPrior")


def words(out: Path, *more: str) -> list[str]:
    return [
        "run", "kingma-fig1a", "--widths", "12", "--methods", "none", "variational-a2", "--epochs", "2", "--digits", "500",
        "--seeds", "2", "--out", str(out), "--quiet", *more,
    ]  # fmt: skip


@pytest.mark.more
def test_cells_are_kept_and_others_settings_refused(
    tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("joblib.cpu_count", lambda: 1)
    assert cli.main(words(tmp_path)) == 0
    kept = tmp_path / "variational-a2-12.json"
    content, written = json.loads(kept.read_text()), kept.stat().st_mtime_ns
    assert len(content["errors"]) == 2
    assert set(content["alphas"]) == {f"layers.{i}.weight" for i in range(4)}
    (tmp_path / "none-12.json").unlink()
    assert cli.main(words(tmp_path)) == 0
    assert kept.stat().st_mtime_ns == written
    results = json.loads((tmp_path / "results.json").read_text())
    row = results["errors"]["variational-a2-12"]
    assert row["error_percent"] == pytest.approx(sum(content["errors"]) / 2)
    assert row["published"] is None
    content["cell"]["width"] = 24
    (tmp_path / "variational-a2-24.json").write_text(json.dumps(content))
    assert cli.main(words(tmp_path)) == 0
    after = json.loads((tmp_path / "results.json").read_text())["errors"]
    assert after == results["errors"] | {"variational-a2-24": {**row, "width": 24}}, "earlier cells stay in the results"
    capsys.readouterr()
    assert cli.main(words(tmp_path, "--seed", "1")) == 1
    assert "has a run with other settings: seed is 0 there and 1 here" in capsys.readouterr().err


def test_methods_start_from_the_published_rates(data_folder: Path) -> None:
    """alpha = rate / (1 - rate): .25 of the inputs and 1 of hidden units; learned ones start from 3 / 7."""
    data = mnist().train.first(10)
    hidden = {}
    for name, method in METHODS.items():
        guide = method.guide(network(data, method=name, width=8))
        hidden[name] = [float(guide.rates().get(f"layers.{i}.weight", 0.0)) for i in range(4)]
    assert hidden["none"] == [0, 0, 0, 0]
    assert hidden["binary"] == pytest.approx([0.2, 0.5, 0.5, 0.5])
    assert hidden["gaussian-a"] == hidden["gaussian-b"] == pytest.approx([0.25, 1, 1, 1])
    assert hidden["variational-a"] == hidden["variational-b"] == pytest.approx([3 / 7] * 4)


def test_the_rate_falls_over_the_second_half() -> None:
    assert [falling(step, steps=100) for step in (0, 50, 75, 100)] == [1, 1, 0.5, 0]
    data = torch.zeros(1000)
    assert training(data, epochs=3)["steps"] == 30  # type: ignore[arg-type]


def test_every_method_has_a_colour_and_a_point_a_width() -> None:
    assert len(COLORS) == len(METHODS)
    assert {len(method.published) for method in METHODS.values()} == {len(PUBLISHED_WIDTHS)}
