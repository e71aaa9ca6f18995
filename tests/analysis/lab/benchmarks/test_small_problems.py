"""The twenty small problems: their rows, baselines and cells, and what the page says of the stored numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from pyrodrop.analysis.gp import GaussianProcess
from pyrodrop.analysis.lab.benchmarks import small_fits, small_pages
from pyrodrop.analysis.lab.benchmarks.small_fits import METHODS, constant, measured, points, process
from pyrodrop.analysis.lab.benchmarks.small_problems import PROBLEMS, problem

QUICK = {"chains": 4, "draws": 4, "tune": 100, "max_steps": 4, "engine": "traced", "device": "cpu"}
PARTS = ("inside", "away")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_fits, "STEPS", 6)
    monkeypatch.setattr(small_fits, "DRAWS", 20)
    monkeypatch.setattr(small_fits, "HMC", QUICK)


def test_there_are_twenty_and_their_parts_share_no_rows(data_folder: Path) -> None:
    assert len(PROBLEMS) == 20
    for name in PROBLEMS:
        of = problem(name)
        parts = [
            torch.cat([rows.x.double(), rows.y.double().reshape(len(rows), 1)], 1)
            for rows in (of.train, of.inside, of.away)
        ]
        assert len(parts[0]) >= 30, name
        assert sum(map(len, parts)) <= 300, name
        assert all(len(rows) >= 7 for rows in parts), name
        assert of.train.x.shape[1] in (1, 2), name
        assert of.train.inputs is not None, name
        assert (of.train.targets is None) == bool(of.classes or of.counts), name
        again = problem(name)
        assert torch.equal(again.away.x, of.away.x), name
        if name not in ("airfoil", "cars", "diabetes", "iris", "faithful", "motorcycle", "counts", "ethanol"):
            assert len(torch.cat(parts).unique(dim=0)) == sum(map(len, parts)), name  # the others have equal rows


def test_a_constant_is_scipys() -> None:
    of = problem("step")
    y, rows = (part.y[:, 0].double().numpy() for part in (of.train, of.inside))
    assert constant(of)["inside"] == pytest.approx(stats.norm(y.mean(), y.std()).logpdf(rows).mean(), rel=1e-5)
    of = problem("counts")
    y, rows = (part.y[:, 0].double().numpy() for part in (of.train, of.away))
    assert constant(of)["away"] == pytest.approx(stats.poisson(y.mean()).logpmf(rows).mean(), rel=1e-5)
    of = problem("moons")
    share = float(of.train.y.double().mean())
    ones = float(of.away.y.double().mean())
    assert constant(of)["away"] == pytest.approx(ones * np.log(share) + (1 - ones) * np.log(1 - share), rel=1e-6)


@pytest.mark.more
def test_a_cell_of_every_kind(quick: None) -> None:
    of = problem("forrester")
    gp = process(of)
    exact = GaussianProcess(of.train, "matern-5/2", progress=False)
    assert gp["inside"] == pytest.approx(float(exact.log_density(of.inside).mean()), rel=1e-4)
    assert len(gp["mean"]) == len(points(of)) == 80
    for setting, method in (
        ("default", "MC dropout"),
        ("from gp", "exact"),
        ("default", "exact"),
        ("from gp", "point"),
    ):
        cell = measured(of, setting, method, gp["noise_sd"])
        assert all(np.isfinite(cell[part]) for part in PARTS)
        assert ("r_hat_f" in cell) == (method == "exact")
    assert measured(of, "default", "exact", gp["noise_sd"])["noise_sd"] == pytest.approx(gp["noise_sd"], rel=1e-5)
    for name in ("counts", "iris"):
        other = problem(name)
        assert np.isfinite(measured(other, "default", "point", 0.0)["inside"])
        assert len(points(other)) == (80 if name == "counts" else 256)


def test_a_table_counts_what_is_close_to_the_exact_posterior() -> None:
    cell = {"inside": -1.0, "away": -2.0}
    cells = {"constant": {"inside": -1.5, "away": -3.0, "rows": 30.0}, "GP": cell}
    cells |= {f"default: {method}": cell for method in METHODS}
    unmixed = cells | {"default: exact": cell | {"r_hat_f": 1.3}}
    problems = {"c": unmixed, "a": cells, "b": cells | {"default: point": {"inside": -1.6, "away": -2.0}}}
    table = small_pages.text(problems, "default")
    assert "| c | 30 | -1.50 / -3.00 | -1.00 / -2.00 | -1.00 / -2.00 * | -1.00 / -2.00 |" in table
    assert "| within 0.15 of exact, of 2 |  |  |  |  | 2 | 2 | 2 | 2 | 1 | 2 |" in table
    assert "| below a constant, of 3 |  |  |  |  | 0 | 0 | 0 | 0 | 1 | 0 |" in table
