"""Scores by name in a table, as text and HTML: what is missing is a dash, and comes last."""

from __future__ import annotations

import html.parser
import math
from typing import Any

import pytest

from pyrodrop.analysis.comparison.comparison import Comparison
from pyrodrop.analysis.reports.score_table import best_first, score_html, score_table
from pyrodrop.analysis.reports.terminal import print_table

ROWS = {
    "a": {"rmse": 1.0, "k_hat": None},
    "b": {"rmse": math.nan},
    "c": {"rmse": 2.5, "k_hat": 0.123},
    "d": {"rmse": None},
}


def test_a_row_per_name_and_a_dash_for_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    table = score_table(
        ROWS, title="scores", corner="model", headers={"k_hat": "k-hat"}, forms={"rmse": ".2f"}, form=".1%"
    )
    print_table(table)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["model", "rmse", "k-hat"] in lines
    assert lines[-4:] == [["a", "1.00", "-"], ["b", "-", "-"], ["c", "2.50", "12.3%"], ["d", "-", "-"]]


def test_the_best_comes_first() -> None:
    """Rows without the score, or with NaN, come last, in the order in which they were given."""
    assert list(best_first(ROWS, "rmse")) == ["c", "a", "b", "d"]
    assert list(best_first(ROWS, "k_hat")) == ["c", "a", "b", "d"]


class Cells(html.parser.HTMLParser):
    """The text of every row of a table, and of what surrounds it; all tags must be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.rows: list[list[str]] = []
        self.around: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "tr" in self.open:
            self.rows[-1][-1] += data
        else:
            self.around.append(data)


def test_the_html_has_the_cells_of_the_terminal() -> None:
    table = score_table(
        ROWS, title="scores", corner="model", headers={"k_hat": "k-hat"}, forms={"rmse": ".2f"}, form=".1%"
    )
    found = Cells(score_html(table))
    assert found.rows[0] == ["model", "rmse", "k-hat"]
    assert found.rows[1:] == [["a", "1.00", "-"], ["b", "-", "-"], ["c", "2.50", "12.3%"], ["d", "-", "-"]]
    assert found.around == ["scores"]


def test_a_comparison_in_a_notebook_escapes_names_and_notes_and_ends_with_the_reference() -> None:
    odd = ["<b>bold", "</table><script>alert(1)</script>", "[red]a & b"]
    rows: dict[str, dict[str, float | None]] = {name: {"log_density": 1.25, "correlation": None} for name in odd}
    made = Comparison("log_density", rows, ["a note on <i>\n&amp;", "another"], {"log_density": 3.0})
    found = Cells(made._repr_html_())
    assert [row[0] for row in found.rows] == ["", *odd, "reference"]
    assert [row[1] for row in found.rows] == ["log density", *["1.25"] * 3, "3"]
    last, apart = made._repr_html_().split("<tr>")[-2:]
    assert "border-bottom" in last  # a line above the reference, none below
    assert "border-bottom" not in apart
    assert found.around == ["by log density", "a note on <i>", "&amp;", "another"]
    assert found.tags == {"div", "strong", "table", "tr", "th", "td"}
    assert repr(made) == str(made)
    assert "1.25" in repr(made)
