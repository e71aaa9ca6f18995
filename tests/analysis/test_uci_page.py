"""The UCI tables of the references' page are those of the reference cells."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from pyrodrop.analysis.experiments.uci import page as uci_page
from pyrodrop.analysis.reports import generated


def test_the_page_has_the_tables_of_the_references() -> None:
    assert generated.marked("uci", uci_page.text()) in generated.REFERENCES.read_text(encoding="utf-8")


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
    monkeypatch.setattr(uci_page, "REFERENCE", tmp_path)
    text = uci_page.text()
    z = (1.1 - 1.10925) / math.hypot(0.1, 0.0850032)
    assert (
        f"| yacht | 2 | 1.109 ± 0.085 → 1.10 ± 0.10 ({z:+.1f}) | -1.554 ± 0.027 → -1.550 ± 0.050 (+0.1) | 1.5 |" in text
    )
    assert "| set | sparse, τ as Bernoulli |" in text
    assert "| yacht | +0.20 (+2.0) |" in text
    page = tmp_path / "README.md"
    page.write_text("above\n<!-- uci: generated -->\nold\n<!-- uci: end -->\nbelow\n")
    generated.put(page, "uci", text)
    assert page.read_text() == f"above\n<!-- uci: generated -->\n{text}<!-- uci: end -->\nbelow\n"


@pytest.mark.parametrize("marks", ["", "<!-- uci: generated -->\n", "<!-- uci: end -->\n<!-- uci: generated -->\n"])
def test_a_page_without_the_marks_is_left_as_it_is(marks: str, tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"above\n{marks}below\n")
    with pytest.raises(ValueError, match=r"needs the lines '<!-- uci: generated -->' and '<!-- uci: end -->', once"):
        generated.put(page, "uci", "new\n")
    assert page.read_text() == f"above\n{marks}below\n"
