"""Runs read back: one table of several."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from pyrodrop import guides, metrics
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


def test_several_runs_in_one_table(folder: Path, tmp_path: Path) -> None:
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


def test_what_cannot_be_compared_is_said(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    results = json.loads((other / "results.json").read_text())
    (other / "results.json").write_text(json.dumps(results | {"settings": {"data": "tides"}}))
    with pytest.raises(ValueError, match="these have tides, waves"):
        compare_runs([read_run(folder), read_run(other)])
    for content, said in (({"rows": 1}, "a run with a table of models"), ({**results, "models": [1]}, "models")):
        (other / "results.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match=said):
            compare_runs([read_run(other)])
    (other / "results.json").write_text("{")
    with pytest.raises(ValueError, match="is not valid JSON"):
        read_run(other)
    with pytest.raises(FileNotFoundError, match="must have a results.json"):
        read_run(tmp_path)
