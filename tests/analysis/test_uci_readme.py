"""The README's UCI tables are those of the reference cells."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from pyrodrop.analysis.experiments.uci import readme as uci_readme


def test_the_readme_has_the_tables_of_the_references() -> None:
    readme = uci_readme.README.read_text(encoding="utf-8")
    assert uci_readme.BEGIN + uci_readme.text() + uci_readme.END in readme


def test_tables_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two splits: gains of .1 and .3 are .2 in the mean, with a standard error of .1."""
    (tmp_path / "gal2016").mkdir()
    for guide, rmse, density in (("bernoulli", [1.0, 1.2], [-1.5, -1.6]), ("sparse", [0.9, 0.9], [-1.4, -1.3])):
        cell = {
            "cell": {"data": "yacht", "guide": guide, "precision": "auto" if guide == "bernoulli" else "grid"},
            "rmse": rmse,
            "log_density": density,
            "seconds": 90.0,
        }
        (tmp_path / "gal2016" / f"{guide}.json").write_text(json.dumps(cell))
    monkeypatch.setattr(uci_readme, "REFERENCE", tmp_path)
    text = uci_readme.text()
    z = (1.1 - 1.10925) / math.hypot(0.1, 0.0850032)
    assert (
        f"| yacht | 2 | 1.109 ± 0.085 → 1.10 ± 0.10 ({z:+.1f}) | -1.554 ± 0.027 → -1.550 ± 0.050 (+0.1) | 1.5 |" in text
    )
    assert "| set | sparse, τ as Bernoulli |" in text
    assert "| yacht | +0.20 (+2.0) |" in text
    page = tmp_path / "README.md"
    page.write_text(f"above\n{uci_readme.BEGIN}old\n{uci_readme.END}below\n")
    uci_readme.put(page)
    assert page.read_text() == f"above\n{uci_readme.BEGIN}{text}{uci_readme.END}below\n"
