"""What training must have done: statements that do not hold for a network that has not learned.

Least-squares fits to the training months say what a network must beat.

    line        a straight line, which needs no network
    parabola    the trend alone: a network that is closer by its RMSE has found more than that

The yearly cycle is the part of a year's and half a year's period in a least-squares fit of a parabola and both. The share of
it that a mean has is the slope of the mean's own cycle on that of the observations: 1 for all of it, 0 for none.

A ReLU network without biases is homogeneous, f(c x) = c f(x), so the sd of an untrained one is proportional to |x| in
standardised time. Far out it exceeds the mean within the data by |x_far| / mean |x| before anything is learned.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyrodrop.data import Split

LINE, PARABOLA = 1, 2  # degrees


def fitted_rmse(series: Split, degree: int) -> float:
    """The RMSE on the training months of their least-squares polynomial of this degree, in the units of y."""
    x, y = _time(series, series.train.x), series.train.y[:, 0].double()
    powers = x[:, None] ** torch.arange(degree + 1)
    found = torch.linalg.lstsq(powers, y[:, None]).solution[:, 0]
    return float((y - powers @ found).square().mean().sqrt())


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
    observed, own = (waves @ torch.linalg.lstsq(parts, both).solution[PARABOLA + 1 :]).unbind(1)
    return float(own @ observed / (observed @ observed))


def distance_alone(series: Split, far: Tensor) -> float:
    """|x_far| / mean |x| over the training months, in standardised time."""
    return float(_time(series, far).abs().mean() / _time(series, series.train.x).abs().mean())


def _time(series: Split, x: Tensor) -> Tensor:
    """x ``[N, 1]`` in standardised time ``[N]``, float64."""
    inputs = series.train.inputs
    return (x if inputs is None else inputs(x))[:, 0].double()
