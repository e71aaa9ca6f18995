"""Scores of class probabilities, their calibration, and the parts of their uncertainty.

    accuracy      fraction of examples with y_n = argmax_c p_nc
    log density   mean_n ln p_n(y_n), minus the negative log likelihood
    Brier score   mean_n sum_c (p_nc - [y_n = c])^2, from 0 to 2
    ECE           sum_b |B_b| / N |mean_{B_b} acc - mean_{B_b} conf|,   conf_n = max_c p_nc,   acc_n = [y_n = argmax_c p_nc]

Log density and Brier score are strictly proper scoring rules: their expectation is optimal only for the true probabilities.
Brier (1950), Verification of Forecasts Expressed in Terms of Probability; Gneiting & Raftery (2007), Strictly Proper Scoring
Rules, Prediction, and Estimation, section 3, https://doi.org/10.1198/016214506000001437.

The bins B_b of the confidence are of equal width (Guo et al. 2017, On Calibration of Modern Neural Networks,
arXiv:1706.04599, eq. 3). The ECE is biased: that of a perfectly calibrated classifier is about
sqrt(2 / pi) sum_b sqrt(|B_b| v_b) / N, where v_b is the mean of conf (1 - conf) in the bin; it decreases as 1 / sqrt(N).

Uncertainty is aleatoric, from observation noise, and epistemic, about the function:

    H[y]    = mean_t H[y | f_t]       +  I[y; f]
    total   = aleatoric               +  epistemic

The mutual information I is the expected information that an observation of y gives about the function (BALD; Houlsby et al.
2011, Bayesian Active Learning for Classification and Preference Learning, arXiv:1112.5745, eq. 2). The decomposition:
Depeweg et al. (2018), Decomposition of Uncertainty in Bayesian Deep Learning, arXiv:1710.07283. Entropies are in nats, from
0 to ln C.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Bernoulli, Categorical

from pyrodrop.arrays import tensor_of
from pyrodrop.checks import Count, checked
from pyrodrop.data.dataset import check_finite
from pyrodrop.likelihoods import elements
from pyrodrop.likelihoods.classes import check_classes, labels
from pyrodrop.prediction.prediction import Prediction

_NUMBERS = 2**22  # double-precision values processed at a time
_TOLERANCE = 1e-3  # for sums of probabilities in single precision

Predicted = Prediction | Tensor
"""Output of a classifier: a `Prediction`, or class probabilities ``[N, C]``, or those of T samples ``[T, N, C]``.

The probabilities may be NumPy arrays or lists too, as `data.Dataset` takes them.
"""


def accuracy(predicted: Predicted, y: Tensor) -> float:
    """Fraction of the labels ``[N]`` that equal the most probable class; among equally probable classes the first counts."""
    p = class_probabilities(predicted)
    return float((p.argmax(-1) == class_labels(y, p)).double().mean())


def brier(predicted: Predicted, y: Tensor) -> float:
    """Brier score: mean squared distance of the probabilities from the one-hot labels, from 0 to 2; lower is better.

    Args:
        predicted: a `Prediction`, or class probabilities ``[N, C]`` or ``[T, N, C]``.
        y: class labels, ``[N]``.
    """
    p = class_probabilities(predicted)
    return float((p - F.one_hot(class_labels(y, p), p.shape[1])).square().sum(-1).mean())


class CalibrationCurve(NamedTuple):
    """Accuracy per bin of the confidence, for the B bins that are not empty, in order of increasing confidence.

    Attributes:
        confidence: mean confidence of the predictions in each bin, ``[B]``.
        accuracy: fraction of correct predictions in each bin, ``[B]``.
        share: fraction of all predictions that are in each bin, ``[B]``.
    """

    confidence: Tensor
    accuracy: Tensor
    share: Tensor

    @property
    def error(self) -> float:
        """Mean absolute difference of accuracy and confidence, weighted by share: the ECE."""
        return float((self.share * (self.accuracy - self.confidence).abs()).sum())


@checked
def calibration_curve(
    predicted: Predicted,
    y: Tensor,
    bins: Annotated[int, Count("the number of bins of the confidence", most=2**24)] = 15,
) -> CalibrationCurve:
    """Accuracy as a function of confidence.

    Args:
        predicted: a `Prediction`, or class probabilities ``[N, C]`` or ``[T, N, C]`` for T samples.
        y: class labels, ``[N]``.
        bins: number of bins (0, 1 / bins], ..., (1 - 1 / bins, 1] of the confidence.

    Raises:
        ValueError: `bins` is below 1, or shapes or values of probabilities or labels are invalid.
        TypeError: an argument is of another type.
    """
    p = class_probabilities(predicted)
    confidence, choice = p.max(-1)
    right = (choice == class_labels(y, p)).double()
    place = torch.bucketize(confidence, torch.linspace(0, 1, bins + 1, dtype=p.dtype, device=p.device)[1:-1])
    sizes, total, hits = (
        torch.zeros(bins, dtype=p.dtype, device=p.device).index_add(0, place, values)
        for values in (torch.ones_like(confidence), confidence, right)
    )
    occupied = sizes > 0
    sizes = sizes[occupied]
    return CalibrationCurve(total[occupied] / sizes, hits[occupied] / sizes, sizes / len(confidence))


def ece(predicted: Predicted, y: Tensor, bins: int = 15) -> float:
    """Expected calibration error, from 0 to 1, with bins of equal width; see `calibration_curve` for the arguments."""
    return calibration_curve(predicted, y, bins).error


class Uncertainty(NamedTuple):
    """Total uncertainty and its two parts: total = aleatoric + epistemic.

    Attributes:
        total: uncertainty of y, ``[N]`` or ``[N, ...]``.
        aleatoric: expected uncertainty of y given the function, of the same shape.
        epistemic: uncertainty about y that is due to uncertainty about the function, of the same shape.
    """

    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor


def predictive_entropy(predicted: Predicted) -> Tensor:
    """H[y], the entropy of the class probabilities averaged over samples, in nats: ``[N]``."""
    return _entropy(class_probabilities(predicted))


def mutual_information(predicted: Predicted) -> Tensor:
    """I[y; f] = H[y] - mean_t H[y | f_t] in nats, between 0 and min(ln C, ln T): ``[N]``."""
    return entropy_split(predicted).epistemic


def entropy_split(predicted: Predicted) -> Uncertainty:
    """Split the entropy of a class label into two parts, each ``[N]``, in nats.

    Args:
        predicted: a `Prediction`, or class probabilities ``[T, N, C]`` for T samples.

    Raises:
        ValueError: `predicted` are probabilities ``[N, C]``, which are already averaged over samples.
    """
    if not isinstance(predicted, Prediction) and (p := tensor_of(predicted, "predicted")).dim() == 2:
        raise ValueError(
            "splitting the uncertainty needs predicted to be the probabilities of every sample, [T, N, C]; got "
            f"probabilities of shape {tuple(p.shape)}, which are already averaged"
        )
    total, aleatoric = predictive_entropy(predicted), mean_over_draws(predicted, _entropy)
    return Uncertainty(total, aleatoric, (total - aleatoric).clamp_min(0))  # below 0 only by rounding


def _entropy(p: Tensor) -> Tensor:
    return torch.special.entr(p).sum(-1)


def classification_scores(predicted: Predicted, y: Tensor) -> dict[str, float]:
    """All scores of one prediction.

    Args:
        predicted: a `Prediction`, or class probabilities ``[N, C]`` or ``[T, N, C]`` for T samples.
        y: class labels, ``[N]``; under `likelihoods.Bernoulli` they may have shape ``[N, 1]`` and be floats 0.0 and 1.0.

    Returns:
        A dictionary with the keys ``log_density`` (nats), ``accuracy``, ``brier``, ``ece`` and ``entropy`` (nats); also
        ``mutual_information`` (nats), unless `predicted` are probabilities ``[N, C]``.

    Raises:
        ValueError: shapes or values of probabilities or labels are invalid.
        TypeError: `predicted` is a prediction of anything other than one class label per example.

    Example:
        >>> import torch
        >>> from pyrodrop import metrics
        >>> probabilities = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
        >>> scores = metrics.classification_scores(probabilities, torch.tensor([0, 1, 1]))
        >>> {name: round(scores[name], 3) for name in ("accuracy", "brier", "log_density")}
        {'accuracy': 0.667, 'brier': 0.273, 'log_density': -0.415}
    """
    p = class_probabilities(predicted)
    if isinstance(predicted, Prediction):
        log_density = float(predicted.log_density(y).double().mean())
        y = predicted.aligned(y).flatten().long()
    else:
        log_density = float(p.gather(1, class_labels(y, p)[:, None]).log().mean())
    scores = {
        "log_density": log_density,
        "accuracy": accuracy(p, y),
        "brier": brier(p, y),
        "ece": ece(p, y),
        "entropy": float(predictive_entropy(p).mean()),
    }
    if isinstance(predicted, Prediction) or tensor_of(predicted, "predicted").dim() == 3:
        scores["mutual_information"] = float(mutual_information(predicted).mean())
    return scores


def class_probabilities(predicted: Predicted) -> Tensor:
    """Class probabilities averaged over samples, ``[N, C]``, float64."""
    return mean_over_draws(predicted, lambda p: p)


def mean_over_draws(predicted: Predicted, function: Callable[[Tensor], Tensor]) -> Tensor:
    """mean_t function(p_t) for the probabilities p ``[T, N, C]`` of all samples in float64, in chunks of samples."""
    values, normalise = _values(predicted)
    chunk = max(1, _NUMBERS // values[0].numel())
    sums = (function(normalise(draws.double())).sum(0) for draws in values.split(chunk))
    return sum(sums, start=torch.zeros((), dtype=torch.float64, device=values.device)) / len(values)


def class_labels(y: Tensor, p: Tensor) -> Tensor:
    """Check labels ``[N]`` against probabilities p ``[N, C]`` and move them to the device of p; bools become 0 and 1."""
    y = labels(check_finite("y", tensor_of(y, "y")))
    if len(y) != len(p):
        raise ValueError(f"y must have a class label for each of {len(p)} predictions; got shape {list(y.shape)}")
    check_classes(y, p, p.shape[1])
    return y.to(p.device)


def _values(predicted: Predicted) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Values ``[T, N, C]`` and a function that converts them to probabilities."""
    if isinstance(predicted, Prediction):
        distribution, of_element = predicted.distribution, elements(predicted.distribution)
        if isinstance(of_element, Bernoulli) and distribution.event_shape.numel() == 1:
            logits = check_finite("logits", of_element.logits).reshape(*of_element.logits.shape[:2], 1)
            return F.logsigmoid(torch.cat([-logits, logits], -1)), torch.exp
        if isinstance(distribution, Categorical):
            return check_finite("logits", distribution.logits), torch.exp  # Categorical has normalised the logits
        shape = [*distribution.batch_shape[1:], *distribution.event_shape]
        raise TypeError(
            "classification scores need a prediction of class labels or a tensor of class probabilities, one label per "
            f"example; got a Prediction of {type(of_element).__name__} with a y of shape {shape}: of several labels, pass "
            "the probabilities f.softmax(-1).flatten(1, -2) and the labels y.flatten()"
        )
    p = check_finite("predicted", tensor_of(predicted, "predicted"))
    if p.dim() not in (2, 3) or 0 in p.shape:
        raise ValueError(
            "predicted: class probabilities must have shape [N, C], or [T, N, C] for T samples, none of them 0; got "
            f"{tuple(p.shape)}"
        )
    sums = p.sum(-1, dtype=torch.float64)
    if float(p.min()) < 0 or float((sums - 1).abs().max()) > _TOLERANCE:
        raise ValueError(
            "predicted: class probabilities must lie in [0, 1] and sum to 1 over the last axis; got values from "
            f"{float(p.min()):.4g} to {float(p.max()):.4g} and sums from {float(sums.min()):.4g} to "
            f"{float(sums.max()):.4g} (convert logits to probabilities with softmax(-1))"
        )
    return (p[None] if p.dim() == 2 else p), lambda p: p
