"""The UCI tables of the references' page are those of the reference cells."""

from __future__ import annotations

from typing import Any

import pytest

from pyrodrop.analysis.lab.experiments.uci import page as uci_page

PUBLISHED = {"yacht": {"rmse": [1.0, 1.3], "log_density": [-1.5, -1.7]}}


def cell(guide: str, rmse: list[float], density: list[float], precision: str, protocol: str = "gal2016") -> Any:
    about = {"data": "yacht", "guide": guide, "protocol": protocol, "precision": precision}
    kind = "grid" if precision == "auto" else precision
    return {"cell": about, "plan": {"precision": kind}, "rmse": rmse, "log_density": density, "seconds": 90.0}


def test_tables_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two splits. RMSE less published: 0 and -.1; log density: 0 and .1, of the ensemble less Bernoulli: .1 and .35."""
    monkeypatch.setattr(uci_page, "by_split", lambda _: dict.fromkeys(uci_page.ALL, PUBLISHED["yacht"]))
    cells = {
        "bernoulli": cell("bernoulli", [1.0, 1.2], [-1.5, -1.6], "auto"),
        "bernoulli-learned": cell("bernoulli", [1.0, 1.2], [-1.4, -1.25], "learned"),
        "ensemble": cell("ensemble", [0.9, 0.9], [-1.4, -1.25], "grid"),
        "sparse": cell("sparse", [0.9, 0.9], [-1.5, -1.53], "learned"),
    }
    monkeypatch.setattr(uci_page, "cells", lambda _: {("yacht", name): content for name, content in cells.items()})
    text = uci_page.text("gal2016")
    row = "| yacht | 2 | 1.5 | 1.15 ± 0.15 | 1.10 ± 0.10 | -1.0 | -1.60 ± 0.10 | -1.550 ± 0.050 | +1.0 |"
    assert row in text
    assert text.count("| not run | - |") == 2 * 8
    assert "| RMSE | 1 of 1 | 0 of 1 | +1.0 | 1.0 |\n| log density | 1 of 1 | 0 of 1 | +1.0 | 1.0 |" in text
    fixed, learned = (
        uci_page.posteriors().split(title)[1].split("Log density")[0] for title in ("τ fixed at", "τ learned by both")
    )
    assert "| set | ensemble |\n" in fixed
    assert "| yacht | +0.23 (+1.8) |\n| better by two s.e. | 0 of 1 |\n| worse by two s.e. | 0 of 1 |" in fixed
    assert "| set | sparse |\n" in learned
    assert "| yacht | -0.19 (-2.1) |\n| better by two s.e. | 0 of 1 |\n| worse by two s.e. | 1 of 1 |" in learned, (
        "less the Bernoulli dropout that learns it too"
    )
