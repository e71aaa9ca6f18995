"""Bernoulli dropout as a posterior.

    W = M diag(z) + theta E,   z_k ~ Bernoulli(1 - drop_rate)      M [out, in], z [in]

Each sample of W has one z, so all weights of an input unit are dropped together. The model specifies which axis of a weight
indexes its input units: the input channels of a convolution (also grouped or transposed), the words of an embedding.

theta = 0 is MC dropout. M is the weight matrix of the paper: `torch.nn.Dropout` divides the inputs that it keeps by 1 -
drop_rate, so the layer after it has the weight (1 - drop_rate) M, the mean of W.

The KL divergence from a Gaussian prior is exact for theta > 0. For theta = 0 it is known up to a constant that depends only
on the number of weights.

`DropConnect` drops weights independently of each other, as if every weight were an input unit:

    W = M * Z + theta E,   Z_ij ~ Bernoulli(1 - drop_rate)      M, Z [out, in]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.checks import HasWeights
from pyrodrop.distributions import BernoulliMixture
from pyrodrop.distributions.bernoulli_mixture import check_theta
from pyrodrop.distributions.weight import Per
from pyrodrop.guides.guide import DROP_RATE, Guide, RateKind, check_units, drop_rates, undropped_inputs
from pyrodrop.modules import ParameterTree


class BernoulliDropout(Guide):
    """MC dropout: randomly drops input units of every layer, with one mask per sample of a weight.

    References:
        Gal & Ghahramani (2016), Dropout as a Bayesian Approximation: Appendix, https://arxiv.org/abs/1506.02157, section 3.

    Args:
        model: the model whose weights are inferred.
        drop_rate: probability of dropping an input unit, in [0, 1): one rate for all weights, or a mapping from name
            patterns to rates (``{"layers.0.*": 0.0, "*": 0.1}``; the first pattern that matches applies). Vectors such as
            biases are never dropped.
        mask_input: whether to drop inputs of the network itself too, that is, inputs of the weights that act on x. If None,
            they are if there are at least 20, if `drop_rate` names weights, or if the first layer cannot be identified.
        theta: standard deviation of the mixture components, at least 0; 0 is MC dropout.

    Raises:
        ValueError: a rate is outside [0, 1), `theta` is negative, a name pattern matches no weight, or a rate other than 0
            is given for a tensor with several axes whose input units are unknown (a class token, a scale of shape
            [C, 1, 1], a parameter of a custom module).
        TypeError: the model does not list its weights (see `Guide`), or an argument is of another type.

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
    per: ClassVar[Per] = "input"

    def __init__(
        self,
        model: HasWeights,
        drop_rate: float | Mapping[str, float] = 0.1,
        *,
        mask_input: bool | None = None,
        theta: float = 0.0,
    ) -> None:
        super().__init__(model)
        initial = model.weight_sites()
        weights = [n for n, w in initial.items() if w.dim() > 1]
        self.theta: float = check_theta(theta)
        rates = drop_rates(drop_rate, weights)
        rates |= undropped_inputs(model, drop_rate, mask_input)
        self.masked: tuple[str, ...] = tuple(name for name in weights if rates.get(name, 0.0) > 0)
        if self.per == "input":
            check_units(self.masked, model, "dropping input units", "never drop it: drop_rate={NAME: 0.0, '*': ...}")
        self.register_buffer("drop_rate", torch.tensor([rates[name] for name in self.masked], dtype=torch.float64))
        self.loc: ParameterTree = ParameterTree(initial)

    def posterior(self, name: str) -> TorchDistribution:
        per = self.per if self.loc[name].dim() > 1 else "input"
        return BernoulliMixture(self.loc[name], self._rate(name), self.theta, per=per, units=self.units[name])

    def rates(self) -> dict[str, float]:
        """The drop rate of every weight whose input units are dropped, by weight name."""
        rates: Tensor = self.drop_rate  # type: ignore[assignment]
        return dict(zip(self.masked, rates.tolist(), strict=True))

    def describe(self) -> str:
        known = self.rates()
        summary = "/".join(f"{known.get(name, 0.0):g}" for name in self.sites)
        return f"{type(self).__name__}(drop_rate={summary}, theta={self.theta:g})"

    def _rate(self, name: str) -> float | Tensor:
        """The rate as a tensor, so that replicates can have different rates; the number 0 if there is no mask."""
        return self.drop_rate[self.masked.index(name)] if name in self.masked else 0.0  # type: ignore[index]


class DropConnect(BernoulliDropout):
    """Randomly drops individual weights.

    References:
        Wan et al. (2013), https://proceedings.mlr.press/v28/wan13.html.

    Args:
        model: the model whose weights are inferred.
        drop_rate: probability of dropping a weight, in [0, 1): one rate for all weights, or a mapping from name patterns to
            rates. Vectors are never dropped. Every other tensor with a prior is, including class tokens and scales, unless
            its rate is 0.
        theta: standard deviation of the mixture components, at least 0.

    Raises:
        ValueError: a rate is outside [0, 1), `theta` is negative, or a name pattern matches no weight.
        TypeError: the model does not list its weights (see `Guide`), or an argument is of another type.
    """

    rate_kind = RateKind("drop_rate", "probability of dropping a weight", learned=False)
    per: ClassVar[Per] = "weight"

    def __init__(self, model: HasWeights, drop_rate: float | Mapping[str, float] = 0.5, *, theta: float = 0.0) -> None:
        super().__init__(model, drop_rate, mask_input=True, theta=theta)
