"""Scores of class probabilities.

    accuracy      share of y_n = argmax_c p_nc
    log density   mean_n ln p_n(y_n), the negative log likelihood with its sign turned
    Brier score   mean_n sum_c (p_nc - [y_n = c])^2, from 0 to 2

Both are strictly proper: lowest in expectation for the true probabilities. Brier (1950), Verification of Forecasts
Expressed in Terms of Probability; Gneiting & Raftery (2007), Strictly Proper Scoring Rules, section 3.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from pyrodrop.metrics.calibration import adaptive_ece, ece
from pyrodrop.metrics.classes import Predicted, class_labels, class_probabilities
from pyrodrop.metrics.ranking import aurc
from pyrodrop.metrics.uncertainty import mutual_information, predictive_entropy
from pyrodrop.prediction.prediction import Prediction


def accuracy(predicted: Predicted, y: Tensor) -> float:
    """Share of labels ``[N]`` that are the likeliest class; of equally likely classes the first counts."""
    p = class_probabilities(predicted)
    return float((p.argmax(-1) == class_labels(y, p)).double().mean())


def negative_log_likelihood(predicted: Predicted, y: Tensor) -> float:
    """Mean of -ln p(y_n | x_n) over labels ``[N]``, in nats; infinite if a label was given no probability at all."""
    return -_log_density(predicted, class_probabilities(predicted), y)


def brier(predicted: Predicted, y: Tensor) -> float:
    """Mean squared distance of the probabilities from the labels ``[N]`` as unit vectors; lower is better."""
    p = class_probabilities(predicted)
    return float((p - F.one_hot(class_labels(y, p), p.shape[1])).square().sum(-1).mean())


def classification_scores(predicted: Predicted, y: Tensor) -> dict[str, float]:
    """The scores of one prediction in plain numbers; the mutual information only where there are draws to tell it.

    Example:
        >>> import torch
        >>> from pyrodrop import metrics
        >>> probabilities = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
        >>> scores = metrics.classification_scores(probabilities, torch.tensor([0, 1, 1]))
        >>> {name: round(scores[name], 3) for name in ("accuracy", "brier", "log_density")}
        {'accuracy': 0.667, 'brier': 0.273, 'log_density': -0.415}
    """
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
    if isinstance(predicted, Prediction) or predicted.dim() == 3:
        scores["mutual_information"] = float(mutual_information(predicted).mean())
    return scores


def _log_density(predicted: Predicted, p: Tensor, y: Tensor) -> float:
    """Mean of ln p(y_n | x_n), of a prediction from the logits, none of whose probabilities underflows."""
    y = class_labels(y, p)
    if isinstance(predicted, Prediction):
        return float(predicted.log_density(y).double().mean())
    return float(p.gather(1, y[:, None]).log().mean())
