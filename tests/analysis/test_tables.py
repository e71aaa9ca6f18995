"""The table of divergences, the fit behind the log-uniform one, and the concrete-dropout experiment."""

from __future__ import annotations

import json
from pathlib import Path

import mpmath as mp
import pytest

from pyrodrop import cli
from pyrodrop.analysis.divergences import log_uniform_fit
from pyrodrop.analysis.divergences import table as kl_table
from pyrodrop.analysis.experiments import concrete
from pyrodrop.divergences import log_uniform_kl as module


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


@pytest.mark.slow
def test_coefficients_are_those_of_the_fit() -> None:
    found = log_uniform_fit.coefficients()
    for name, rows in (("VALUE", module.__globals__["VALUE"]), ("SLOPE", module.__globals__["SLOPE"])):
        for ours, fitted in zip(rows, found[name][1:], strict=True):
            assert [float(mp.mpf(c)) for c in fitted] == pytest.approx(list(ours), rel=1e-9)


def test_concrete_experiment_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concrete, "SIZES", (10,))
    monkeypatch.setattr("pyrodrop.zoo.concrete.WIDTH", 16)
    monkeypatch.setattr("pyrodrop.zoo.concrete.EPOCHS", {10: 30})
    monkeypatch.setattr("joblib.cpu_count", lambda: 1)
    assert cli.main(["run", "concrete", "--seeds", "1", "--out", str(tmp_path), "--quiet"]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert set(results["sizes"]["10"]) == set(concrete.QUANTITIES)


def test_published_concrete_figures_are_the_reference(data_folder: Path) -> None:
    """Against the list of published figures, where it lies beside the data."""
    path = data_folder.parent / "reference" / "published.json"
    if not path.is_file():
        pytest.skip("needs the list of published figures beside the data")
    entries = [e for e in json.loads(path.read_text()) if "Concrete" in e["source"]]
    by_metric = {e["metric"]: e["value"] for e in entries}
    for n, row in concrete.PUBLISHED.items():
        assert row[0] == pytest.approx(by_metric[f"test RMSE N={n}"], abs=6e-4)
        assert list(row[1:3]) == by_metric[f"epistemic,aleatoric std N={n}"]
        assert list(row[3:]) == by_metric[f"p layers 1-3 N={n}"]
