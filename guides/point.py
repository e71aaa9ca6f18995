"""A point: every weight at one value.

    W = M

Trained, it is the maximum a posteriori estimate: dropout at rate 0, with that divergence. Made of a trained dropout
posterior by `Point.average`, it is what standard dropout uses at test time: the weights scaled by 1 - drop_rate (weight
averaging; Srivastava et al. 2014, section 4), with no uncertainty. KL to a Gaussian prior: up to a constant.
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
        return BernoulliMixture(self.loc[name], 0.0)
