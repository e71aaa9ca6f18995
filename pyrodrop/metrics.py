"""How good a prediction is, on observations that were held out.

    rmse              sqrt(mean_n |y_n - E[y_n]|^2)
    log density       ln p(y_n | x_n) = logsumexp_t(-tau |y_n - f_nt|^2 / 2) - ln T + D/2 ln(tau / 2 pi)
    crps              E|Y - y| - E|Y - Y'| / 2
    pit               P(Y_n <= y_n): uniform on [0, 1] if the prediction is calibrated
    coverage          share of y inside the central interval of a level: pit within level/2 of one half
    interval width    mean distance of the interval's ends

Log density: Gal & Ghahramani (2016), eq. 8. Scores: Gneiting & Raftery (2007), Strictly Proper Scoring Rules.
"""

from __future__ import annotations

import math

import scoringrules
import torch
from torch import Tensor

from pyrodrop.predictive import Prediction

_DRAWS = 1000  # of y, where a score needs draws


def rmse(mean: Tensor, y: Tensor) -> float:
    """Root mean squared error, in the units of y. Shapes must agree: nothing is broadcast."""
    if mean.shape != y.shape:
        raise ValueError(f"mean and y must have one shape; got {tuple(mean.shape)} and {tuple(y.shape)}")
    return float((mean.double() - y.double()).square().mean().sqrt())


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
    """Mean continuous ranked probability score of draws ``[S, N, D]``, in the units of y; lower is better."""
    if draws.shape[1:] != y.shape:
        raise ValueError(f"draws must be of the shape of y, {tuple(y.shape)}; got {tuple(draws.shape)}")
    scores = scoringrules.crps_ensemble(
        y.double().cpu().numpy(), draws.double().cpu().numpy(), m_axis=0, estimator="qd"
    )
    return float(scores.mean())


def pit(prediction: Prediction, y: Tensor) -> Tensor:
    """Probability integral transform of every observation, in [0, 1]: ``[N, D]``."""
    return prediction.cdf(y)


def coverage(pit_values: Tensor, level: float) -> float:
    """Share of observations inside the central interval of probability `level`, to be compared with `level`."""
    _check_level(level)
    return float(((pit_values - 0.5).abs() <= level / 2).double().mean())


def interval_width(draws: Tensor, level: float) -> float:
    """Mean width of the central interval of probability `level` of draws ``[S, N, D]``, in the units of y."""
    _check_level(level)
    ends = torch.quantile(
        draws.double(), torch.tensor([0.5 - level / 2, 0.5 + level / 2]).double().to(draws.device), dim=0
    )
    return float((ends[1] - ends[0]).mean())


def regression_scores(prediction: Prediction, y: Tensor) -> dict[str, float]:
    """All of the above for one prediction: what the tables of the experiments show."""
    y = y[:, None] if y.dim() == 1 else y
    transformed = pit(prediction, y)
    draws = prediction.sample_y(max(_DRAWS, len(prediction.f)))
    return {
        "log_density": float(prediction.log_density(y).double().mean()),
        "rmse": rmse(prediction.mean, y),
        "crps": crps(draws, y),
        "coverage_50": coverage(transformed, 0.5),
        "coverage_95": coverage(transformed, 0.95),
        "width_95": interval_width(draws, 0.95),
    }


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level is the probability of a central interval and must lie in (0, 1); got {level}")
