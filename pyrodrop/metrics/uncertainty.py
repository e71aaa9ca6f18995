"""Where the uncertainty of a prediction comes from: from the observations, or from not knowing the function.

    Var[y]  = mean_t Var[y | f_t]     +  Var_t E[y | f_t]
    H[y]    = mean_t H[y | f_t]       +  I[y; f]
    total   = aleatoric               +  epistemic

The mutual information I is what an observation of y would tell about the function, BALD: Houlsby et al. (2011), Bayesian
Active Learning for Classification and Preference Learning, eq. 2; the split of both: Depeweg et al. (2018), Decomposition
of Uncertainty in Bayesian Deep Learning. Entropies are in nats, from 0 to ln C.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Categorical

from pyrodrop.likelihoods import elements
from pyrodrop.metrics.classes import Predicted, class_probabilities, mean_over_draws
from pyrodrop.prediction.prediction import Prediction


class Uncertainty(NamedTuple):
    """An uncertainty in its two parts, each ``[N]`` or ``[N, ...]``; total = aleatoric + epistemic."""

    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor


def variance_split(prediction: Prediction) -> Uncertainty:
    """The variance of y in its two parts, each of the shape of y, in the units of y squared.

    Raises:
        ValueError: y has no variance, as class labels have none; `entropy_split` is for those.
    """
    total, one = prediction.variance, elements(prediction.law)
    if isinstance(one, Categorical) or not bool(total.isfinite().all()):
        raise ValueError(
            f"only a y with a finite variance can have it split; the law here is {type(one).__name__}. "
            "For class labels there is entropy_split"
        )
    if prediction.f_sd is None:
        epistemic = prediction.law.mean.var(0, correction=0)
        return Uncertainty(total, prediction.law.variance.mean(0), epistemic)
    epistemic = prediction.f_sd.square()
    return Uncertainty(total, total - epistemic, epistemic)


def predictive_entropy(predicted: Predicted) -> Tensor:
    """H[y], the entropy of the mixture: ``[N]``."""
    return _entropy(class_probabilities(predicted))


def expected_entropy(predicted: Predicted) -> Tensor:
    """mean_t H[y | f_t], the mean entropy of the mixture's components: ``[N]``.

    Raises:
        ValueError: probabilities ``[N, C]``, in which the components cannot be told any more.
    """
    if isinstance(predicted, Tensor) and predicted.dim() == 2:
        raise ValueError(
            "to tell apart where uncertainty comes from, the probabilities of every draw are needed, [T, N, C]; "
            f"got {tuple(predicted.shape)}, already averaged"
        )
    return mean_over_draws(predicted, _entropy)


def mutual_information(predicted: Predicted) -> Tensor:
    """I[y; f] = H[y] - mean_t H[y | f_t], from 0 to the lesser of ln C and ln T: ``[N]``."""
    return entropy_split(predicted).epistemic


def entropy_split(predicted: Predicted) -> Uncertainty:
    """The entropy of a class label in its two parts, each ``[N]``, from a prediction or probabilities ``[T, N, C]``."""
    total, aleatoric = predictive_entropy(predicted), expected_entropy(predicted)
    return Uncertainty(total, aleatoric, (total - aleatoric).clamp_min(0))  # below 0 by rounding only


def _entropy(p: Tensor) -> Tensor:
    return torch.special.entr(p).sum(-1)
