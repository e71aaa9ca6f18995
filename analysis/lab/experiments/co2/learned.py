"""Measures of whether a network has learned the data.

The yearly cycle is the part with periods of a year and half a year in a least-squares fit with a parabola. The share of it
in a predictive mean is the slope of the mean's cycle on that of the observations: 1 for all of it, 0 for none.

Dropout limits what a layer can carry. With the outputs F of its K units and z_k ~ Bernoulli(1 - r)

    f = F (w z) / (1 - r) + b        E|y - f|^2 = |y - F w - b|^2 + r / (1 - r) sum_k w_k^2 |F_k|^2         F [N, K], w [K]

is minimised by a ridge regression, whose penalty is smaller if it is spread over more units. Its share of the cycle is the
possible one of a network with these units (`carried`); a long training reaches it. With several hidden layers F is computed
with the mean weights, as if the layers before the last had no masks.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pyrodrop.data import Split

PARABOLA = 2  # its degree


def rmse(series: Split, mean: Tensor) -> float:
    """The RMSE of a predictive mean ``[N, 1]`` on the training months, in the units of y."""
    return float((mean.double().cpu() - series.train.y.double()).square().mean().sqrt())


def cycle_share(series: Split, mean: Tensor) -> float:
    """The share of the yearly cycle in a predictive mean ``[N, 1]`` at the training months.

    Raises:
        ValueError: the series has no period.
    """
    if series.period is None:
        raise ValueError(f"series must have a period; {series.name} has none")
    x = series.train.x[:, 0].double()
    angles = 2 * math.pi * x[:, None] / series.period * torch.tensor([1.0, 2.0])
    waves = torch.cat([angles.cos(), angles.sin()], 1)
    parts = torch.cat([_time(series, series.train.x)[:, None] ** torch.arange(PARABOLA + 1), waves], 1)
    both = torch.cat([series.train.y.double(), mean.double().cpu()], 1)
    observed, fitted = (waves @ torch.linalg.lstsq(parts, both).solution[PARABOLA + 1 :]).unbind(1)
    return float(fitted @ observed / (observed @ observed))


def carried(features: Tensor, y: Tensor, drop_rate: float) -> Tensor:
    """The mean of f ``[N, 1]`` with the least expected squared error, for units with outputs `features` ``[N, K]``.

    Args:
        features: outputs of the units for every row, without dropout.
        y: the observations ``[N, 1]``.
        drop_rate: drop rate of the units, above 0.
    """
    units = nn.functional.normalize(features.double(), dim=0) * math.sqrt((1 - drop_rate) / drop_rate)
    y = y.double()
    inverse = torch.linalg.inv(units @ units.T + torch.eye(len(y), dtype=torch.double))  # the dual of ridge regression
    return y - inverse @ (y - inverse.sum(0) @ y / inverse.sum())


def _time(series: Split, x: Tensor) -> Tensor:
    """x ``[N, 1]`` in standardised time ``[N]``, float64."""
    inputs = series.train.inputs
    return (x if inputs is None else inputs(x))[:, 0].double()
