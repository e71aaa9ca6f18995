"""A point: every weight at one value.

    W = M

Trained, it is the maximum a posteriori estimate: dropout at rate 0, with that divergence. Made of a trained dropout
posterior by `Point.average`, it is what standard dropout uses at test time: the weights scaled by 1 - drop_rate (weight
averaging; Srivastava et al. 2014, section 4), with no uncertainty.

The divergence is minus the log prior density at M, up to a constant of the number of weights alone. Where the prior's
scales are latent (ARD with a hyperprior, the horseshoe) their factors are the guide's and minus the ELBO is minus the log
joint density of weights and scales, but for what the factors add. A horseshoe's or half-Cauchy's joint density has no
upper bound: it grows as weights and their scales go to 0 together, as in any maximum a posteriori estimate under them.
"""

from __future__ import annotations

import torch
from pyro.distributions import TorchDistribution

from pyrodrop.distributions import BernoulliMixture
from pyrodrop.guides.guide import Guide, HasWeights
from pyrodrop.modules import ParameterTree


class Point(Guide):
    """All probability on one value of the weights.

    Args:
        model: the model whose weights to estimate; they start at its layers' own initialisation.

    Example:
        >>> import torch
        >>> from pyrodrop import guides, likelihoods, models, priors
        >>> model = models.MLP([4, 8, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian())
        >>> dropout = guides.BernoulliDropout(model, drop_rate=0.5)
        >>> point = guides.Point.average(model, dropout)
        >>> torch.equal(point.mean()["layers.0.weight"], 0.5 * dropout.loc["layers.0.weight"])
        True
    """

    def __init__(self, model: HasWeights) -> None:
        super().__init__(model)
        self.loc = ParameterTree(model.weight_sites())

    @classmethod
    def average(cls, model: HasWeights, guide: Guide) -> Point:
        """The posterior mean of `guide` as a point: weight averaging."""
        point = cls(model)
        with torch.no_grad():
            for name, mean in guide.mean().items():
                point.loc[name].copy_(mean)
        return point

    def posterior(self, name: str) -> TorchDistribution:
        return BernoulliMixture(self.loc[name], 0.0, units=self.units[name])
