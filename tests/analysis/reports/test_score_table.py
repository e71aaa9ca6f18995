"""Scores by name in a table: what is missing is a dash, and comes last."""

from __future__ import annotations

import math

import pytest

from pyrodrop.analysis.reports.score_table import best_first, score_table
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
