"""Distributions of counts whose log density is computed in float64.

The log density contains differences of ln Gamma at large arguments. In float32 its error for a negative binomial
distribution is .03 at a dispersion of 1e-5 and 40 at 1e-8, which would bias a learned dispersion towards 0.
"""

from __future__ import annotations

import pyro.distributions as dist
from torch import Tensor
from torch.nn.functional import softplus


class Poisson(dist.Poisson):  # type: ignore[misc]
    """The Poisson distribution."""

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        rate, k = self.rate.double(), value.double()
        return (k.xlogy(rate) - rate - (1 + k).lgamma()).to(self.rate.dtype)


class NegativeBinomial(dist.NegativeBinomial):  # type: ignore[misc]
    """The negative binomial distribution, with ln sigmoid(x) as -softplus(-x).

    `torch.nn.functional.logsigmoid`, which the `log_prob` of PyTorch uses, warns under ``torch.vmap`` in every step.
    """

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        r, logits, k = self.total_count.double(), self.logits.double(), value.double()
        ways = (r + k).lgamma() - (1 + k).lgamma() - r.lgamma()
        return (ways - r * softplus(logits) - k * softplus(-logits)).to(self.logits.dtype)
