"""Bernoulli dropout as a posterior.

    W = M diag(z) + theta E,   z_k ~ Bernoulli(1 - drop_rate)      M [out, in], z [in]

One z per draw of W, so whole input units vanish together. The model says which axis of a weight counts its input units: a
unit is a channel of a convolution, also of a grouped or transposed one, and a word of an embedding.
Gal & Ghahramani (2016), Dropout as a Bayesian Approximation: Appendix, section 3; theta = 0 is their limit, MC
dropout. M is the papers' weight: `torch.nn.Dropout` divides what it keeps by 1 - drop_rate, so a layer behind it has the
weight M (1 - drop_rate), the mean of W.
KL to a Gaussian prior: at theta = 0 up to a constant of the number of weights alone, exact above.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.distributions import BernoulliMixture
from pyrodrop.distributions.bernoulli_mixture import check_drop_rate, check_theta
from pyrodrop.guides.guide import DROP_RATE, Guide, HasWeights, check_units, first_weights
from pyrodrop.modules import ParameterTree
from pyrodrop.names import by_name


class BernoulliDropout(Guide):
    """MC dropout: the inputs of a layer are dropped at random, the same ones for a whole draw of its weight.

    Args:
        model: the model whose weights to infer.
        drop_rate: probability of dropping an input unit, in [0, 1): one for all, or by weight name
            (``{"layers.0.*": 0.0, "*": 0.1}``, first fit decides). Vectors such as biases are never dropped.
        mask_input: whether the network's own input, that of the weights that see x itself, is dropped too.
        theta: standard deviation of the mixture, at least 0; 0 is the limit.

    Raises:
        ValueError: a rate outside [0, 1), theta negative, a name pattern that fits no weight, or a rate other than 0 for a
            matrix that is no layer's weight (a class token, a scale of shape [C, 1, 1], a parameter of one's own module).

    Example:
        >>> from pyrodrop import guides, likelihoods, models, priors
        >>> model = models.MLP([4, 8, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian())
        >>> guide = guides.BernoulliDropout(model, drop_rate=0.1, mask_input=False)
        >>> guide.rates()
        {'layers.1.weight': 0.1}
        >>> guide.draw(100)["layers.1.weight"].shape
        torch.Size([100, 1, 8])
    """

    rate_kind = DROP_RATE

    def __init__(
        self,
        model: HasWeights,
        drop_rate: float | Mapping[str, float] = 0.5,
        *,
        mask_input: bool = True,
        theta: float = 0.0,
    ) -> None:
        super().__init__(model)
        initial = model.weight_sites()
        weights = [n for n, w in initial.items() if w.dim() > 1]
        self.theta = check_theta(theta)
        rates: dict[str, float] = by_name(drop_rate, weights, "drop_rate")
        for name, rate in rates.items():
            check_drop_rate(rate, name)
        if not mask_input:
            rates |= dict.fromkeys(first_weights(model), 0.0)
        self.masked = tuple(name for name in weights if rates.get(name, 0.0) > 0)
        self._check_units(model)
        self.register_buffer("drop_rate", torch.tensor([rates[name] for name in self.masked], dtype=torch.float64))
        self.loc = ParameterTree(initial)

    def posterior(self, name: str) -> TorchDistribution:
        return BernoulliMixture(self.loc[name], self._rate(name), self.theta, units=self.units[name])

    def rates(self) -> dict[str, float]:
        """The drop rate of the input of every layer that has one dropped, by weight name."""
        rates: Tensor = self.drop_rate  # type: ignore[assignment]
        return dict(zip(self.masked, rates.tolist(), strict=True))

    def describe(self) -> str:
        known = self.rates()
        summary = "/".join(f"{known.get(name, 0.0):g}" for name in self.sites)
        return f"{type(self).__name__}(drop_rate={summary}, theta={self.theta:g})"

    def _check_units(self, model: HasWeights) -> None:
        never = "never drop it: drop_rate={NAME: 0.0, '*': ...}"
        check_units(self.masked, model, "dropping input units", never)

    def _rate(self, name: str) -> float | Tensor:
        """A tensor that replicates of the guide may hold different values of, or the number 0 for no mask."""
        return self.drop_rate[self.masked.index(name)] if name in self.masked else 0.0  # type: ignore[index]
