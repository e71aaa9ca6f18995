"""Class probabilities and labels as the scores take them, checked.

p(c | x_n) = mean_t p(c | f_nt),   p(c | f) = softmax(f)_c
"""

from __future__ import annotations

from torch import Tensor
from torch.distributions import Categorical

from pyrodrop.data.dataset import check_finite
from pyrodrop.predictive import Prediction

_TOLERANCE = 1e-3  # of a sum of probabilities in single precision

Predicted = Prediction | Tensor
"""What a classifier says: a `Prediction`, or probabilities ``[N, C]``, or those of every draw ``[T, N, C]``."""


def class_probabilities(predicted: Predicted) -> Tensor:
    """Probabilities of the classes under the mixture, ``[N, C]`` in float64."""
    p = _probabilities(predicted)
    return p.mean(0) if p.dim() == 3 else p


def class_draws(predicted: Predicted) -> Tensor:
    """Probabilities of the classes in every component of the mixture, ``[T, N, C]`` in float64."""
    p = _probabilities(predicted)
    if p.dim() == 2:
        raise ValueError(
            "to tell apart where uncertainty comes from, the probabilities of every draw are needed, [T, N, C]; "
            f"got {tuple(p.shape)}, already averaged"
        )
    return p


def class_labels(y: Tensor, p: Tensor) -> Tensor:
    """Labels ``[N]`` that fit probabilities ``[N, C]``, on their device."""
    n, classes = p.shape
    if y.is_floating_point() or y.shape != (n,):
        raise ValueError(
            f"class labels are whole numbers, one for each of the {n} predictions; got {y.dtype} of shape {tuple(y.shape)}"
        )
    if not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise ValueError(
            f"class labels must lie in 0 ... {classes - 1}, the classes predicted; got {int(y.min())} to {int(y.max())}"
        )
    return y.long().to(p.device)


def _probabilities(predicted: Predicted) -> Tensor:
    law = predicted.law if isinstance(predicted, Prediction) else None
    if isinstance(law, Categorical):
        return check_finite("logits", law.logits).double().softmax(-1)
    if not isinstance(predicted, Tensor):
        got = type(predicted).__name__ + ("" if law is None else f" of {type(law).__name__}")
        raise TypeError(
            "the scores of classification take a prediction under likelihoods.Categorical, or a tensor of class "
            f"probabilities; got a {got}"
        )
    p = check_finite("probabilities", predicted).double()
    if p.dim() not in (2, 3) or 0 in p.shape:
        raise ValueError(
            f"class probabilities have shape [N, C], or [T, N, C] for T draws, none of them 0; got {tuple(p.shape)}"
        )
    if float(p.min()) < 0 or float((p.sum(-1) - 1).abs().max()) > _TOLERANCE:
        raise ValueError(
            "class probabilities lie in [0, 1] and sum to 1 over the last axis; got values from "
            f"{float(p.min()):.4g} to {float(p.max()):.4g} and sums from {float(p.sum(-1).min()):.4g} to "
            f"{float(p.sum(-1).max()):.4g} (logits become probabilities by softmax(-1))"
        )
    return p
