"""What the command line prints: no number is cut in any width, names are no markup, and paragraphs hang."""

from __future__ import annotations

import re

import pytest
from rich.table import Table

from pyrodrop.analysis.lab.experiments.co2.models import print_models
from pyrodrop.analysis.reports.terminal import print_table

NUMBER = re.compile(r"\d[\d.,e+-]*")
COLUMNS = (
    "log_density", "rmse", "crps", "coverage_50", "coverage_95", "seconds", "sd_last_train", "sd_far", "elbo", "elbo_se",
)  # fmt: skip


def row(first: float) -> dict[str, float]:
    """Numbers that need much room and are all different."""
    return {name: first + 1357.97531 * number for number, name in enumerate(COLUMNS)}


@pytest.mark.parametrize("width", [80, 30])
def test_numbers_and_names_are_whole_in_every_width(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {f"mc-dropout-tanh-0.{n}": row(98765.4321 * n) | {"elbo_convention": "exact"} for n in (1, 2)}
    shown = []
    for columns in (width, 5000):
        monkeypatch.setenv("COLUMNS", str(columns))
        print_models(rows, "ppm", {"data": "mauna-loa", "preset": "default", "seed": 0, "device": "cpu"})
        shown.append(capsys.readouterr().out)
    narrow, wide = shown
    assert "…" not in narrow
    assert "\x1b" not in narrow
    assert NUMBER.findall(narrow.partition("log density, RMSE")[0]) == NUMBER.findall(
        wide.partition("log density, RMSE")[0]
    )
    assert narrow.count("mc-dropout-tanh") == wide.count("mc-dropout-tanh")


def test_names_are_no_markup(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    table = Table(title="[red]title[/red]", caption=":smile: [0, 1]")
    table.add_column("[bold]name")
    table.add_row("[link=file:///]one[/link]")
    print_table(table)
    text = capsys.readouterr().out
    assert all(part in text for part in ("[red]title[/red]", ":smile: [0, 1]", "[bold]name", "[link=file:///]one"))
