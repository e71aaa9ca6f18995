"""Scores of predictions of real numbers.

    rmse              sqrt(mean_nd (y_nd - E[y_nd])^2)
    log density       ln p(y_n | x_n) = logsumexp_t(-tau |y_n - f_nt|^2 / 2) - ln T + D/2 ln(tau / 2 pi)
    crps              E|Y - y| - E|Y - Y'| / 2
    pit               P(Y_n <= y_n); uniform on [0, 1] if the prediction is calibrated
    coverage          fraction of y inside the central interval of a level, where |pit - 1/2| <= level / 2
    interval width    mean width of this interval
    sharpness         sqrt(mean_nd Var[y_nd]); the expected rmse if the prediction is calibrated

Log density: Gal & Ghahramani (2016), arXiv:1506.02142, eq. 8. Crps: Gneiting & Raftery (2007), Strictly Proper Scoring
Rules, Prediction, and Estimation, section 4.2, https://doi.org/10.1198/016214506000001437.
Calibration and sharpness: Gneiting, Balabdaoui & Raftery (2007), Probabilistic Forecasts, Calibration and Sharpness,
https://doi.org/10.1111/j.1467-9868.2007.00587.x.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrodrop.arrays import tensor_of
from pyrodrop.checks import instance, real, within
from pyrodrop.data.dataset import check_finite
from pyrodrop.devices import seeded
from pyrodrop.likelihoods.shapes import elements, support_of
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.prediction.quantiles import quantiles_over_draws

_DRAWS = 1000  # samples of y for scores that need samples
_ENDS = torch.tensor([0.025, 0.975], dtype=torch.float64)  # of the interval whose width is scored


def rmse(mean: Tensor, y: Tensor) -> float:
    """Root mean squared error in the units of y.

    Args:
        mean: predicted means, ``[N, ...]``.
        y: observations, of the shape of `mean`.

    Raises:
        ValueError: the shapes differ, or a value is not finite.
    """
    mean, y = tensor_of(mean, "mean"), tensor_of(y, "y")
    if mean.shape != y.shape:
        raise ValueError(f"mean and y must have the same shape; got {tuple(mean.shape)} and {tuple(y.shape)}")
    return float((check_finite("mean", mean).double() - check_finite("y", y).double()).square().mean().sqrt())


def crps(draws: Tensor, y: Tensor) -> float:
    """Mean continuous ranked probability score in the units of y; lower is better.

    Args:
        draws: samples of y from the prediction, ``[S, N, ...]``.
        y: observations, ``[N, ...]``.

    Raises:
        ValueError: the shapes do not match, or a value is not finite.
    """
    draws, y = tensor_of(draws, "draws"), tensor_of(y, "y")
    if draws.dim() == 0 or draws.shape[1:] != y.shape:
        raise ValueError(
            "draws and y must be samples [S, ...] and observations [...] of one shape; got "
            f"{tuple(draws.shape)} and {tuple(y.shape)}"
        )
    beyond = check_finite("draws", draws).double().sort(0).values - check_finite("y", y).to(draws.device).double()
    ranks = (torch.arange(len(draws), device=draws.device).double() + 0.5).reshape(-1, *[1] * y.dim())
    weights = torch.where(beyond < 0, ranks, len(draws) - ranks)  # of quantile scores, whose mean this is
    return float(2 * (weights * beyond.abs()).mean() / len(draws))


def pit(prediction: Prediction, y: Tensor) -> Tensor:
    """Probability integral transform of every observation, in [0, 1], of the shape of y.

    It is P(Y <= y). For counts and other whole numbers it is drawn uniformly between P(Y < y) and P(Y <= y), with the seed
    of the prediction, so that it is uniform on [0, 1] under the predicted distribution: Czado, Gneiting & Held (2009),
    Predictive Model Assessment for Count Data, https://doi.org/10.1111/j.1541-0420.2009.01191.x, section 2.

    Raises:
        TypeError, ValueError: as `Prediction.cdf`, or `prediction` is no `Prediction`.
    """
    instance(prediction, Prediction, "prediction", "a Prediction")
    upto = prediction.cdf(y)
    support = support_of(prediction.distribution)
    if support is None or not support.is_discrete:
        return upto
    mass = elements(prediction.distribution).log_prob(prediction.aligned(y)).exp().mean(0)
    with seeded(prediction.seed, upto.device):
        return (upto - mass * torch.rand_like(upto)).clamp(0, 1)


def coverage(pit_values: Tensor, level: float) -> float:
    """Fraction of observations inside the central interval of probability `level`; equal to `level` if calibrated.

    Args:
        pit_values: result of `pit`, any shape, in [0, 1].
        level: probability of the interval, in (0, 1).

    Raises:
        ValueError: `level` is outside (0, 1), or a value outside [0, 1] or not finite.
    """
    real(level, "level", "the probability of a central interval", above=0, below=1)
    pit_values = check_finite("pit_values", tensor_of(pit_values, "pit_values"))
    within(pit_values, "pit_values", "the result of pit", least=0, most=1)
    return float(((pit_values - 0.5).abs() <= level / 2).double().mean())


def regression_scores(prediction: Prediction, y: Tensor) -> dict[str, float]:
    """All scores of one prediction.

    Args:
        prediction: prediction at N points.
        y: observations, ``[N]`` or ``[N, ...]``, in the units of the prediction.

    Returns:
        A dictionary with the keys ``log_density`` (nats), ``rmse``, ``crps``, ``coverage_50``, ``coverage_95``,
        ``width_95`` and ``sharpness``.

    Raises:
        TypeError: the distribution of y has no cumulative distribution function, mean or variance, as for class labels.
        ValueError: y has another shape than the prediction, or a value is not finite.

    Example:
        >>> import pyro.distributions as dist
        >>> import torch
        >>> from pyrodrop import Prediction, metrics
        >>> f = torch.tensor([[[0.0], [1.0]], [[0.2], [1.2]]])  # two samples at two points, [S, N, D]
        >>> prediction = Prediction(f, dist.Normal(f, 0.5).to_event(1))
        >>> scores = metrics.regression_scores(prediction, torch.tensor([[0.1], [1.6]]))
        >>> {name: round(scores[name], 3) for name in ("rmse", "log_density", "sharpness")}
        {'rmse': 0.354, 'log_density': -0.486, 'sharpness': 0.51}
    """
    instance(prediction, Prediction, "prediction", "a Prediction")
    log_density = float(prediction.log_density(y).double().mean())
    y = prediction.aligned(y)
    mean, variance, transformed = prediction.mean, prediction.variance, pit(prediction, y)
    draws = prediction.sample_y(max(_DRAWS, len(prediction.f)))
    return {
        "log_density": log_density,
        "rmse": rmse(mean, y),
        "crps": crps(draws, y),
        "coverage_50": coverage(transformed, 0.5),
        "coverage_95": coverage(transformed, 0.95),
        "width_95": float((quantiles_over_draws(draws, _ENDS).diff(dim=0)).mean()),
        "sharpness": float(variance.double().mean().sqrt()),
    }
