"""Atmospheric CO2 at Mauna Loa, 1958-2001: monthly means of the weekly record, in ppm.

The weekly record is that of Keeling & Whorf (2004), Carbon Dioxide Information Analysis Center, as distributed with
`statsmodels` (`statsmodels.datasets.co2`, public domain). Monthly means use the weeks with a value; months without values
are left out. The file mauna_loa.csv next to this module contains the means, each with the middle of its month as a
decimal year.
"""

from __future__ import annotations

from importlib import resources

import numpy as np
import torch

from pyrodrop.data.dataset import Dataset
from pyrodrop.data.splits import Split
from pyrodrop.scaling import Standardize

TRAINING_MONTHS = 272
SOURCE = (
    "Keeling & Whorf (2004), Atmospheric CO2 concentrations derived from flask air samples at sites in the SIO network, "
    "Carbon Dioxide Information Analysis Center; weekly record in statsmodels.datasets.co2 (public domain), monthly means"
)


def mauna_loa() -> Split:
    """Monthly CO2 at Mauna Loa: x in years ``[N, 1]``, y in ppm ``[N, 1]``, float32.

    The first 272 months are the training part, as in figure 2 of Gal & Ghahramani (2016); the following 249 months are the
    test part. Both have the standardisation of the training part.
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
