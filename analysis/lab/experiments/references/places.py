"""Points at which the spread of f is compared with that of the reference, from the training inputs x_n ``[N, D]``:

    at        training inputs, at most 100, evenly spaced in their order
    between   of 2000 midpoints of random pairs of training inputs, the 100 that are farthest from a training input
    away      mean + 3 (x_n - mean), the half that is farthest from a training input, at most 100
    line      mid + t half, -3 <= t <= 3: at t = -1 and 1 are the first and the last training input along the first principal
              direction through the mean; of classes, the first input and the first one of another class

Distances, the mean and the principal direction are those of standardised inputs, z = (x - mean) / sd in every column that
varies. The distance of a point is that to the nearest training input. In a series without gaps no midpoint is far from the
data, so that ``between`` is practically the same as ``at``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyrodrop.data import Dataset

MOST, PAIRS, STRETCH, REACH, STEPS = 100, 2000, 3.0, 3.0, 39


class Line(NamedTuple):
    """t ``[T]`` and the points ``[T, D]`` of a line, and t of training inputs: their projections, or the two digits."""

    t: Tensor
    x: Tensor
    data: Tensor


def places(train: Dataset) -> dict[str, Tensor]:
    """The three sets of points, ``[at most 100, D]`` each."""
    x, mean, scale = _standard(train)

    def farthest(points: Tensor, most: int) -> Tensor:
        distance = torch.cdist((points - mean) / scale, (x - mean) / scale).amin(1)
        return points[distance.argsort(descending=True)[: min(MOST, most)]]

    pairs = torch.randint(len(x), (2, PAIRS), generator=torch.Generator().manual_seed(0))
    sets = {
        "at": _evenly(x),
        "between": farthest((x[pairs[0]] + x[pairs[1]]) / 2, PAIRS),
        "away": farthest(mean + STRETCH * (x - mean), len(x) // 2),
    }
    return {name: points.to(train.x.dtype) for name, points in sets.items()}


def line(train: Dataset) -> Line:
    """The line through the data."""
    x, mean, scale = _standard(train)
    t = REACH * torch.arange(-STEPS, STEPS + 1, dtype=torch.float64) / STEPS
    if train.y.is_floating_point():
        z = (x - mean) / scale
        direction = torch.linalg.svd(z, full_matrices=False).Vh[0]
        direction = direction * direction[direction.abs().argmax()].sign()  # the same on every processor
        score = z @ direction
        low, high = (mean + scale * direction * end for end in (score.min(), score.max()))
        data = _evenly((2 * score - score.max() - score.min()) / (score.max() - score.min()))
    else:
        low, high = x[0], x[(train.y != train.y[0]).int().argmax()]
        data = torch.tensor([-1.0, 1.0])
    return Line(t, ((low + high) / 2 + t[:, None] * (high - low) / 2).to(train.x.dtype), data)


def _evenly(rows: Tensor) -> Tensor:
    """At most 100 of the rows."""
    count = min(MOST, len(rows))
    return rows[torch.arange(count) * len(rows) // count]


def _standard(train: Dataset) -> tuple[Tensor, Tensor, Tensor]:
    """The training inputs in float64, their mean, and their standard deviation, 1 in columns that do not vary."""
    x = train.x.double()
    sd = x.std(0)
    return x, x.mean(0), torch.where(sd > 0, sd, 1.0)
