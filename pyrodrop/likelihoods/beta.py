"""Beta likelihood: shares between 0 and 1."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyrodrop.likelihoods import precise
from pyrodrop.likelihoods.dispersed import FAR, Dispersed, Dispersion
from pyrodrop.scaling import Standardize


class Beta(Dispersed):
    """Observations strictly between 0 and 1; the outputs of the network are the logits of their mean f.

        y ~ Beta(m k, (1 - m) k),   E[y] = m = sigmoid(output),   Var[y] = m (1 - m) / (1 + k)        m, y [N, D]

    References:
        Ferrari & Cribari-Neto (2004), Beta Regression for Modelling Rates and Proportions.

    Args:
        concentration: k, positive, or a list with one value per column of y; a larger k means less noise. If None, it is
            learned, starting from its estimate for y of the training data. With ``"network"`` it is the exponential of a
            second output of the network, one per example.
        learned: whether a numeric `concentration` is trained, with this initial value and one value per column of y
            ``[N, D]``.

    Raises:
        ValueError: `concentration` is not positive, or `learned` is True and the network predicts it.
        TypeError: `concentration` is neither a number nor a list of such, or `learned` neither True nor False.

    Example:
        >>> import torch
        >>> from pyrodrop import likelihoods
        >>> from pyrodrop.scaling import Standardize
        >>> y = likelihoods.Beta(3.0)(torch.zeros(1, 1), Standardize())
        >>> y.mean, y.variance
        (tensor([[0.5000]]), tensor([[0.0625]]))
    """

    parameter = "concentration"
    copies = 8  # PyTorch's Beta stores its parameters a second time, stacked
    ends = (0.0, 1.0)

    def __init__(self, concentration: Dispersion = None, *, learned: bool = False) -> None:
        super().__init__(concentration, learned, "k of the variance m (1 - m) / (1 + k)")

    def distribution(self, output: Tensor, parameter: Tensor, targets: Standardize) -> Any:
        output = output.clamp(-FAR, FAR)
        return precise.Beta(output.sigmoid() * parameter, (-output).sigmoid() * parameter)

    def location(self, output: Tensor, targets: Standardize) -> Tensor:
        return self.mean_of(output).sigmoid()

    def estimate(self, y: Tensor) -> Tensor:
        return (y.mean() * (1 - y.mean()) / y.var(correction=0) - 1).clamp(min=1e-3)
