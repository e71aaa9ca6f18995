"""Mean-field Gaussian posterior."""

from __future__ import annotations

import math

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution

from pyrodrop.checks import HasWeights, scale
from pyrodrop.guides.guide import Guide
from pyrodrop.modules import ParameterTree


class MeanField(Guide):
    """Independent Gaussians with a learned mean and variance per weight.

        w_ij ~ N(m_ij, v_ij)      m = loc, ln v = log_variance, both of the shape of the weight

    The KL divergence from a Gaussian prior is exact.

    References:
        Graves (2011), Practical Variational Inference for Neural Networks.
        Blundell et al. (2015), Weight Uncertainty in Neural Networks, https://arxiv.org/abs/1505.05424.

    Args:
        model: the model whose weights are inferred. The means start at its current weights.
        init_scale: initial standard deviation, positive.

    Raises:
        ValueError: `init_scale` is outside [1e-18, 1e18].
        TypeError: the model does not list its weights (see `Guide`), or `init_scale` is no number.

    Example:
        >>> from pyrodrop import guides, likelihoods, models, priors
        >>> model = models.MLP([4, 8, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian())
        >>> guide = guides.MeanField(model, init_scale=0.05)
        >>> weight = guide.posterior("layers.0.weight")
        >>> weight.event_shape
        torch.Size([8, 4])
        >>> weight.stddev.mean()
        tensor(0.0500, grad_fn=<MeanBackward0>)
    """

    def __init__(self, model: HasWeights, init_scale: float = 0.01) -> None:
        super().__init__(model)
        init_scale = scale(init_scale, "init_scale", "the initial standard deviation of a weight")
        initial = model.weight_sites()
        self.loc: ParameterTree = ParameterTree(initial)
        self.log_variance: ParameterTree = ParameterTree(
            {n: torch.full_like(w, 2 * math.log(init_scale)) for n, w in initial.items()}
        )

    def posterior(self, name: str) -> TorchDistribution:
        loc = self.loc[name]
        return dist.Normal(loc, torch.exp(self.log_variance[name] / 2)).to_event(loc.dim())
