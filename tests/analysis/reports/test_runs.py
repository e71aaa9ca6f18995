"""Runs read back: one table of several."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from pyrodrop import cli, guides, metrics
from pyrodrop.analysis.lab.experiments.co2.models import write_draws
from pyrodrop.analysis.reports.runs import compare_runs, read_run
from pyrodrop.data import Split


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of it for the test to change; its name would break a page that does not escape it."""
    return Path(shutil.copytree(made, tmp_path / "a <run>"))


@pytest.fixture(scope="module")
def made(small: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a job would leave, of two small fits."""
    train, test = small.waves(), small.waves(30, seed=1)
    series = Split("waves", train, test, "year", "m", "made here")
    fits = {"dropout": small.fitted(small.dropout), "mean field": small.fitted(guides.MeanField, steps=20)}
    predictions = {name: fit.predict(test.x, 100) for name, fit in fits.items()}
    out = tmp_path_factory.mktemp("run")
    rows = {
        name: metrics.regression_scores(p, test.y) | {"elbo": None, "seconds": 1.5} for name, p in predictions.items()
    }
    content = {
        "models": rows,
        "settings": {"data": "waves", "seed": 0, "networks": {"dropout": {"steps": 150, "guide": "<b>"}}},
        "published": [1, 2],
    }
    (out / "results.json").write_text(json.dumps(content))
    settings = {"preset": "default", "seed": 0, "device": "cpu"}
    write_draws(out / "draws.nc", series, {n: (p, p) for n, p in predictions.items()}, test.x, settings)
    figure = Figure(figsize=(3, 2))
    figure.subplots().plot([1, 3, 2])
    figure.savefig(out / "figure.png")
    return out


def test_several_runs_in_one_table(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    table = compare_runs([read_run(folder), read_run(other)])
    assert len(table.rows) == 4
    values = [row["log_density"] for row in table.rows.values()]
    assert values == sorted(values, key=lambda v: -float(v or 0))
    density = read_run(folder).by_observation("log_density")
    *_, worst = table.rows
    best = next(iter(table.rows))
    difference = density[worst.split("/")[1]] - density[best.split("/")[1]]
    assert table.rows[worst]["difference"] == pytest.approx(difference.mean())
    assert table.rows[worst]["difference_se"] == pytest.approx(difference.std(ddof=1) / math.sqrt(30))
    assert table.rows[worst]["log_density"] == pytest.approx(density[worst.split("/")[1]].mean(), rel=1e-5)
    assert cli.main(["compare", str(folder), str(other)]) == 0
    shown = capsys.readouterr().out
    assert "other/dropout" in shown
    assert "held-out log density" in shown


def test_what_cannot_be_compared_is_said_in_a_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    results = json.loads((other / "results.json").read_text())
    for change, said in (
        (results | {"settings": {"data": "tides"}}, "these have tides, waves"),
        ({"rows": 1}, "a run with a table of models"),
    ):
        (other / "results.json").write_text(json.dumps(change))
        (folder / "results.json").write_text(json.dumps(results if "models" in change else change))
        assert cli.main(["compare", str(folder), str(other)]) == 1
        assert said in capsys.readouterr().err
    (other / "results.json").write_text("{")
    assert cli.main(["compare", str(other)]) == 1
    assert "is not valid JSON" in capsys.readouterr().err
    assert cli.main(["compare", str(tmp_path)]) == 1
    assert "must have a results.json" in capsys.readouterr().err
    assert cli.main(["compare"]) == 2
    assert "parameter FOLDERS requires an argument" in capsys.readouterr().err
