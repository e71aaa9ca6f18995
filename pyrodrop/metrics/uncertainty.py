"""Aleatoric uncertainty, from observation noise, and epistemic uncertainty, about the function.

    H[y]    = mean_t H[y | f_t]       +  I[y; f]
    total   = aleatoric               +  epistemic

The mutual information I is the expected information that an observation of y gives about the function (BALD; Houlsby et al.
2011, Bayesian Active Learning for Classification and Preference Learning, arXiv:1112.5745, eq. 2). The decomposition:
Depeweg et al. (2018), Decomposition of Uncertainty in Bayesian Deep Learning, arXiv:1710.07283. Entropies are in nats, from
0 to ln C.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyrodrop.arrays import tensor_of
from pyrodrop.metrics.classes import Predicted, class_probabilities, mean_over_draws
from pyrodrop.prediction.prediction import Prediction


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
