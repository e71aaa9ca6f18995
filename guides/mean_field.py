"""Mean-field Gaussian posterior.

    w_ij ~ N(m_ij, v_ij)      m = loc, ln v = log_variance, both of the weight's shape

Graves (2011), Practical Variational Inference for Neural Networks; Blundell et al. (2015), Weight Uncertainty in Neural
Networks. KL to a Gaussian prior: exact.
"""

from __future__ import annotations

import math

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution

from pyrodrop.guides.guide import Guide, HasWeights
from pyrodrop.modules import ParameterTree


class MeanField(Guide):
    """Independent Gaussians, one a weight.

    Args:
        model: the model whose weights to infer.
        init_scale: standard deviation that training starts from, positive. Means start at the layer's own
            initialisation.

    Raises:
        ValueError: init_scale not positive and finite.

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
        if not (math.isfinite(init_scale) and init_scale > 0):
            raise ValueError(f"init_scale is a standard deviation and must be positive and finite; got {init_scale}")
        initial = model.weight_sites()
        self.loc = ParameterTree(initial)
        self.log_variance = ParameterTree({n: torch.full_like(w, 2 * math.log(init_scale)) for n, w in initial.items()})

    def posterior(self, name: str) -> TorchDistribution:
        loc = self.loc[name]
        return dist.Normal(loc, torch.exp(self.log_variance[name] / 2)).to_event(loc.dim())
