"""Scores of single rows: the uncertainty of y, and the information in it.

    entropy    H[y_n] = H[ p(y_n) ],   p(y_n) = mean_s p(y_n | f_s)
    variance   Var[y_n]
    BALD       I[y_n; f] = H[y_n] - mean_s H[y_n | f_s]
    EPIG       mean_m I[y_n; y*_m] = mean_m ( H[y_n] + H[y*_m] - H[y_n, y*_m] ),   p(y, y*) = mean_s p(y | f_s) p(y* | f_s)

Entropies are in nats; for real y they are differential entropies, with y in its units. With S draws, BALD, and EPIG of
classes, are at most ln S.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyrodrop.analysis.acquire.draws import Classes, blocks, draws_of
from pyrodrop.analysis.acquire.mixture_entropy import mixture_entropy
from pyrodrop.arrays import tensor_of
from pyrodrop.metrics import mutual_information, predictive_entropy
from pyrodrop.metrics.classification import class_probabilities
from pyrodrop.prediction.prediction import Prediction


def entropy(prediction: Prediction) -> Tensor:
    """H[y_n], the entropy of the predictive distribution of every row, ``[N]`` in float64, in nats.

    For a label it is between 0 and ln C. For a real y it is the differential entropy of the mixture of Gaussians, with y in
    its units, by deterministic quadrature with an error below 1e-8.

    Raises:
        TypeError: `prediction` is no `Prediction`, or not of one label or one real y with Gaussian noise.
        ValueError: its parameters are not finite; noise is less than 1/4096 of the range of f.

    Example:
        >>> import torch, pyro.distributions as dist, pyrodrop
        >>> from pyrodrop.analysis import acquire
        >>> f = torch.tensor([[[0.0, 0.0], [4.0, 0.0]], [[0.0, 0.0], [0.0, 4.0]]])  # 2 draws, 2 rows, 2 classes
        >>> acquire.entropy(pyrodrop.Prediction(f, dist.Categorical(logits=f)))
        tensor([0.6931, 0.6931], dtype=torch.float64)
    """
    draws = draws_of(prediction, "entropy", least=1)
    return predictive_entropy(prediction) if isinstance(draws, Classes) else mixture_entropy(draws.loc, draws.scale)


def variance(prediction: Prediction) -> Tensor:
    """Var[y_n] of every row, ``[N]`` in float64, observation noise included.

    For a real y it is `Prediction.variance`, in squared units of y. For a label it is the sum of the variances of the class
    indicators, sum_c p_c (1 - p_c), between 0 and 1 - 1 / C.

    Raises:
        TypeError: `prediction` is no `Prediction`, or not of one label or one real y with Gaussian noise.
        ValueError: its parameters are not finite.

    Example:
        >>> import torch, pyro.distributions as dist, pyrodrop
        >>> from pyrodrop.analysis import acquire
        >>> f = torch.tensor([[[-1.0]], [[1.0]]])
        >>> acquire.variance(pyrodrop.Prediction(f, dist.Normal(f, 0.5).to_event(1)))
        tensor([1.2500], dtype=torch.float64)
    """
    draws = draws_of(prediction, "variance", least=1)
    if isinstance(draws, Classes):
        p = class_probabilities(prediction)
        return (p * (1 - p)).sum(-1)
    return draws.scale.square().mean(0) + draws.loc.var(0, correction=0)


def bald(prediction: Prediction) -> Tensor:
    """I[y_n; f] = H[y_n] - mean_s H[y_n | f_s], the information of y_n about the function, ``[N]`` in float64, in nats.

    It is between 0 and ln S for S draws. For labels it is `metrics.mutual_information`. For a real y, H[y_n] is the entropy
    of the mixture of Gaussians, by deterministic quadrature with an error below 1e-8, not of a moment-matched Gaussian.

    Houlsby et al. (2011), https://arxiv.org/abs/1112.5745, eq. 2; Gal, Islam & Ghahramani (2017),
    https://arxiv.org/abs/1703.02910.

    Raises:
        TypeError: `prediction` is no `Prediction`, or not of one label or one real y with Gaussian noise.
        ValueError: it has one draw only, or parameters that are not finite; noise is less than 1/4096 of the range of f.

    Example:
        >>> import torch, pyro.distributions as dist, pyrodrop
        >>> from pyrodrop.analysis import acquire
        >>> f = torch.tensor([[[0.0, 0.0], [4.0, 0.0]], [[0.0, 0.0], [0.0, 4.0]]])  # the draws disagree in the second row
        >>> acquire.bald(pyrodrop.Prediction(f, dist.Categorical(logits=f)))
        tensor([0.0000, 0.6031], dtype=torch.float64)
    """
    draws = draws_of(prediction, "bald")
    if isinstance(draws, Classes):
        return mutual_information(prediction)
    given_f = draws.scale.log().mean(0) + 0.5 * math.log(2 * math.pi * math.e)
    return (mixture_entropy(draws.loc, draws.scale) - given_f).clamp_min(0)  # it is below 0 only by rounding


def epig(prediction: Prediction, targets: Any) -> Tensor:
    """mean_m I[y_n; y*_m], the information of y_n about new observations at target rows, ``[N]`` in float64, in nats.

    y_n and y*_m are independent given f, also if n = m. To use targets outside the pool, predict them together with it, so
    that all rows have the same draws: ``run.predict(torch.cat([pool, wanted]))``, with the targets
    ``range(len(pool), len(pool) + len(wanted))``. The first ``len(pool)`` scores are then those of the pool.

    For labels I is computed from p(y, y*) = mean_s p(y | f_s) p(y* | f_s), over all pairs of classes. For a real y it is
    that of a Gaussian with the covariance of y_n and y*_m over the draws (moment-matched): -1/2 ln(1 - rho^2) for their
    correlation rho. If f at n and m are independent, the estimate from S draws is not 0 but on average up to 1 / (2 S).

    Smith et al. (2023), Prediction-Oriented Bayesian Active Learning, https://arxiv.org/abs/2304.08151.

    Args:
        prediction: prediction at all N rows, with joint draws.
        targets: M row numbers of the prediction, 0 ... N - 1: the rows at which predictions matter. They have equal weights
            in the mean.

    Raises:
        TypeError: as for `bald`, or `targets` are no whole numbers.
        ValueError: the prediction has one draw only, draws that are independent at every point (``joint=False``), or
            parameters that are not finite; noise is less than 1e-6 of the standard deviation of a real y; targets are not a
            list or vector of row numbers.

    Example:
        >>> import torch, pyro.distributions as dist, pyrodrop
        >>> from pyrodrop.analysis import acquire
        >>> f = torch.tensor([[[1.0], [0.0], [1.0]], [[-1.0], [0.0], [-1.0]]])  # 2 draws, 3 rows
        >>> acquire.epig(pyrodrop.Prediction(f, dist.Normal(f, 1.0).to_event(1)), targets=[2])
        tensor([0.1438, 0.0000, 0.1438], dtype=torch.float64)
    """
    draws = draws_of(prediction, "epig", joint=True)
    count = prediction.f.shape[1]
    wanted = _rows(targets, count).to(prediction.f.device)
    scores = torch.empty(count, dtype=torch.float64, device=prediction.f.device)
    if isinstance(draws, Classes):
        theirs = draws.log_probabilities(wanted).exp()
        samples, others, classes = theirs.shape
        for rows, p in draws.blocks(others * classes**2):
            both = p.flatten(1).T @ theirs.flatten(1) / samples
            together = torch.special.entr(both).reshape(-1, classes, others, classes).sum((1, 3))
            information = _entropy(p)[:, None] + _entropy(theirs) - together
            scores[rows] = information.clamp_min(0).mean(1)  # below 0 only by rounding
        return scores
    centred, noise = draws.moments()
    total = noise + centred.square().sum(0)
    for rows in blocks(count, len(wanted)):
        squared = (centred[:, rows].T @ centred[:, wanted]).square() / (total[rows, None] * total[wanted])
        scores[rows] = (-0.5 * torch.log1p(-squared)).mean(1)
    return scores


def _entropy(p: Tensor) -> Tensor:
    """Entropy of the mean of probabilities ``[S, n, C]``, ``[n]``."""
    return torch.special.entr(p.mean(0)).sum(-1)


def _rows(targets: Any, count: int) -> Tensor:
    """Row numbers ``[M]``, checked."""
    what = f"targets must be row numbers of the prediction, whole numbers from 0 to {count - 1} in a list or vector"
    rows = tensor_of(targets, "targets")
    if rows.is_floating_point() or rows.dtype == torch.bool:
        raise TypeError(f"{what}; got {rows.dtype} of shape {list(rows.shape)}")
    if rows.dim() != 1 or not rows.numel():
        raise ValueError(f"{what}; got shape {list(rows.shape)}")
    if not 0 <= int(rows.min()) <= int(rows.max()) < count:
        raise ValueError(f"{what}; got numbers from {int(rows.min())} to {int(rows.max())}")
    return rows.long()
