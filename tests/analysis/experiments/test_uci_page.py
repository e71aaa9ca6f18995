"""The UCI tables of the references' page are those of the reference cells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyrodrop.analysis.experiments.uci import page as uci_page

PUBLISHED = {"yacht": {"rmse": [1.0, 1.3], "log_density": [-1.5, -1.7]}}


def cell(guide: str, rmse: list[float], density: list[float], precision: str, protocol: str = "gal2016") -> Any:
    about = {"data": "yacht", "guide": guide, "protocol": protocol, "precision": precision}
    kind = "grid" if precision == "auto" else precision
    return {"cell": about, "plan": {"precision": kind}, "rmse": rmse, "log_density": density, "seconds": 90.0}


@pytest.fixture
def reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as that of the references, and two published splits of every set."""
    monkeypatch.setattr(uci_page, "REFERENCE", tmp_path)
    monkeypatch.setattr(uci_page, "by_split", lambda _: dict.fromkeys(uci_page.ALL, PUBLISHED["yacht"]))
    for protocol in ("gal2016", "gal2018"):
        (tmp_path / protocol).mkdir()
    return tmp_path


def test_tables_by_hand(reference: Path) -> None:
    """Two splits. RMSE less published: 0 and -.1; log density: 0 and .1, of the ensemble less Bernoulli: .1 and .35."""
    cells = {
        "bernoulli": cell("bernoulli", [1.0, 1.2], [-1.5, -1.6], "auto"),
        "bernoulli-learned": cell("bernoulli", [1.0, 1.2], [-1.4, -1.25], "learned"),
        "ensemble": cell("ensemble", [0.9, 0.9], [-1.4, -1.25], "grid"),
        "sparse": cell("sparse", [0.9, 0.9], [-1.5, -1.53], "learned"),
    }
    for name, content in cells.items():
        (reference / "gal2016" / f"yacht-{name}.json").write_text(json.dumps(content))
    text = uci_page.text()
    assert "gal2018" not in text
    row = "| yacht | 2 | 1.5 | 1.15 ± 0.15 | 1.10 ± 0.10 | -1.0 | -1.60 ± 0.10 | -1.550 ± 0.050 | +1.0 |"
    assert row in text
    assert text.count("| not run | - |") == 2 * 8
    assert "RMSE better than published on 1 of 1 sets and worse on 0 of 1, all sets together z = +1.0" in text
    assert "log density better than published on 1 of 1 sets and worse on 0 of 1, all sets together z = +1.0" in text
    fixed, learned = (text.split(title)[1].split("Log density")[0] for title in ("τ fixed at", "τ learned by both"))
    assert "| set | ensemble |\n" in fixed
    assert "| yacht | +0.23 (+1.8) |\n| better by two s.e. | 0 of 1 |\n| worse by two s.e. | 0 of 1 |" in fixed
    assert "| set | sparse |\n" in learned
    assert "| yacht | -0.19 (-2.1) |\n| better by two s.e. | 0 of 1 |\n| worse by two s.e. | 1 of 1 |" in learned, (
        "less the Bernoulli dropout that learns it too"
    )


def test_the_released_code_by_hand(reference: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds with RMSE 1 and 1.2: 1.1 ± .141; published 1.15, .29 of sqrt(1.5) times that above. Divided: .1 and .3 less."""
    cells = {
        "yacht/divided": {
            "drop_rate": 0.01,
            "rmse": [[0.9, 0.7], [1.1, 0.9]],
            "log_density": [[-1.0, -1.0], [-1.2, -1.2]],
        },
        "yacht/ours": {
            "drop_rate": 0.01,
            "rmse": [[1.0, 1.0], [1.2, 1.2]],
            "log_density": [[-1.0, -1.0], [-1.2, -1.2]],
        },
        "yacht/ours/0.1": {"drop_rate": 0.1, "validation": [[[-2.0, -1.0], [-1.0, -1.0], [0.0, -1.0]]]},
    }
    (reference / "released.json").write_text(json.dumps(cells))
    monkeypatch.setattr(uci_page, "RELEASED", reference / "released.json")
    validation = {"validation": [[9.0, 9.0]] * 9 + [[-1.0, -0.5]] * 3}  # at rate .1: the last three points
    monkeypatch.setattr(uci_page, "by_split", lambda _: {"yacht": PUBLISHED["yacht"] | validation})
    text = uci_page.text()
    assert "| yacht, `ours` | 0.01 | 2 | 1.10 ± 0.14 | +0.3 |  | -1.10 ± 0.14 | -2.9 |  |" in text
    assert "| yacht, `divided` | 0.01 | 2 | 0.90 ± 0.14 | +1.4 | -0.2000 (-2.0) |" in text
    assert "| yacht, `ours` | 0.1 | 1 | -0.2500 (-1.0) |  |" in text, "0 and -.5"
