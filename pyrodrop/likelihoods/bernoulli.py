"""Bernoulli likelihood: yes or no, once or for several labels.

y ~ Bernoulli(sigmoid(f))        f, y [N, D], y in {0, 1}
"""

from __future__ import annotations

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.likelihoods.likelihood import Likelihood
from pyrodrop.scaling import Standardize


class Bernoulli(Likelihood):
    """Independent targets of two values; the outputs of the network are the logits of 1.

    With a network trained by `torch.nn.BCEWithLogitsLoss`, `pyrodrop.read` takes this likelihood. y are 0 and 1, of any
    dtype, or bools.

    Example:
        >>> import torch
        >>> from pyrodrop import likelihoods
        >>> from pyrodrop.scaling import Standardize
        >>> likelihood = likelihoods.Bernoulli()
        >>> likelihood(torch.tensor([[0.0, 2.0]]), Standardize()).mean
        tensor([[0.5000, 0.8808]])
    """

    def forward(self, output: Tensor, targets: Standardize) -> TorchDistribution:
        return dist.Bernoulli(logits=output).to_event(1)

    def location(self, output: Tensor, targets: Standardize) -> Tensor:
        return output

    def as_target(self, y: Tensor) -> Tensor:
        return y if y.is_floating_point() else y.to(torch.get_default_dtype())
