"""Is what a model is sure of also right, and what it is unsure of foreign?

    risk(n) = mean loss of the n most confident predictions,   n = 1 ... N
    AURC    = mean_n risk(n)
    AUROC   = P(score of an outsider > score of an insider) + P(equal) / 2

Both depend on the order of the scores alone. El-Yaniv & Wiener (2010), On the Foundations of Noise-free Selective
Classification; Geifman, Uziel & El-Yaniv (2019), Bias-Reduced Uncertainty Estimation; Hanley & McNeil (1982), The
Meaning and Use of the Area under a ROC Curve; for outsiders Hendrycks & Gimpel (2017), A Baseline for Detecting
Misclassified and Out-of-Distribution Examples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrodrop.data.dataset import check_finite


def risk_coverage(confidence: Tensor, loss: Tensor) -> Tensor:
    """Mean loss of the n most confident of N predictions, for n = 1 ... N, so at coverage n / N: ``[N]``.

    Among equal confidences the order is left to chance, and the risk is its expectation.

    Args:
        confidence: ``[N]``, higher is surer: the highest probability of a class, minus a standard deviation or entropy ...
        loss: ``[N]``: whether the prediction is wrong, a squared error ...
    """
    confidence, loss = _scores("confidence", confidence), check_finite("loss", loss).double()
    if loss.shape != confidence.shape:
        raise ValueError(
            f"confidence and loss must have one shape; got {tuple(confidence.shape)} and {tuple(loss.shape)}"
        )
    _, group, size = torch.unique(-confidence, return_inverse=True, return_counts=True)
    of_group = torch.zeros(len(size), dtype=loss.dtype, device=loss.device).index_add(0, group, loss) / size
    ordered = of_group.repeat_interleave(size)
    return ordered.cumsum(0) / torch.arange(1, len(loss) + 1, device=loss.device)


def aurc(confidence: Tensor, loss: Tensor) -> float:
    """Area under the curve of risk over coverage; see `risk_coverage`. Lower is better."""
    return float(risk_coverage(confidence, loss).mean())


def auroc(inside: Tensor, outside: Tensor) -> float:
    """How well a score tells outsiders: 1 if each of theirs is higher than each insider's, 1/2 if it says nothing.

    Args:
        inside: scores of points like those of training, ``[N]``: `predictive_entropy`, `mutual_information`, a spread ...
        outside: scores of points unlike them, ``[M]``; N and M need not be equal.
    """
    ordered, outside = _scores("inside", inside).sort().values, _scores("outside", outside).to(inside.device)
    below = torch.searchsorted(ordered, outside)
    not_above = torch.searchsorted(ordered, outside, right=True)
    return float((below + not_above).double().mean() / (2 * len(ordered)))


def _scores(name: str, values: Tensor) -> Tensor:
    """Scores to be put in order: a vector without NaN; infinite ones have their place."""
    if values.dim() != 1 or len(values) == 0 or bool(values.isnan().any()):
        raise ValueError(
            f"{name} must be a vector of at least one score, none of them NaN; got shape {tuple(values.shape)} with "
            f"{int(values.isnan().sum())} NaN"
        )
    return values.double()
