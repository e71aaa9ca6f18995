"""Scores of class probabilities.

    accuracy      fraction of examples with y_n = argmax_c p_nc
    log density   mean_n ln p_n(y_n), minus the negative log likelihood
    Brier score   mean_n sum_c (p_nc - [y_n = c])^2, from 0 to 2

Log density and Brier score are strictly proper scoring rules: their expectation is optimal only for the true probabilities.
Brier (1950), Verification of Forecasts Expressed in Terms of Probability; Gneiting & Raftery (2007), Strictly Proper Scoring
Rules, Prediction, and Estimation, section 3, https://doi.org/10.1198/016214506000001437.
"""

from __future__ import annotations

import pyro.distributions as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Categorical

from pyrodrop.arrays import tensor_of
from pyrodrop.metrics.calibration import adaptive_ece, ece
from pyrodrop.metrics.classes import Predicted, class_labels, class_probabilities
from pyrodrop.metrics.ranking import aurc
from pyrodrop.metrics.uncertainty import mutual_information, predictive_entropy
from pyrodrop.prediction.prediction import Prediction


def accuracy(predicted: Predicted, y: Tensor) -> float:
    """Fraction of the labels ``[N]`` that equal the most probable class; among equally probable classes the first counts."""
    p = class_probabilities(predicted)
    return float((p.argmax(-1) == class_labels(y, p)).double().mean())


def negative_log_likelihood(predicted: Predicted, y: Tensor) -> float:
    """Mean of -ln p(y_n | x_n) over labels ``[N]``, in nats; infinite if a label has probability 0."""
    return -_log_density(predicted, class_probabilities(predicted), y)


def brier(predicted: Predicted, y: Tensor) -> float:
    """Brier score: mean squared distance of the probabilities from the one-hot labels, from 0 to 2; lower is better.

    Args:
        predicted: a `Prediction`, or class probabilities ``[N, C]`` or ``[T, N, C]``.
        y: class labels, ``[N]``.
    """
    p = class_probabilities(predicted)
    return float((p - F.one_hot(class_labels(y, p), p.shape[1])).square().sum(-1).mean())


def classification_scores(predicted: Predicted, y: Tensor) -> dict[str, float]:
    """All scores of one prediction.

    Args:
        predicted: a `Prediction`, or class probabilities ``[N, C]`` or ``[T, N, C]`` for T samples.
        y: class labels, ``[N]``. Under `likelihoods.Missing` rows whose label is missing are left out of all scores.

    Returns:
        A dictionary with the keys ``log_density`` (nats), ``accuracy``, ``brier``, ``ece``, ``adaptive_ece``, ``aurc`` and
        ``entropy`` (nats); also ``mutual_information`` (nats), unless `predicted` are probabilities ``[N, C]``.

    Raises:
        ValueError: shapes or values of probabilities or labels are invalid.
        TypeError: `predicted` is a prediction of something else than one class label per example.

    Example:
        >>> import torch
        >>> from pyrodrop import metrics
        >>> probabilities = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
        >>> scores = metrics.classification_scores(probabilities, torch.tensor([0, 1, 1]))
        >>> {name: round(scores[name], 3) for name in ("accuracy", "brier", "log_density")}
        {'accuracy': 0.667, 'brier': 0.273, 'log_density': -0.415}
    """
    predicted, y = _of_observed(predicted, y)
    p = class_probabilities(predicted)
    confidence, choice = p.max(-1)
    scores = {
        "log_density": _log_density(predicted, p, y),
        "accuracy": accuracy(p, y),
        "brier": brier(p, y),
        "ece": ece(p, y),
        "adaptive_ece": adaptive_ece(p, y),
        "aurc": aurc(confidence, choice != class_labels(y, p)),
        "entropy": float(predictive_entropy(p).mean()),
    }
    if isinstance(predicted, Prediction) or tensor_of(predicted, "predicted").dim() == 3:
        scores["mutual_information"] = float(mutual_information(predicted).mean())
    return scores


def _of_observed(predicted: Predicted, y: Tensor) -> tuple[Predicted, Tensor]:
    """Both without the rows whose label is missing."""
    if not isinstance(predicted, Prediction) or predicted.missing is None:
        return predicted, y
    if not isinstance(predicted.distribution, Categorical):
        return predicted, y
    y, seen = predicted.observed(y)
    if seen is None:
        return predicted, y
    distribution = dist.Categorical(logits=predicted.distribution.logits[:, seen])
    return Prediction(predicted.f[:, seen], distribution, predicted.seed), y[seen]


def _log_density(predicted: Predicted, p: Tensor, y: Tensor) -> float:
    """Mean of ln p(y_n | x_n). For a `Prediction` it is computed from the logits, so probabilities do not underflow."""
    y = class_labels(y, p)
    if isinstance(predicted, Prediction):
        return float(predicted.log_density(y).double().mean())
    return float(p.gather(1, y[:, None]).log().mean())
