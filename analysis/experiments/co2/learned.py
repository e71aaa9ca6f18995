"""What training must have done: statements that do not hold for a network that has not learned.

The trend alone is a least-squares parabola through the training months: a network that is closer by its RMSE has found more
than that.

The yearly cycle is the part of a year's and half a year's period in a least-squares fit of a parabola and both. The share of
it that a mean has is the slope of the mean's own cycle on that of the observations: 1 for all of it, 0 for none.

Dropout limits what a layer can carry. With the outputs F of its K units and z_k ~ Bernoulli(1 - r)

    f = F (w z) / (1 - r) + b        E|y - f|^2 = |y - F w - b|^2 + r / (1 - r) sum_k w_k^2 |F_k|^2         F [N, K], w [K]

is least at a ridge regression, whose penalty only width can spread over more units. Its share of the cycle is what a network
with these units can have (`carried`); training that is long enough reaches it. With several hidden layers F is that of the
mean weights, as if the layers before the last had no masks.

A ReLU network without biases is homogeneous, f(c x) = c f(x), so the sd of an untrained one is proportional to |x| in
standardised time. Far out it exceeds the mean within the data by |x_far| / mean |x| before anything is learned.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pyrodrop.data import Split

PARABOLA = 2  # its degree


def fitted_rmse(series: Split, degree: int) -> float:
    """The RMSE on the training months of their least-squares polynomial of this degree, in the units of y."""
    x, y = _time(series, series.train.x), series.train.y[:, 0].double()
    powers = x[:, None] ** torch.arange(degree + 1)
    coefficients = torch.linalg.lstsq(powers, y[:, None]).solution[:, 0]
    return float((y - powers @ coefficients).square().mean().sqrt())


def rmse(series: Split, mean: Tensor) -> float:
    """The RMSE of a predictive mean ``[N, 1]`` on the training months, in the units of y."""
    return float((mean.double().cpu() - series.train.y.double()).square().mean().sqrt())


def cycle_share(series: Split, mean: Tensor) -> float:
    """The share of the yearly cycle that a predictive mean ``[N, 1]`` at the training months has.

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
        features: what the units give for every row, without dropout.
        y: the observations ``[N, 1]``.
        drop_rate: of the units, above 0.
    """
    units = nn.functional.normalize(features.double(), dim=0) * math.sqrt((1 - drop_rate) / drop_rate)
    y = y.double()
    inverse = torch.linalg.inv(units @ units.T + torch.eye(len(y), dtype=torch.double))  # the dual of ridge regression
    return y - inverse @ (y - inverse.sum(0) @ y / inverse.sum())


def distance_alone(series: Split, far: Tensor) -> float:
    """|x_far| / mean |x| over the training months, in standardised time."""
    return float(_time(series, far).abs().mean() / _time(series, series.train.x).abs().mean())


def _time(series: Split, x: Tensor) -> Tensor:
    """x ``[N, 1]`` in standardised time ``[N]``, float64."""
    inputs = series.train.inputs
    return (x if inputs is None else inputs(x))[:, 0].double()
