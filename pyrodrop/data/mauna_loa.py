"""Atmospheric CO2 at Mauna Loa, 1958-2001: monthly means in ppm of the weekly record.

The weekly record is that of Keeling & Whorf (2004), Carbon Dioxide Information Analysis Center, as `statsmodels` ships it
(`statsmodels.datasets.co2`, public domain). A month's mean is over its weeks with a value; months without one are left
out. The file beside this module holds them with each month's middle as a decimal year.
"""

from __future__ import annotations

from importlib import resources

import numpy as np
import torch

from pyrodrop.data.dataset import Dataset, Split
from pyrodrop.scaling import Standardize

TRAINING_MONTHS = 272
SOURCE = (
    "Keeling & Whorf (2004), Atmospheric CO2 concentrations derived from flask air samples at sites in the SIO network, "
    "Carbon Dioxide Information Analysis Center; weekly record in statsmodels.datasets.co2 (public domain), monthly means"
)


def mauna_loa() -> Split:
    """Monthly CO2 at Mauna Loa: x in years ``[N, 1]``, y in ppm ``[N, 1]``, float32.

    The first 272 months are for training, as many as in Gal & Ghahramani's (2016) figure 2; the 249 after them are the
    future. Both parts carry the standardisation of the first.
    """
    path = resources.files("pyrodrop.data") / "mauna_loa.csv"
    with path.open() as lines:
        table = torch.from_numpy(np.loadtxt(lines, delimiter=",", skiprows=1)).float()
    x, y = table[:, :1], table[:, 1:]
    n = TRAINING_MONTHS
    inputs, targets = Standardize.of(x[:n]), Standardize.of(y[:n])
    return Split(
        name="mauna-loa",
        train=Dataset(x[:n], y[:n], inputs=inputs, targets=targets),
        test=Dataset(x[n:], y[n:], inputs=inputs, targets=targets),
        x_unit="year",
        y_unit="ppm",
        source=SOURCE,
        period=1.0,
    )
