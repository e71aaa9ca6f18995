"""Intervals and sets that contain a new observation with the stated probability, however good or bad the model is.

    score        s_n = max(lo_n - y_n, y_n - hi_n)             "quantiles": lo, hi the predictive interval
                 s_n = |y_n - m_n| / sd_n                      "residuals": m, sd its mean and standard deviation
                 s_n = 1 - p(y_n | x_n)                        class labels
    Q            the k-th smallest of n scores,  k = ceil((n + 1) level)
    interval     [lo - Q, hi + Q],   [m - Q sd, m + Q sd],   {c: 1 - p(c | x) <= Q}

Let the held-out rows and a new row be exchangeable, as independent rows of one population are. Then the new y lies inside
with probability k / (n + 1) >= level, or more if scores are equal. This is an average over new rows and over
held-out sets: coverage differs between x, and between sets by about sqrt(level (1 - level) / n).

Vovk, Gammerman & Shafer (2005), Algorithmic Learning in a Random World; Lei, G'Sell, Rinaldo, Tibshirani & Wasserman (2018),
arXiv:1604.04173, for residuals in units of a scale; Romano, Patterson & Candes (2019), arXiv:1905.03222, for quantiles;
Sadinle, Lei & Wasserman (2019), arXiv:1609.00451, for class labels. With groups, every group has its own Q (Mondrian). With
blocks, such as the days of a series, the score of a block is the largest of its rows: all rows of a new block lie inside
with this probability if blocks are exchangeable.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch.distributions import Categorical

from pyrodrop.arguments import instance, shown
from pyrodrop.constraints import Real, checked
from pyrodrop.likelihoods import elements
from pyrodrop.metrics.recalibration import finite_sd
from pyrodrop.prediction.prediction import Prediction

Score = Literal["quantiles", "residuals"]
Level = Annotated[float, Real("the probability that a new observation lies inside", above=0, below=1)]


@dataclass(frozen=True)
class Conformal:
    """Held-out predictions and observations, made by `conformal`, from which intervals and sets are computed.

    Attributes:
        held_out: the prediction of the held-out rows.
        y: their observations, ``[N, ...]``.
        score: ``"quantiles"`` or ``"residuals"``, see `conformal`.
        units: by group, a list of blocks, each a list of row indices; without blocks, every row is a block.
    """

    held_out: Prediction
    y: Tensor
    score: Score
    units: dict[Hashable, list[list[int]]]

    @checked
    def interval(self, prediction: Prediction, level: Level = 0.9, *, groups: Any = None) -> tuple[Tensor, Tensor]:
        """The ends of an interval for every element of y, ``[N, ...]`` each. An interval can be empty (low above high).

        Args:
            prediction: prediction of the same run at new points.
            groups: the group of every new row, if the held-out rows have groups.

        Raises:
            ValueError: a group has too few held-out rows for this level, or none; the predictions have another shape, or,
                for residuals, no finite standard deviation.
            TypeError: y are class labels, see `sets`; `prediction` is no `Prediction`.
        """
        _numbers(prediction, "sets")
        low, high, scale = self._parts(prediction, level)
        reach = self._reach(self._scores(level), level, self._rows(prediction, groups)).to(scale)
        return low - reach * scale, high + reach * scale

    @checked
    def sets(self, prediction: Prediction, level: Level = 0.9, *, groups: Any = None) -> Tensor:
        """Which classes are in the set of every label, bool ``[N, ..., classes]``; a set can be empty if no class is likely.

        The arguments and errors are those of `interval`; y must be class labels.
        """
        _labels(prediction)
        reach = self._reach(self._scores(level), level, self._rows(prediction, groups))[..., None]
        return 1 - _probabilities(prediction) <= reach.to(self.y.device)

    def _parts(self, prediction: Prediction, level: float) -> tuple[Tensor, Tensor, Tensor]:
        """The ends before calibration, in double precision, and the factor of Q."""
        if self.score == "quantiles":
            low, high = (end.double() for end in prediction.interval(level))
            return low, high, torch.ones_like(low)
        sd, mean = finite_sd(prediction).double(), prediction.mean.double()
        return mean, mean, sd

    def _scores(self, level: float) -> Tensor:
        """The score of every element of y, ``[N, ...]``."""
        if isinstance(elements(self.held_out.distribution), Categorical):
            return 1 - _probabilities(self.held_out).gather(-1, self.y[..., None])[..., 0]
        low, high, scale = self._parts(self.held_out, level)
        return torch.maximum(low - self.y, self.y - high) / scale

    def _reach(self, scores: Tensor, level: float, groups: list[Hashable]) -> Tensor:
        """Q for every new row, ``[N, ...]``."""
        if unknown := set(groups) - self.units.keys():
            raise ValueError(f"groups must be of the held-out rows; got {sorted(map(str, unknown))[:4]}")
        found = {}
        for group in set(groups):
            each = torch.stack([scores[rows].amax(0) for rows in self.units[group]])
            k = math.ceil((len(each) + 1) * level - 1e-9)
            if k > len(each):
                least = math.ceil(level / (1 - level) - 1e-9)
                of = "" if group is None else f" of group {group!r}"
                raise ValueError(
                    f"level={level:g} needs at least {least} held-out rows{of}, or blocks; got {len(each)}, and only an "
                    "interval without ends is sure to have this coverage"
                )
            found[group] = each.kthvalue(k, 0).values
        return torch.stack([found[group] for group in groups])

    def _rows(self, prediction: Prediction, groups: Any) -> list[Hashable]:
        """The group of every new row."""
        shape = self.held_out.distribution.batch_shape[2:] + self.held_out.distribution.event_shape
        new = prediction.distribution.batch_shape[2:] + prediction.distribution.event_shape
        if new != shape:
            raise ValueError(f"prediction must be of a y of shape {list(shape)} at a point; got {list(new)}")
        grouped = None not in self.units
        if grouped != (groups is not None):
            raise ValueError(
                f"groups must be given {'for new rows, too' if grouped else 'for the held-out rows first'}"
            )
        rows = prediction.f.shape[1]
        return [None] * rows if groups is None else _keys(groups, rows, "groups")


@checked
def conformal(
    prediction: Prediction, y: Any, *, score: Score = "quantiles", groups: Any = None, blocks: Any = None
) -> Conformal:
    """Make intervals, or sets of classes, that cover new observations with a guaranteed probability.

    The held-out rows must not have been used for training, nor for choosing the model. `calibrate` returns a distribution
    with a density instead, without such a guarantee.

    Args:
        prediction: prediction of a run at the held-out points.
        y: the observations there, ``[N, ...]``, or class labels.
        score: ``"quantiles"`` moves both ends of the predictive interval by the same number, in the units of y;
            ``"residuals"`` multiplies the predictive standard deviation. Not used for class labels.
        groups: a label per row, for coverage within each group; None for a single group.
        blocks: a label per row, for coverage of whole new blocks; None if every row is a block.

    Raises:
        ValueError: y does not fit the prediction; `groups` or `blocks` does not have one label per row; a block lies in
            several groups.
        TypeError: `prediction` is no `Prediction`.

    Example:
        >>> import torch, pyro.distributions as dist, pyrodrop
        >>> y = torch.arange(-9.0, 10.0)[:, None]
        >>> f = torch.zeros(1, 19, 1)
        >>> held_out = pyrodrop.Prediction(f, dist.Normal(f, 0.1).to_event(1))  # far too sure
        >>> low, high = pyrodrop.metrics.conformal(held_out, y).interval(held_out, 0.9)
        >>> high[0]  # the 18th of 19 absolute values
        tensor([9.], dtype=torch.float64)
    """
    instance(prediction, Prediction, "prediction", "a Prediction, such as run.predict(x)")
    if not isinstance(elements(prediction.distribution), Categorical):
        _numbers(prediction, "sets")
    values, seen = prediction.observed(y)
    complete = torch.ones(len(values), dtype=torch.bool) if seen is None else seen.flatten(1).all(1).cpu()
    rows = len(values)
    group_of = [None] * rows if groups is None else _keys(groups, rows, "groups")
    block_of = list(range(rows)) if blocks is None else _keys(blocks, rows, "blocks")
    units: dict[Hashable, dict[Hashable, list[int]]] = {}
    home: dict[Hashable, Hashable] = {}
    for row, (group, block) in enumerate(zip(group_of, block_of, strict=True)):
        if home.setdefault(block, group) != group:
            raise ValueError(f"blocks must lie in one group each; block {block!r} is in {home[block]!r} and {group!r}")
        if complete[row]:
            units.setdefault(group, {}).setdefault(block, []).append(row)
    kept = values if isinstance(elements(prediction.distribution), Categorical) else values.double()
    return Conformal(prediction, kept.clone(), score, {group: list(each.values()) for group, each in units.items()})


def _keys(labels: Any, rows: int, name: str) -> list[Hashable]:
    """One label per row, from a list, an array, a tensor or a column."""
    listed = labels.tolist() if hasattr(labels, "tolist") else labels
    listed = list(listed) if not isinstance(listed, str) and hasattr(listed, "__iter__") else []
    if len(listed) != rows or not all(isinstance(each, Hashable) and each == each for each in listed):
        raise ValueError(
            f"{name} must have one label for each of the {rows} rows; got {shown(labels)} with {len(listed)}"
        )
    return listed


def _probabilities(prediction: Prediction) -> Tensor:
    """p(c | x), ``[N, ..., classes]``, in double precision."""
    of_element: Any = elements(prediction.distribution)
    return of_element.probs.double().mean(0)


def _labels(prediction: Any) -> None:
    instance(prediction, Prediction, "prediction", "a Prediction, such as run.predict(x)")
    if not isinstance(elements(prediction.distribution), Categorical):
        raise TypeError("prediction must be of class labels for sets; got one of numbers: see interval")


def _numbers(prediction: Any, instead: str) -> None:
    instance(prediction, Prediction, "prediction", "a Prediction, such as run.predict(x)")
    if isinstance(elements(prediction.distribution), Categorical):
        raise TypeError(f"prediction must be of numbers for intervals; got one of class labels: see {instead}")
