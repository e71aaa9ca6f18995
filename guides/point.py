"""A point estimate: a posterior that puts all probability on one value of the weights."""

from __future__ import annotations

import torch
from pyro.distributions import TorchDistribution

from pyrodrop.checks import HasWeights
from pyrodrop.distributions import BernoulliMixture
from pyrodrop.guides.guide import Guide, check_shapes
from pyrodrop.modules import ParameterTree


class Point(Guide):
    """A point estimate of the weights, trained by maximum a posteriori.

        W = M

    Training gives the maximum a posteriori estimate; it is dropout with rate 0 and the same KL divergence. `Point.average`
    converts a trained dropout posterior to the weights that standard dropout uses at test time, scaled by 1 - drop_rate,
    without uncertainty.

    The KL divergence is minus the log prior density at M, up to a constant that depends only on the number of weights. If
    the scales of the prior are latent (ARD with a hyperprior, the horseshoe), the guide has factors for them, and minus the
    ELBO is minus the log joint density of weights and scales up to the contribution of these factors. Under a horseshoe or
    half-Cauchy prior the joint density has no upper bound: it grows as the weights and their scales go to 0 together. This
    holds for every maximum a posteriori estimate under these priors.

    References:
        Srivastava et al. (2014), Dropout, https://jmlr.org/papers/v15/srivastava14a.html, section 4: weight averaging.

    Args:
        model: the model whose weights are estimated. Training starts at its current weights.

    Raises:
        TypeError: the model does not list its weights (see `Guide`).

    Example:
        >>> import torch
        >>> from pyrodrop import guides, likelihoods, models, priors
        >>> model = models.MLP([4, 8, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian())
        >>> dropout = guides.BernoulliDropout(model, drop_rate=0.5)
        >>> point = guides.Point.average(model, dropout)
        >>> torch.equal(point.mean()["layers.1.weight"], 0.5 * dropout.loc["layers.1.weight"])
        True
    """

    def __init__(self, model: HasWeights) -> None:
        super().__init__(model)
        self.loc: ParameterTree = ParameterTree(model.weight_sites())

    @classmethod
    def average(cls, model: HasWeights, guide: Guide) -> Point:
        """A point estimate at the posterior mean of `guide` (weight averaging).

        Args:
            model: the model of `guide`.
            guide: a trained guide.

        Raises:
            TypeError: the model does not list its weights (see `Guide`).
            ValueError: the weights of `guide` are not those of `model`.
        """
        point = cls(model)
        means = guide.mean()
        want = {name: point.shapes[name] for name in point.sites}
        check_shapes({name: mean.shape for name, mean in means.items()}, want, "a guide of another model")
        with torch.no_grad():
            for name, mean in means.items():
                point.loc[name].copy_(mean)
        return point

    def posterior(self, name: str) -> TorchDistribution:
        return BernoulliMixture(self.loc[name], 0.0, units=self.units[name])
