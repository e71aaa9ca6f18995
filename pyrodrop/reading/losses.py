"""Compare the loss function of a training with a likelihood.

    loss(f, y) = -ln p(y | f) / c1 + const(y)          for one example, and its mean or sum over several

The constant does not depend on the outputs f. So c1 is the ratio of the differences of both sides between two outputs for
the same y, which must be equal for all examples. It is computed from values of the function, so any function can be passed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

from pyrodrop.checks import shown
from pyrodrop.devices import seeded
from pyrodrop.likelihoods import Likelihood
from pyrodrop.scaling import Standardize

LossFunction: TypeAlias = Callable[[Tensor, Tensor], Tensor]

_CLOSE = 1e-4  # tolerance of differences, relative to the largest


@torch.no_grad()
def strength_of(loss: LossFunction, likelihood: Likelihood, num_data: int, output: Tensor) -> float:
    """The factor that turns a loss function into minus the log likelihood of the whole data set, up to a constant.

    Args:
        loss: ``loss(outputs, y)``, such as a module of `torch.nn`; `torch.nn.GaussianNLLLoss` gets means and variances from
            the two halves of the outputs.
        likelihood: the likelihood of the model.
        num_data: N.
        output: outputs of the network for a few examples, ``[n, ...]``.

    Raises:
        ValueError: `loss` is no multiple of minus the log density, as a mean or sum over examples; or outputs do not differ.
    """
    outputs, likelihood = output.double(), copy.deepcopy(likelihood).double()
    other = outputs.flip(0)
    with seeded(0, output.device):
        y = likelihood(outputs, Standardize()).sample()

    def differences(rows: slice) -> tuple[float, float]:
        """Differences of the loss and of minus the log likelihood between two outputs for the same y."""
        pairs = [
            (_value(loss, f[rows], y[rows]), float(-_log_density(likelihood, f[rows], y[rows])))
            for f in (outputs, other)
        ]
        return pairs[0][0] - pairs[1][0], pairs[0][1] - pairs[1][1]

    singly = [differences(slice(row, row + 1)) for row in range(len(outputs))]
    of_loss, of_nll = max(singly, key=lambda pair: abs(pair[1]))
    if not abs(of_nll) > 0 or len(outputs) < 2:
        raise ValueError(
            "x must be at least two examples with different outputs to compare the loss with the likelihood"
        )
    largest = max(abs(nll) for _, nll in singly)
    once = of_nll / of_loss if of_loss else float("nan")
    if not once > 0 or any(abs(once * value - nll) > _CLOSE * largest for value, nll in singly):
        raise ValueError(_other(loss, likelihood))
    of_loss, of_nll = differences(slice(None))
    for scaled, result in ((1.0, once), (float(len(outputs)), once * num_data)):
        if abs(scaled * once * of_loss - of_nll) <= _CLOSE * max(abs(of_nll), largest):
            return result
    raise ValueError(
        f"loss must be a mean or a sum over examples (reduction='mean' or 'sum'); {_name(loss)} of {len(outputs)} is neither"
    )


def _value(loss: LossFunction, f: Tensor, y: Tensor) -> float:
    """The loss of outputs f."""
    try:
        if isinstance(loss, nn.GaussianNLLLoss):
            mean, log_precision = f.chunk(2, -1)
            value = loss(mean, y, (-log_precision).exp())
        else:
            value = loss(f, y)
    except Exception as error:  # whatever the function raises for arguments that it does not take
        raise ValueError(
            f"loss must be a scalar function of outputs and y; {_name(loss)} raises for outputs of shape {list(f.shape)} "
            f"and y of shape {list(y.shape)}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ValueError(
            f"loss must be a scalar, a mean or a sum over examples (reduction='mean' or 'sum'); {_name(loss)} returns "
            f"{shown(value)}"
        )
    return float(value)


def _log_density(likelihood: Likelihood, f: Tensor, y: Tensor) -> Tensor:
    return likelihood(f, Standardize()).log_prob(y).sum()


def _other(loss: LossFunction, likelihood: Likelihood) -> str:
    """A message that a loss is not that of a likelihood."""
    return (
        f"loss must be minus the log density of {likelihood.describe()}, times a number and up to a constant; {_name(loss)} "
        "is not: a robust loss is that of likelihoods.StudentT alone, one of probabilities needs a network without its last "
        "sigmoid, and one with class weights or label smoothing is no log density"
    )


def _name(loss: LossFunction) -> str:
    return type(loss).__name__ if isinstance(loss, nn.Module) else getattr(loss, "__name__", type(loss).__name__)
