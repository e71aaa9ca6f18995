"""A point estimate: a posterior that puts all probability on one value of the weights."""

from __future__ import annotations

from pyro.distributions import TorchDistribution

from pyrodrop.checks import HasWeights
from pyrodrop.distributions import BernoulliMixture
from pyrodrop.guides.guide import Guide
from pyrodrop.modules import ParameterTree


class Point(Guide):
    """A point estimate of the weights, trained by maximum a posteriori.

        W = M

    Training gives the maximum a posteriori estimate; it is dropout with rate 0 and the same KL divergence.

    The KL divergence is minus the log prior density at M, up to a constant that depends only on the number of weights. If
    the scales of the prior are latent (ARD with a hyperprior, the horseshoe), the guide has factors for them, and minus the
    ELBO is minus the log joint density of weights and scales up to the contribution of these factors. Under a horseshoe or
    half-Cauchy prior the joint density has no upper bound: it grows as the weights and their scales go to 0 together. This
    holds for every maximum a posteriori estimate under these priors.

    Args:
        model: the model whose weights are estimated. Training starts at its current weights.

    Raises:
        TypeError: the model does not list its weights (see `Guide`).

    Example:
        >>> import torch
        >>> from pyrodrop import guides, likelihoods, models, priors
        >>> model = models.MLP([4, 8, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian())
        >>> point = guides.Point(model)
        >>> torch.equal(point.draw(2)["layers.1.weight"][1], model.weight_sites()["layers.1.weight"])
        True
    """

    def __init__(self, model: HasWeights) -> None:
        super().__init__(model)
        self.loc: ParameterTree = ParameterTree(model.weight_sites())

    def posterior(self, name: str) -> TorchDistribution:
        return BernoulliMixture(self.loc[name], 0.0, units=self.units[name])
