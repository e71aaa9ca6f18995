"""Checks and conversions of class probabilities and labels.

p(c | x_n) = mean_t p(c | f_nt),   p(c | f) = softmax(f)_c
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical
from torch.nn.functional import logsigmoid

from pyrodrop.arrays import tensor_of
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
            return logsigmoid(torch.cat([-logits, logits], -1)), torch.exp
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
