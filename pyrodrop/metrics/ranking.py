"""Scores of confidence rankings: selective prediction and out-of-distribution detection.

    risk(n) = mean loss of the n most confident predictions,   n = 1 ... N
    AURC    = mean_n risk(n)
    AUROC   = P(score of an out-of-distribution example > score of an in-distribution example) + P(equal) / 2

Both depend only on the order of the scores. El-Yaniv & Wiener (2010), On the Foundations of Noise-free Selective
Classification, https://jmlr.org/papers/v11/el-yaniv10a.html; Geifman, Uziel & El-Yaniv (2019), Bias-Reduced Uncertainty
Estimation, arXiv:1805.08206; Hanley & McNeil (1982), The Meaning and Use of the Area under a ROC Curve. On
out-of-distribution detection: Hendrycks & Gimpel (2017), A Baseline for Detecting Misclassified and Out-of-Distribution
Examples, arXiv:1610.02136.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrodrop.arrays import tensor_of
from pyrodrop.data.dataset import check_finite


def risk_coverage(confidence: Tensor, loss: Tensor) -> Tensor:
    """Mean loss of the n most confident of N predictions for n = 1 ... N, that is, at coverage n / N: ``[N]``.

    Predictions with equal confidence are ordered at random, and the expected risk is returned.

    Args:
        confidence: confidence of each prediction, ``[N]``, such as the highest class probability or minus a standard
            deviation or entropy.
        loss: loss of each prediction, ``[N]``, such as a squared error or whether the label is wrong.

    Raises:
        ValueError: the shapes differ, `confidence` is not a vector without NaN, or a loss is not finite.
    """
    confidence, loss = _scores("confidence", confidence), check_finite("loss", tensor_of(loss, "loss")).double()
    if loss.shape != confidence.shape:
        raise ValueError(
            f"confidence and loss must have the same shape; got {tuple(confidence.shape)} and {tuple(loss.shape)}"
        )
    _, group, size = torch.unique(-confidence, return_inverse=True, return_counts=True)
    of_group = torch.zeros(len(size), dtype=loss.dtype, device=loss.device).index_add(0, group, loss) / size
    ordered = of_group.repeat_interleave(size)
    return ordered.cumsum(0) / torch.arange(1, len(loss) + 1, device=loss.device)


def aurc(confidence: Tensor, loss: Tensor) -> float:
    """Area under the risk-coverage curve, in the units of `loss`; see `risk_coverage`. Lower is better."""
    return float(risk_coverage(confidence, loss).mean())


def auroc(inside: Tensor, outside: Tensor) -> float:
    """Area under the ROC curve of a score that should be higher for out-of-distribution examples.

    It is 1 if every score of `outside` is higher than every score of `inside`, and 1/2 for an uninformative score.

    Args:
        inside: scores of in-distribution examples, ``[N]``, such as `predictive_entropy` or `mutual_information`.
        outside: scores of out-of-distribution examples, ``[M]``.

    Raises:
        ValueError: an argument is not a vector of at least one score without NaN.
    """
    ordered, outside = _scores("inside", inside).sort().values, _scores("outside", outside).to(inside.device)
    below = torch.searchsorted(ordered, outside)
    not_above = torch.searchsorted(ordered, outside, right=True)
    return float((below + not_above).double().mean() / (2 * len(ordered)))


def _scores(name: str, values: Tensor) -> Tensor:
    """Check that `values` is a vector without NaN, and convert it to float64. Infinite scores are allowed."""
    values = tensor_of(values, name)
    if values.dim() != 1 or len(values) == 0 or bool(values.isnan().any()):
        raise ValueError(
            f"{name} must be a vector of at least one score, none of them NaN; got shape {tuple(values.shape)} with "
            f"{int(values.isnan().sum())} NaN"
        )
    return values.double()
