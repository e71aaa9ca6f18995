"""Gaussian priors around known weights: the mean of an earlier posterior, or the weights of a pretrained network."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop import arguments
from pyrodrop.arguments import shown
from pyrodrop.distributions import BernoulliMixture, LowRankNormal, MultiplicativeNormal, PrunedNormal
from pyrodrop.distributions.units import InputUnits
from pyrodrop.priors.prior import Prior


class Informative(Prior):
    """A Gaussian with means `loc` for one weight. The initial weights of a model are these means.

        w ~ N(loc, diag(scale^2) + F F^T)           F [weights, rank], absent for independent weights

    With the posterior of one data set as the prior of the next, training on them in turn is variational continual learning:
    p(w | D_1, D_2) = p(D_2 | w) p(w | D_1) / const, with q_1(w) in place of p(w | D_1). Around a pretrained network it is
    the starting-point penalty L2-SP; with the inverse diagonal of the Fisher information as scale^2, elastic weight
    consolidation.

    References:
        Nguyen, Li, Bui & Turner (2018), Variational Continual Learning, https://arxiv.org/abs/1710.10628.
        Li, Grandvalet & Davoine (2018), https://arxiv.org/abs/1802.01483: L2-SP.
        Kirkpatrick et al. (2017), Overcoming catastrophic forgetting in neural networks, https://arxiv.org/abs/1612.00796.

    Args:
        loc: the means, a tensor of the shape of the weight.
        scale: standard deviation, positive: a number, or a tensor of the shape of the weight.
        factor: F, ``[weights, rank]``, where `weights` is the number of elements of the weight; None for independence.

    Raises:
        ValueError: a value is not finite, `scale` is not positive or has another shape than `loc`, or `factor` does not have
            one row per element. When the prior is used: the weight has another shape.
        TypeError: an argument is no tensor of real numbers.

    Example:
        >>> import torch
        >>> from pyrodrop import priors
        >>> net = torch.nn.Linear(3, 1)
        >>> prior = {name: priors.Informative(value, 0.1) for name, value in net.named_parameters() if value.dim() > 1}
        >>> prior["weight"].for_site("weight", torch.zeros(1, 3)).event_shape
        torch.Size([1, 3])
    """

    def __init__(self, loc: Tensor, scale: float | Tensor, *, factor: Tensor | None = None) -> None:
        what = "the standard deviation of a weight around its mean"
        self.loc: Tensor = _fixed(arguments.tensor(loc, "loc", "the means of a weight", floating=True))
        if isinstance(scale, Tensor):
            widths = _fixed(arguments.tensor(scale, "scale", what, floating=True, above=0))
            if widths.shape != self.loc.shape:
                raise ValueError(
                    f"scale must be a number or have the shape of loc, {list(loc.shape)}; got shape {list(widths.shape)}"
                )
            self.scale: Tensor = widths.to(self.loc)
        else:
            self.scale = torch.full_like(self.loc, arguments.scale(scale, "scale", what))
        self.factor: Tensor | None = None
        if factor is not None:
            columns = arguments.tensor(factor, "factor", "the factor F of the covariance", floating=True)
            if columns.dim() != 2 or len(columns) != self.loc.numel():
                raise ValueError(
                    f"factor must have shape [{self.loc.numel()}, rank], a row per weight; got {list(columns.shape)}"
                )
            self.factor = _fixed(columns).to(self.loc)

    def numbers(self) -> dict[str, Tensor]:
        numbers = {"loc": self.loc, "scale": self.scale}
        return numbers if self.factor is None else numbers | {"factor": self.factor}

    def initial(self, value: Tensor) -> Tensor:
        return self._like(value, "a weight")[0]

    def expand(self, *shape: int, like: Tensor | None = None) -> TorchDistribution:
        return self._over("a weight", self.loc.new_empty(shape) if like is None else like.new_empty(shape))

    def for_site(self, name: str, like: Tensor, units: InputUnits | None = None) -> TorchDistribution:
        return self._over(repr(name), like)

    def _over(self, name: str, like: Tensor) -> TorchDistribution:
        loc, scale = self._like(like, name)
        if self.factor is None:
            return dist.Normal(loc, scale).to_event(loc.dim())
        return LowRankNormal(loc, self.factor.to(loc), scale.flatten() ** 2)

    def _like(self, like: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """loc and scale with the dtype and device of a weight, which must have their shape."""
        if like.shape != self.loc.shape:
            raise ValueError(f"loc must have the shape of {name}, {list(like.shape)}; got {list(self.loc.shape)}")
        return self.loc.to(like), self.scale.to(like)

    def describe(self) -> str:
        rank = "" if self.factor is None else f", rank {self.factor.shape[1]}"
        return f"Informative({self.loc.numel()} means, scale {float(self.scale.median()):.3g} in the median{rank})"


def from_posterior(fit: Any) -> dict[str, Prior]:
    """The posterior of every weight as a prior for the next data, for `models.NetworkModel.with_priors`.

    Exact for Gaussian posteriors: `guides.MeanField`, `guides.LowRank` with its covariance, and Gaussian noise that is
    independent per weight, such as `guides.VariationalDropout` of kind B. A Bernoulli mixture with theta > 0 is replaced by
    the independent Gaussians with its means and variances. Posteriors over hyperparameters are integrated out.

    Args:
        fit: a `Fit` of a network whose guide has one factor per weight.

    Returns:
        A prior per weight, by the name of its site.

    Raises:
        TypeError: `fit` is no fit of a `guides.Guide`.
        ValueError: the posterior of a weight has no density (MC dropout with theta = 0, point estimates, type A, pruned), or
            a variance is 0.

    Example:
        >>> import torch, pyrodrop
        >>> from pyrodrop import guides, likelihoods, models, priors
        >>> x = torch.linspace(-1, 1, 40)[:, None]
        >>> model = models.MLP([1, 20, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(25.0))
        >>> monday = pyrodrop.fit(model, guides.MeanField(model), (x[:20], x[:20].sin()), steps=100)
        >>> model = monday.model.with_priors(priors.from_posterior(monday))
        >>> tuesday = pyrodrop.fit(model, monday.guide, (x[20:], x[20:].sin()), steps=100)
    """
    guide: Any = getattr(fit, "guide", None)
    if not hasattr(guide, "posterior") or not hasattr(guide, "sites"):
        raise TypeError(
            "fit must be a Fit whose guide has a factor per weight, such as guides.MeanField (no ensemble, no draws, no "
            f"exact last layer); got {shown(fit) if guide is None else shown(guide)}"
        )
    with torch.no_grad():
        return {name: _gaussian(guide.posterior(name), name) for name in guide.sites}


def _gaussian(q: Any, name: str) -> Informative:
    """The Gaussian with the mean and the covariance, or the variances, of a posterior."""
    elements = getattr(q, "base_dist", q)
    if isinstance(q, LowRankNormal):
        return Informative(q.loc, q.diagonal.sqrt().reshape(q.loc.shape), factor=q.factor)
    independent = isinstance(q, MultiplicativeNormal) and not isinstance(q, PrunedNormal)
    mixture = isinstance(q, BernoulliMixture) and q.theta > 0
    if not (independent or mixture or type(elements) is dist.Normal):
        raise ValueError(
            f"the posterior of {name!r} must have a density whose mean and variances are a prior; got "
            f"{type(elements).__name__}: train guides.MeanField or guides.LowRank, or a mixture with theta > 0"
        )
    if bool((q.variance <= 0).any()):
        raise ValueError(
            f"the posterior of {name!r} has {int((q.variance <= 0).sum())} weights of variance 0: no prior"
        )
    return Informative(q.mean, q.variance.sqrt())


def _fixed(values: Tensor) -> Tensor:
    """A copy that training does not change."""
    return values.detach().clone()
