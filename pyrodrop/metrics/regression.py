"""Scores of predictions of real numbers.

    rmse              sqrt(mean_nd (y_nd - E[y_nd])^2)
    log density       ln p(y_n | x_n) = logsumexp_t(-tau |y_n - f_nt|^2 / 2) - ln T + D/2 ln(tau / 2 pi)
    crps              E|Y - y| - E|Y - Y'| / 2
    energy score      E|Y - y| - E|Y - Y'| / 2 with Euclidean norms over the columns of y: the crps where D = 1
    pit               P(Y_n <= y_n): uniform on [0, 1] if the prediction is calibrated
    coverage          share of y inside the central interval of a level: pit within level/2 of one half
    interval width    mean distance of the interval's ends
    sharpness         sqrt(mean_nd Var[y_nd]): what the rmse is expected to be, if the prediction is right

Log density: Gal & Ghahramani (2016), eq. 8. Crps and energy score: Gneiting & Raftery (2007), Strictly Proper Scoring
Rules, sections 4.2 and 4.3. Calibration and sharpness: Gneiting, Balabdaoui & Raftery (2007), Probabilistic Forecasts.
"""

from __future__ import annotations

import math

import scoringrules
import torch
from torch import Tensor

from pyrodrop.data.dataset import check_finite
from pyrodrop.likelihoods import aligned
from pyrodrop.prediction.prediction import Prediction

_DRAWS = 1000  # of y, where a score needs draws
_PAIRS = 1_000_000  # of draws held at a time


def rmse(mean: Tensor, y: Tensor) -> float:
    """Root mean squared error, in the units of y. Shapes must agree: nothing is broadcast."""
    if mean.shape != y.shape:
        raise ValueError(f"mean and y must have one shape; got {tuple(mean.shape)} and {tuple(y.shape)}")
    return float((check_finite("mean", mean).double() - check_finite("y", y).double()).square().mean().sqrt())


def log_predictive_density(f: Tensor, y: Tensor, precision: float | Tensor) -> Tensor:
    """ln p(y_n | x_n) of a Gaussian likelihood about T draws, in nats: ``[N]``.

    Args:
        f: draws of the function, ``[T, N, D]``.
        y: observations, ``[N, D]``.
        precision: tau, in the units of y to the power -2.
    """
    if f.shape[1:] != y.shape:
        raise ValueError(
            f"f must be draws of the shape of y, [T, {', '.join(map(str, y.shape))}]; got {tuple(f.shape)}"
        )
    tau = torch.as_tensor(precision, dtype=f.dtype, device=f.device)
    exponent = -tau / 2 * (y - f).square().sum(-1)
    return torch.logsumexp(exponent, 0) - math.log(len(f)) + y.shape[-1] / 2 * torch.log(tau / (2 * math.pi))


def crps(draws: Tensor, y: Tensor) -> float:
    """Mean continuous ranked probability score of draws ``[S, N, ...]``, in the units of y; lower is better."""
    _check_draws(draws, y)
    scores = scoringrules.crps_ensemble(
        y.double().cpu().numpy(), draws.double().cpu().numpy(), m_axis=0, estimator="qd"
    )
    return float(scores.mean())


def energy_score(draws: Tensor, y: Tensor) -> float:
    """Mean energy score of draws ``[S, N, D]`` of all columns at once, in the units of y; lower is better.

    Unlike a mean of the columns' crps it sees how they go together. The columns should be in comparable units.
    """
    _check_draws(draws, y)
    if y.dim() != 2:
        raise ValueError(f"the energy score is of vectors, y of shape [N, D]; got {tuple(y.shape)}")
    rows = max(1, _PAIRS // len(draws) ** 2)
    parts = zip(y.to(draws.device).double().split(rows), draws.double().split(rows, dim=1), strict=True)
    scores = [scoringrules.es_ensemble(part, fct, m_axis=0, estimator="nrg", backend="torch") for part, fct in parts]
    return float(torch.cat(scores).mean())


def pit(prediction: Prediction, y: Tensor) -> Tensor:
    """Probability integral transform of every observation, in [0, 1]: of the shape of y."""
    return prediction.cdf(y)


def coverage(pit_values: Tensor, level: float) -> float:
    """Share of observations inside the central interval of probability `level`, to be compared with `level`."""
    _check_level(level)
    check_finite("pit_values", pit_values)
    return float(((pit_values - 0.5).abs() <= level / 2).double().mean())


def interval_width(draws: Tensor, level: float) -> float:
    """Mean width of the central interval of probability `level` of draws ``[S, N, D]``, in the units of y."""
    _check_level(level)
    check_finite("draws", draws)
    ends = torch.quantile(
        draws.double(), torch.tensor([0.5 - level / 2, 0.5 + level / 2]).double().to(draws.device), dim=0
    )
    return float((ends[1] - ends[0]).mean())


def sharpness(prediction: Prediction) -> float:
    """Root mean variance of the prediction, observation noise included, in the units of y; lower is sharper."""
    return float(prediction.variance.double().mean().sqrt())


def regression_scores(prediction: Prediction, y: Tensor) -> dict[str, float]:
    """The scores of one prediction in plain numbers; the energy score where one y is several numbers.

    Raises:
        TypeError: y is no real number: its distribution has no cumulative distribution function, mean or variance.

    Example:
        >>> import pyro.distributions as dist
        >>> import torch
        >>> from pyrodrop import Prediction, metrics
        >>> f = torch.tensor([[[0.0], [1.0]], [[0.2], [1.2]]])  # two draws at two points, [S, N, D]
        >>> prediction = Prediction(f, dist.Normal(f, 0.5).to_event(1))
        >>> scores = metrics.regression_scores(prediction, torch.tensor([[0.1], [1.6]]))
        >>> {name: round(scores[name], 3) for name in ("rmse", "log_density", "sharpness")}
        {'rmse': 0.354, 'log_density': -0.486, 'sharpness': 0.51}
    """
    y = check_finite("y", aligned(y, prediction.law))
    transformed = pit(prediction, y)
    draws = prediction.sample_y(max(_DRAWS, len(prediction.f)))
    scores = {
        "log_density": float(prediction.log_density(y).double().mean()),
        "rmse": rmse(prediction.mean, y),
        "crps": crps(draws, y),
        "coverage_50": coverage(transformed, 0.5),
        "coverage_95": coverage(transformed, 0.95),
        "width_95": interval_width(draws, 0.95),
        "sharpness": sharpness(prediction),
    }
    if y[0].numel() == 1:
        return scores
    return scores | {"energy_score": energy_score(draws[:_DRAWS].flatten(2), y.flatten(1))}


def _check_draws(draws: Tensor, y: Tensor) -> None:
    if draws.shape[1:] != y.shape:
        raise ValueError(f"draws must be of the shape of y, {tuple(y.shape)}; got {tuple(draws.shape)}")
    check_finite("draws", draws)
    check_finite("y", y)


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level is the probability of a central interval and must lie in (0, 1); got {level}")
