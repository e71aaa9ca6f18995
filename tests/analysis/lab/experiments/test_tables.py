"""The table of divergences, and the concrete-dropout experiment."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pyrodrop import cli, zoo
from pyrodrop.analysis.lab.divergences import table as kl_table
from pyrodrop.analysis.lab.experiments import concrete
from pyrodrop.data import line


@pytest.mark.more
def test_every_checked_pair_is_within_four_standard_errors(capsys: pytest.CaptureFixture[str]) -> None:
    torch_rows, columns = kl_table.posteriors(), kl_table.prior_examples()
    checked = 0
    for q in torch_rows.values():
        for name, p in columns.items():
            text = kl_table.cell(q, p)
            if "s.e." in text and "Molchanov" not in name:
                checked += 1
                assert abs(float(text.split("(")[1].split(" ")[0])) < 4, (q, name, text)
    assert checked >= 11
    kl_table.main()
    shown = capsys.readouterr().out
    assert "refused:" in shown
    assert "no density over weights" in shown


@pytest.mark.more
def test_concrete_experiment_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concrete, "SIZES", (10,))
    monkeypatch.setattr("pyrodrop.zoo.concrete.WIDTH", 16)
    monkeypatch.setattr("pyrodrop.zoo.concrete.EPOCHS", {10: 30})
    monkeypatch.setattr("joblib.cpu_count", lambda: 1)
    assert cli.main(["run", "concrete", "--seeds", "2", "--sizes", "10", "--out", str(tmp_path), "--quiet"]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert set(results["sizes"]["10"]) == set(concrete.QUANTITIES)
    theirs = {
        "rmse": 1.90116484,
        "epistemic_sd": 1.278,
        "aleatoric_sd": 1.257,
        "rate_1": 0.076,
        "rate_2": 0.404,
        "rate_3": 0.403,
    }
    assert results["published"] == {"10": theirs}
    first, second = results["sizes"]["10"]["rmse"]
    figure = results["figures"]["Concrete dropout | test RMSE N=10"]
    assert figure["value"] == pytest.approx((first + second) / 2)
    assert figure["error"] == pytest.approx(abs(first - second) / 2)
    assert figure["sd"] == pytest.approx(abs(first - second) / 2**0.5)
    spreads = results["sizes"]["10"]["epistemic_sd"]
    expected = (sum(value**2 for value in spreads) / 2) ** 0.5
    assert results["figures"]["Concrete dropout | epistemic,aleatoric std N=10"]["value"][0] == pytest.approx(expected)


def test_concrete_sizes_are_those_of_the_notebook(tmp_path: Path) -> None:
    for sizes in ([], [11], [10, 10]):
        with pytest.raises(ValueError, match="10, 25, 50, 100, 1000, 10000, each once"):
            concrete.run(sizes=sizes, out=tmp_path)


def test_concrete_trains_on_the_first_20_40_60_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the notebook's loop, whose ``old_batch`` stays 0; the loss is scaled to all rows."""
    seen = []

    def loss(model: Any, guide: Any, x: torch.Tensor, y: torch.Tensor, num_data: int) -> Any:
        seen.append((len(x), len(y), num_data, float(x[0])))
        return SimpleNamespace(loss=next(guide.parameters()).sum())

    monkeypatch.setattr(concrete, "elbo_terms", loss)
    monkeypatch.setattr("pyrodrop.zoo.concrete.WIDTH", 4)
    monkeypatch.setattr("pyrodrop.zoo.concrete.EPOCHS", {50: 2})
    data = line(50, 3)
    model, guide = zoo.entry("concrete/synthetic").build(data, 0)
    concrete.train(model, guide, (model, guide), data, torch.device("cpu"))
    assert seen == [(rows, rows, 50, float(data.x[0])) for rows in (20, 40, 50, 20, 40, 50)]
