"""Mean and variance of a dropout network with one hidden layer, without sampling.

    f_d = b_d + sum_k z_k h_k(x) m_dk        z_k ~ Bernoulli(1 - r_k) independent, h_k(x) the hidden units

    E[f_d]   = b_d + sum_k (1 - r_k) h_k m_dk
    Var[f_d] = sum_k r_k (1 - r_k) h_k^2 m_dk^2

    E[y] = E[f],   Var[y] = 1 / tau + Var[f]        for a Gaussian likelihood

The z_k are independent and enter linearly, so the variances of the terms add up. The formulas hold at theta = 0 for networks
of any depth whose only noise is in the last linear map; noise in an earlier layer passes through an activation and has no
such form. The network must return the output of that map unchanged. For outputs ``[N, T, D]`` the moments are those of each
element separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from pyrodrop.checks import HasPosterior, Inputs, mapped, num_rows, parts
from pyrodrop.distributions import BernoulliMixture
from pyrodrop.distributions.noise_form import is_constant
from pyrodrop.likelihoods import Censored, Gaussian, Missing
from pyrodrop.models.trained_network import TrainedNetwork
from pyrodrop.networks.last_map import LastMap
from pyrodrop.prediction.moments import Moments
from pyrodrop.reparam.lazy import LazyDistribution, LazyReparam, LazyWeight
from pyrodrop.reparam.maps import LinearMap

_POINTS = 2**22  # elements of the widest layer's activations at a time


def dropout_moments(model: Any, guide: Callable[..., Any], x: Inputs, device: torch.device) -> Moments:
    """The moments above at x, on the device of x.

    Raises:
        ValueError: the posterior is not dropout at theta = 0 on the input of the last layer only, or the likelihood is
            neither `likelihoods.Gaussian` nor a `Missing` or `Censored` of it.
        TypeError: the guide has no method ``posterior``.
    """
    likelihood = model.likelihood.likelihood if isinstance(model.likelihood, Missing | Censored) else model.likelihood
    if type(likelihood) is not Gaussian:
        raise ValueError(f"{_NEEDS}a Gaussian likelihood; got {model.likelihood.describe()}")
    if isinstance(model, TrainedNetwork) and any(c.weight is None or c.of_outputs for c in model.dropouts.calls):
        raise ValueError(
            f"{_NEEDS}dropout at the input of the last layer only; the network was read with other dropout too"
        )
    noisy = _one_noisy_weight(model, guide)
    widest = max(w.shape[0] for w in model.weight_sites().values())
    groups = _some_rows(model, x, widest)
    moments = [_at(model, *noisy, mapped(lambda tensor: tensor.to(device), rows)) for rows in groups]
    where = parts(x)[0].device
    mean, spread, variance = (torch.cat(tensor).to(where) for tensor in zip(*moments, strict=True))
    return Moments(mean=mean, variance=variance, spread=spread, num_samples=None)


def _some_rows(model: Any, x: Inputs, widest: int) -> Iterator[Any]:
    """Split x into groups of rows; a single group if the network needs all rows at once."""
    size = num_rows(x) if model.mixes_examples(x) else max(1, _POINTS // widest)
    for first in range(0, num_rows(x), size):
        rows = slice(first, first + size)
        yield mapped(lambda tensor: tensor[rows], x)  # noqa: B023  # called immediately


def _one_noisy_weight(model: Any, guide: Any) -> tuple[dict[str, Tensor], str, BernoulliMixture]:
    """The constant weights, and the name and posterior distribution of the one weight with noise."""
    if not isinstance(guide, HasPosterior):
        raise TypeError(
            f"{_NEEDS}a guide with a method posterior(name); got {getattr(guide, '__name__', type(guide).__name__)}"
        )
    distributions = {name: guide.posterior(name) for name in model.weight_sites()}
    noisy = {name: q for name, q in distributions.items() if not is_constant(q)}
    wrong = {
        name: type(q).__name__ + (f" with theta={q.theta:g}" if getattr(q, "theta", 0.0) > 0 else "")
        for name, q in noisy.items()
        if type(q) is not BernoulliMixture or q.theta > 0
    }
    if wrong:
        raise ValueError(f"{_NEEDS}dropout at theta = 0; got {wrong}")
    if len(noisy) != 1:
        raise ValueError(f"{_NEEDS}dropout at the input of the last layer only; got dropout at {list(noisy) or 'none'}")
    ((name, q),) = noisy.items()
    return {n: distribution.loc for n, distribution in distributions.items() if n != name}, name, q


def _at(
    model: Any, fixed: Mapping[str, Tensor], name: str, q: BernoulliMixture, x: Inputs
) -> tuple[Tensor, Tensor, Tensor]:
    """E[f], the standard deviation of f and Var[y] at some points, in the units of y."""
    strategy = _MeanAndVariance()
    with torch.inference_mode(False), torch.no_grad(), LastMap([]) as seen:
        mean = model.outputs({**fixed, name: LazyWeight(LazyDistribution(q, strategy, name))}, x)
    if strategy.variance is None or seen.last is None or mean is not seen.last.result:
        raise ValueError(
            f"{_NEEDS}dropout at the input of the last layer, whose output the network returns; got dropout at {name!r}, "
            "which is not this layer"
        )
    if seen.changed():
        raise ValueError(
            f"{_NEEDS}a network that returns the output of its last layer unchanged; this network changes in place the "
            f"output of {name!r}"
        )
    distribution = model.likelihood(mean, model.targets)
    spread = strategy.variance.sqrt() * model.targets.scale
    return distribution.mean, spread, distribution.variance + spread**2


class _MeanAndVariance(LazyReparam):
    """Propagate the mean of a weight through its linear map and store the variance of the output."""

    one_weight = True  # so that a second use of the weight calls push again
    variance: Tensor | None = None

    def pushes(self, q: Any, at: LinearMap) -> bool:
        return not q.columns or at.fits(q)

    def push(self, q: Any, at: LinearMap) -> Tensor:
        if self.variance is not None:
            raise ValueError(f"{_NEEDS}a last layer whose weight is used once; this network uses it several times")
        if at.units != -1:  # a masked channel of a convolution enters an output at several positions
            raise ValueError(f"{_NEEDS}a fully connected last layer; got dropout at the input of a convolution")
        self.variance = at.f(at.x**2, q.variance).clamp_min(0)
        return at.f(at.x, q.mean)

    def whole(self, q: Any) -> Tensor:
        raise ValueError(
            f"{_NEEDS}a last layer that is a linear map of its weight; this network uses the weight in another operation"
        )


_NEEDS = "method='analytic' is the closed form for dropout on the units of one hidden layer and needs "
