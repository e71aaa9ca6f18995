"""The regression series of Gal & Ghahramani (2016), arXiv:1506.02142, exactly as used in their experiments.

CO2 is the Mauna Loa series of figure 2 (272 months, detrended and standardised by the authors); solar is the series of the
appendix. Both are in standardised units. The test part of CO2 is a grid of inputs without observations; its y contains the
placeholders of the file. The test part of solar fills five gaps of 20 years each in the training part. Source:
https://github.com/yaringal/DropoutUncertaintyCaffeModels.
"""

from __future__ import annotations

import os
from typing import Annotated, Literal, TypeAlias

import h5py
import numpy as np
import torch
from torch import Tensor

from pyrodrop.constraints import Count, checked
from pyrodrop.data.dataset import Dataset
from pyrodrop.data.download import data_file
from pyrodrop.data.splits import Split
from pyrodrop.scaling import Standardize

Series: TypeAlias = Literal["co2", "solar"]
COMMIT = "afd0b1c72ecf4669c0823a2458d645c2683159a3"
URL = f"https://raw.githubusercontent.com/yaringal/DropoutUncertaintyCaffeModels/{COMMIT}/{{series}}_regression/data/{{part}}.h5"
YEARS, TRAINING_YEARS = 375, 300  # of `solar`, the forecasts of the solar series
MONTH = 0.0127358  # one month of the CO2 series in standardised time
SHA256 = {
    ("co2", "train"): "5e872111e517ac619350009fe3b9b5e2752ad52b4cf0086ec53b33db4c32417b",
    ("co2", "test"): "87da916948348f9f850a52327a457dc091f3104cafa42f75e176f66dc9b966fb",
    ("solar", "train"): "b6ee46f254c1272987f590a36f9fb43c5f64fb8cdac8c0065b99793c868bdd08",
    ("solar", "test"): "fb9e9199f05dd2e493b0d10dad2fa41b5015afd2d61c2d83f6857e7cb97b5e76",
}
CSV_SHA256 = {  # of the same series as text files with a header, in the folder PYRODROP_DATA
    ("co2", "train"): "3ff58ef6c4aabb94322fa32b0a28895c700786fe3164b6addbffd92579183056",
    ("co2", "test"): "f23852c124cdb56efa5953a44d0fc32b8db89501fc79daedaf534eeaf6f90b2c",
    ("solar", "train"): "b392e8e6bbfcd24f790d2eb333f08ea5c2579a2b6e7632811fcc2106182afc4d",
    ("solar", "test"): "5010a2e64a9785658a2536c08bccdfe97a57a0a2ebe5616bc946ae7ea5dd5608",
}


@checked
def gal2016(series: Series = "co2") -> Split:
    """One of the two series: x and y ``[N, 1]``, float32, standardised.

    If the environment variable PYRODROP_DATA is set, the series is read from ``$PYRODROP_DATA/gal2016/``. Otherwise it is
    downloaded once and cached. In both cases its hash is checked.

    Args:
        series: ``co2`` or ``solar``.

    Raises:
        ValueError: `series` is unknown, or a file has the wrong content.
        FileNotFoundError: PYRODROP_DATA is set, but the file does not exist.
        ConnectionError: a file cannot be downloaded.
    """
    train, test = _read(series, "train"), _read(series, "test")
    return Split(
        name=f"gal2016-{series}",
        train=Dataset(train[:, :1], train[:, 1:]),
        test=Dataset(test[:, :1], test[:, 1:]),
        x_unit="standardised time",
        y_unit="standardised",
        source=f"Gal & Ghahramani (2016), GitHub yaringal/DropoutUncertaintyCaffeModels at {COMMIT}",
        period=12 * MONTH if series == "co2" else None,
        truth=series == "solar",
    )


def _read(series: str, subset: str) -> Tensor:
    url, place = URL.format(series=series, part=subset), f"gal2016/{series}_{subset}"
    what = f"the {series} {subset} series of Gal & Ghahramani (2016)"
    if os.environ.get("PYRODROP_DATA"):
        path = data_file(f"{place}.csv", what, url, CSV_SHA256[series, subset])
        return torch.from_numpy(np.loadtxt(path, delimiter=",", skiprows=1)).float()
    with h5py.File(data_file(f"{place}.h5", what, url, SHA256[series, subset])) as file:
        columns = [np.asarray(file[key]) for key in ("data", "label")]
    return torch.from_numpy(np.concatenate(columns, 1)).float()


@checked
def solar(
    past: Annotated[int, Count("the number of past years", most=100)] = 22,
    ahead: Annotated[int, Count("the number of years until the forecast year", most=100)] = 5,
) -> Split:
    """Forecasts of the solar series: its change over the next years from its changes in the years before, float32.

        y = s[t + ahead] - s[t]                                                 [N, 1]
        x = s[t - past + 1] - s[t - past], ..., s[t] - s[t - 1]                 [N, past, 1]

    for every year t. s is the training and test part of `gal2016` ("solar") in order of time: the irradiance of the sun in
    375 years, one value per year, standardised by the authors. Levels are left out, as the series rises over its centuries
    and the last years lie above all earlier ones.

    The training part has all windows within the first 300 years. The test part forecasts each of the last 75 years from the
    years before; the first of these windows overlap with training years. Both parts have the standardisation of the training
    part, with one mean and scale for all positions in a window. The forecast "no change" is y = 0.

    Args:
        past: number of yearly changes in a window; 22 years are two cycles of the sun.
        ahead: number of years from the last year of a window to the forecast year.

    Raises:
        ValueError: an argument is outside 1 ... 100; otherwise as `gal2016`.
        TypeError: an argument is no whole number.
        FileNotFoundError, ConnectionError: as `gal2016`.
    """
    split = gal2016("solar")
    times = torch.cat([split.train.x, split.test.x])[:, 0]
    series = torch.cat([split.train.y, split.test.y])[times.argsort(), 0]
    last = torch.arange(past, YEARS - ahead)  # the last year of each window
    x = series.diff().unfold(0, past, 1)[: len(last), :, None]
    y = (series[last + ahead] - series[last])[:, None]
    held_out = last + ahead >= TRAINING_YEARS
    inputs = Standardize.of(x[~held_out].reshape(-1, 1))
    targets = Standardize.of(y[~held_out])
    train, test = (Dataset(x[rows], y[rows], inputs=inputs, targets=targets) for rows in (~held_out, held_out))
    return Split(
        name="solar",
        train=train,
        test=test,
        x_unit="change per year, standardised",
        y_unit=f"change in {ahead} years, standardised",
        source=split.source,
    )
