"""The solar series of Gal & Ghahramani (2016) for forecasts: its change in some years from those of the years before.

    y = s[t + ahead] - s[t]          x = s[t - past + 1] - s[t - past], ..., s[t] - s[t - 1]

for every year t, with s the whole series: one value per year of the irradiance of the sun, standardised by the authors. It
has 375 values: their training part, and their test part, which are the values in its five gaps. Levels are left out, as the
series rises over its centuries and the last years lie above all earlier ones.
"""

from __future__ import annotations

from typing import Annotated

import torch

from pyrodrop.constraints import Count, checked
from pyrodrop.data.dataset import Dataset
from pyrodrop.data.gal2016 import gal2016
from pyrodrop.data.splits import Split
from pyrodrop.scaling import Standardize

YEARS = 375
TRAINING_YEARS = 300


@checked
def solar(
    past: Annotated[int, Count("the number of past years", most=100)] = 22,
    ahead: Annotated[int, Count("the number of years until the forecast year", most=100)] = 5,
) -> Split:
    """Windows of the series: x the yearly changes, ``[N, past, 1]``, and y the change from then on, ``[N, 1]``, float32.

    The training part has all windows within the first 300 years. The test part forecasts each of the last 75 years from the
    years before, which for the first of them are years of the training part. Both are standardised by the training part, x
    by one mean and scale for all places in a window. The forecast that nothing changes is y = 0.

    Args:
        past: number of yearly changes in a window; 22 years are two cycles of the sun.
        ahead: years from the last one of a window to that which is forecast.

    Raises:
        ValueError: a number is outside 1 ... 100; otherwise as `gal2016`.
        TypeError: it is no whole number.
        FileNotFoundError, ConnectionError: as `gal2016`.
    """
    given = gal2016("solar")
    times = torch.cat([given.train.x, given.test.x])[:, 0]
    series = torch.cat([given.train.y, given.test.y])[times.argsort(), 0]
    last = torch.arange(past, YEARS - ahead)  # the last year that a window knows
    x = series.diff().unfold(0, past, 1)[: len(last), :, None]
    y = (series[last + ahead] - series[last])[:, None]
    held_out = last + ahead >= TRAINING_YEARS
    inputs = Standardize.of(x[~held_out].reshape(-1, 1))
    targets = Standardize.of(y[~held_out])
    parts = [Dataset(x[rows], y[rows], inputs=inputs, targets=targets) for rows in (~held_out, held_out)]
    return Split(
        name="solar",
        train=parts[0],
        test=parts[1],
        x_unit="change per year, standardised",
        y_unit=f"change in {ahead} years, standardised",
        source=given.source,
    )
