"""Forecasts of series: the columns of a series, the last season, and what the page says of the stored numbers."""

from __future__ import annotations

import csv
from itertools import groupby
from pathlib import Path

import numpy as np
from scipy.stats import binom

from pyrodrop.analysis.lab.benchmarks import forecasts

FILE = Path(forecasts.__file__).parent / "results" / "forecasts.csv"
PAGE = (Path(__file__).parents[4] / "docs" / "measured.md").read_text(encoding="utf-8")
ROWS = list(csv.DictReader(FILE.read_text(encoding="utf-8").splitlines()))


def test_the_last_season_is_repeated() -> None:
    """Of a sine without noise it is exact; of a random walk its standard deviation grows with the root of the distance."""
    wave = np.sin(2 * np.pi * np.arange(49) / 12)
    mean, sd = forecasts.last_season(wave[:36], 13, 12)
    np.testing.assert_allclose(mean, wave[36:], atol=1e-12)
    np.testing.assert_allclose(sd, 0, atol=1e-12)
    walk = np.random.default_rng(0).normal(size=5000).cumsum()
    mean, sd = forecasts.last_season(walk, 4, 1)
    np.testing.assert_allclose(mean, walk[-1])
    np.testing.assert_allclose(sd, np.sqrt([1, 2, 3, 4]), rtol=0.03)


def test_a_month_has_its_name() -> None:
    frame, period = forecasts.series("co2")
    assert (len(frame), period, frame["season"].nunique()) == (521, 12, 12)
    assert frame["season"][:3].tolist() == ["Mar", "Apr", "May"]


def test_a_series_of_years_has_no_season(data_folder: Path) -> None:
    assert forecasts.series("solar")[0].columns.tolist() == ["time", "y"]


def test_the_page_has_the_stored_numbers() -> None:
    assert {(row["set"], row["series"]) for row in ROWS} == {
        (group, name.split("/")[-1]) for group, names in forecasts.SERIES.items() for name in names
    }
    for name, group in groupby(ROWS, lambda row: row["series"]):
        rows = list(group)
        assert [row["method"] for row in rows] == ["recipe", "ridge", "last season"]
        shares = [f"{float(row['coverage_90']):.0%}" for row in rows]
        grows = " (grows)" if float(rows[0]["growth"]) >= 2 else ""
        assert (
            f"| {name}{grows} | {rows[0]['held_out']} | {' | '.join([*shares, *(row['crps'] for row in rows)])} |"
            in PAGE
        )
    ours = [row for row in ROWS if row["method"] == "recipe"]
    inside = {g: [float(row["coverage_90"]) for row in ours if row["set"] == g] for g in forecasts.SERIES}
    means = [f"{np.mean(shares):.0%}".replace("%", " %") for shares in inside.values()]
    assert (
        f"hold {means[0]} of the values on average, on the next five {means[1]}, and on the last five {means[2]}"
        in " ".join(PAGE.split())
    )
    within = {g: sum(0.8 <= share <= 0.97 for share in shares) for g, shares in inside.items()}
    assert f"{within['first']} of the first ten and {sum(within.values())} of all twenty" in " ".join(PAGE.split())
    held_out = [int(row["held_out"]) for row in ours[:10]]
    exact = sum(binom.pmf(k, n, 0.9) for n in held_out for k in range(n + 1) if 0.8 <= k / n <= 0.97)
    assert f"for {exact:.1f} of the first ten on average" in " ".join(PAGE.split())
