"""Categorical likelihood.

y ~ Categorical(softmax(f))        f [N, classes], y [N] in 0 ... classes - 1
"""

from __future__ import annotations

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.likelihoods.likelihood import Likelihood
from pyrodrop.scaling import Standardize


class Categorical(Likelihood):
    """Class labels, whole numbers from 0; the network's outputs are logits."""

    def forward(self, output: Tensor, targets: Standardize) -> TorchDistribution:
        return dist.Categorical(logits=output)

    def location(self, output: Tensor, targets: Standardize) -> Tensor:
        return output

    def as_target(self, y: Tensor) -> Tensor:
        if y.is_floating_point() or y.dim() != 1:
            raise ValueError(f"class labels are whole numbers of shape [N]; got {y.dtype} of shape {tuple(y.shape)}")
        return y.to(torch.long)
