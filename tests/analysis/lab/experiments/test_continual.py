"""Digits in five lots: the lots, the Fisher information, and what the page says of the stored run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import pyrodrop
from pyrodrop import cli, guides, likelihoods, models, priors
from pyrodrop.analysis.lab.experiments import continual
from pyrodrop.data import Dataset

ROOT = Path(__file__).parents[4]


def test_fisher_information_is_that_of_softmax_regression() -> None:
    """Of the logits: E (y - p)(y - p)' = diag(p) - pp', so that of a weight is the sum of x^2 p (1 - p)."""
    torch.manual_seed(0)
    net = torch.nn.Linear(2, 3, bias=False)
    model = models.from_module(net, priors.Gaussian(1.0), likelihoods.Categorical())
    x = torch.randn(4000, 2)
    data = Dataset(x, torch.zeros(4000, dtype=torch.long))
    run = pyrodrop.fit(model, guides.Point(model), data.first(20), steps=1, progress=False)
    weight = run.guide.mean()["weight"]  # type: ignore[attr-defined]
    p = (x @ weight.T).softmax(1)
    exact = (p * (1 - p)).T @ x**2
    assert torch.allclose(continual.fisher(run, data, 0)["weight"], exact, rtol=0.35)  # of 400 rows and labels


@pytest.mark.more
def test_a_run_in_little(tmp_path: Path, data_folder: Path) -> None:
    words = ["run", "continual", "--seeds", "1", "--steps", "3", "--digits", "300", "--jobs", "1", "--quiet"]
    assert cli.main([*words, "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["rows"]
    assert list(rows) == list(continual.KINDS)
    for methods in rows.values():
        assert list(methods) == list(continual.METHODS)
        assert all(len(runs[0]["accuracy"]) == continual.LOTS for runs in methods.values())
    assert (tmp_path / "first-lot.png").stat().st_size


@pytest.mark.usefixtures("data_folder")
def test_split_lots_ask_whether_a_digit_is_odd() -> None:
    lots = continual.lots("split", 300, 0)
    assert all(set(train.y.tolist()) == {0, 1} for train, _ in lots)
    assert sum(len(train) for train, _ in lots) == 300


def test_the_page_has_the_stored_numbers() -> None:
    rows = json.loads((ROOT / "analysis" / "lab" / "results" / "continual.json").read_text(encoding="utf-8"))["rows"]
    page = (ROOT / "docs" / "data-that-keep-coming.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| (permuted|split) \| ([\w-]+) \| (.*) \| (.*) \| (.*) \|$", page, flags=re.MULTILINE)
    assert [row[:2] for row in shown] == [(kind, method) for kind in rows for method in rows[kind]]
    for kind, method, *cells in shown:
        for cell, column in zip(cells, continual.columns(rows[kind][method]), strict=True):
            assert cell == continual.percent(column)
            assert float(cell.split()[0]) == pytest.approx(100 * sum(column) / len(column), abs=0.051)
