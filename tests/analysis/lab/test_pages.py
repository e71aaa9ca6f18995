"""The parts of pages that are made from stored results are up to date, and how one is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyrodrop.analysis.lab import generated, pages


@pytest.mark.parametrize("name", pages.PARTS)
def test_a_part_is_up_to_date(name: str) -> None:
    page, text = pages.PARTS[name]
    assert generated.marked(name, text()) in page.read_text(encoding="utf-8")


def test_the_table_of_networks_has_every_one() -> None:
    text = pages.networks()
    assert "| `mlp` | A fully connected network. |" in text
    assert text.count("\n") > 60


def test_a_part_is_written_in_place_of_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "README.md"
    page.write_text("above\n<!-- uci: generated -->\nold\n<!-- uci: end -->\nbelow\n")
    monkeypatch.setattr(pages, "PARTS", {"uci": (page, lambda: "new\n")})
    pages.write([])
    assert page.read_text() == "above\n<!-- uci: generated -->\nnew\n<!-- uci: end -->\nbelow\n"
    with pytest.raises(ValueError, match="no part of a page is called 'ucl'"):
        pages.write(["ucl"])


@pytest.mark.parametrize("marks", ["", "<!-- uci: generated -->\n", "<!-- uci: end -->\n<!-- uci: generated -->\n"])
def test_a_page_without_the_marks_is_left_as_it_is(marks: str, tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"above\n{marks}below\n")
    with pytest.raises(ValueError, match=r"needs the lines '<!-- uci: generated -->' and '<!-- uci: end -->', once"):
        generated.put(page, "uci", "new\n")
    assert page.read_text() == f"above\n{marks}below\n"
