"""The measurement of what to choose on one's own data: its formula, and its stored numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pyrodrop.analysis.benchmarks import own_data
from pyrodrop.analysis.benchmarks.own_data import BASE, UNITS, prior_sd
from pyrodrop.data import Dataset

STORED = Path(own_data.__file__).with_name("results") / "own-data.json"


@pytest.mark.more
def test_the_prior_of_the_function_depends_on_the_units_of_x() -> None:
    """Against 20,000 networks drawn from the prior, in plain PyTorch."""
    torch.manual_seed(0)
    data = Dataset(torch.randn(30, 4) * 5 + 3, torch.randn(30, 1)).standardized()
    for own, x in ((data, (data.x - data.x.mean(0)) / data.x.std(0, correction=0)), (Dataset(data.x, data.y), data.x)):
        first, last = 0.7 * torch.randn(20_000, UNITS, 4), 0.7 * torch.randn(20_000, UNITS)
        f = torch.stack([(torch.relu(first @ row) * last).sum(1) for row in x])
        assert prior_sd(replace(BASE, scale=0.7), own) == pytest.approx(float(f.square().mean().sqrt()), rel=0.03)


def test_the_stored_tables_are_those_of_the_script() -> None:
    tables = json.loads(STORED.read_text(encoding="utf-8"))["tables"]
    for title, choices in own_data.TABLES.items():
        assert [{key: row[key] for key in vars(BASE)} for row in tables[title]] == [vars(choice) for choice in choices]


def test_the_page_says_the_best_number() -> None:
    page = (Path(__file__).parents[3] / "docs" / "your-own-data.md").read_text(encoding="utf-8")
    tables = json.loads(STORED.read_text(encoding="utf-8"))["tables"]
    best = max(tables["prior scale"], key=lambda row: row["log_density"])
    assert f"{best['log_density']:.2f}" in page
    assert best["standardised"]
