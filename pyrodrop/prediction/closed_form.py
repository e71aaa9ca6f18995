"""Mean and variance of a dropout network of one hidden layer, without draws.

    f_d = b_d + sum_k z_k h_k(x) m_dk        z_k ~ Bernoulli(1 - r_k) independent, h_k(x) the hidden units

    E[f_d]   = b_d + sum_k (1 - r_k) h_k m_dk
    Var[f_d] = sum_k r_k (1 - r_k) h_k^2 m_dk^2

    E[y] = E[f],   Var[y] = 1 / tau + Var[f]        for a Gaussian likelihood

The z_k are independent and enter linearly, so the variances of the terms add up. It holds at theta = 0 for any network
whose only noise is in its last map, however deep; noise in an earlier layer goes through an activation and has no such form.
What the network returns must be what that map gave, untouched: nothing else may be done to it, in place or not. Of outputs
``[N, T, D]`` the moments are those of each number alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pyrodrop.distributions import BernoulliMixture
from pyrodrop.distributions.noise_form import is_constant
from pyrodrop.inputs import Inputs, mapped, num_rows, parts
from pyrodrop.likelihoods import Gaussian
from pyrodrop.prediction.moments import Moments
from pyrodrop.reparam.lazy import LazyLaw, LazyReparam, LazyWeight
from pyrodrop.reparam.maps import LinearMap

_POINTS = 2**22  # numbers of the widest layer at a time


def dropout_moments(model: Any, guide: Callable[..., Any], x: Inputs, device: torch.device) -> Moments:
    """The moments above at x, on its device.

    Raises:
        ValueError: the posterior's noise is elsewhere than at the input of the last layer, or of another law, or the
            likelihood is not `likelihoods.Gaussian`.
        TypeError: the guide does not know the posterior of a weight.
    """
    if type(model.likelihood) is not Gaussian:
        raise ValueError(f"{_NEEDS}a Gaussian likelihood; got {model.likelihood.describe()}")
    fixed, name, q = _one_noisy_weight(model, guide)
    widest = max(w.shape[0] for w in model.weight_sites().values())
    found = [
        _at(model, fixed, name, q, mapped(lambda part: part.to(device), some)) for some in _some_rows(model, x, widest)
    ]
    where = parts(x)[0].device
    mean, spread, variance = (torch.cat(part).to(where) for part in zip(*found, strict=True))
    return Moments(mean=mean, variance=variance, spread=spread, num_samples=None)


def _some_rows(model: Any, x: Inputs, widest: int) -> Iterator[Any]:
    """x a few rows at a time, or at once where the network takes all of them together."""
    together = getattr(model, "mixes_examples", None)
    size = num_rows(x) if together is not None and together(x) else max(1, _POINTS // widest)
    for first in range(0, num_rows(x), size):
        some = slice(first, first + size)
        yield mapped(lambda part: part[some], x)  # noqa: B023  # it is called at once


def _one_noisy_weight(model: Any, guide: Callable[..., Any]) -> tuple[dict[str, Tensor], str, BernoulliMixture]:
    """The weights that are constant, and name and law of the one that is not."""
    if not hasattr(guide, "posterior"):
        raise TypeError(
            f"{_NEEDS}a guide that knows its posteriors; got {getattr(guide, '__name__', type(guide).__name__)}"
        )
    laws = {name: guide.posterior(name) for name in model.weight_sites()}
    noisy = {name: q for name, q in laws.items() if not is_constant(q)}
    wrong = {
        name: type(q).__name__ + (f" with theta={q.theta:g}" if getattr(q, "theta", 0.0) > 0 else "")
        for name, q in noisy.items()
        if type(q) is not BernoulliMixture or q.theta > 0
    }
    if wrong:
        raise ValueError(f"{_NEEDS}dropout at theta = 0; got {wrong}")
    if len(noisy) != 1:
        raise ValueError(f"{_NEEDS}dropout at the input of the last layer alone; got it at {list(noisy) or 'none'}")
    ((name, q),) = noisy.items()
    return {n: law.loc for n, law in laws.items() if n != name}, name, q


def _at(
    model: Any, fixed: Mapping[str, Tensor], name: str, q: BernoulliMixture, x: Inputs
) -> tuple[Tensor, Tensor, Tensor]:
    """E[f], the standard deviation of f and Var[y] at some points, in the units of y."""
    strategy = _MeanAndVariance()
    with torch.inference_mode(False), torch.no_grad(), _LastMap() as last:
        mean = model.outputs({**fixed, name: LazyWeight(LazyLaw(q, strategy, name))}, x)
    if strategy.variance is None or mean is not last.result:
        raise ValueError(
            f"{_NEEDS}dropout at the input of the network's last layer, whose output is the network's; got it at {name!r}, "
            "which is not that"
        )
    if last.touched or mean._version != last.version:
        raise ValueError(
            f"{_NEEDS}the output of its last layer as the network's; this network changes in place what {name!r} gave"
        )
    law = model.likelihood(mean, model.targets)
    spread = strategy.variance.sqrt() * model.targets.scale
    return law.mean, spread, law.variance + spread**2


class _MeanAndVariance(LazyReparam):
    """Push the mean of a weight through its map and keep the variance of what comes out."""

    one_weight = True  # so that a second use comes here
    variance: Tensor | None = None

    def pushes(self, q: Any, at: LinearMap) -> bool:
        return not q.columns or at.fits(q)

    def push(self, q: Any, at: LinearMap) -> Tensor:
        if self.variance is not None:
            raise ValueError(f"{_NEEDS}a last layer whose weight is used once; this network uses it again")
        if at.units != -1:  # a convolution's masked channel enters an output at several places at once
            raise ValueError(f"{_NEEDS}a fully connected last layer; got dropout at the input of a convolution")
        variance = at.f(at.x**2, q.variance)
        self.variance = (at.finish(variance) - at.finish(torch.zeros_like(variance))).clamp_min(0)
        return at.f(at.x, q.mean)

    def whole(self, q: Any) -> Tensor:
        raise ValueError(
            f"{_NEEDS}a last layer that is a linear map of its weight; got {type(q).__name__} used otherwise"
        )


class _LastMap(TorchFunctionMode):
    """Remembers what the last use of a lazy weight gave, and whether its memory was reached for afterwards."""

    result: Any = None
    version = 0
    touched = False

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = (*args, *(kwargs or {}).values())
        lazy = any(isinstance(leaf, LazyWeight) for leaf in given)
        if lazy and isinstance(result, Tensor) and not isinstance(result, LazyWeight):
            self.result, self.version, self.touched = result, result._version, False
        elif func in _UNVERSIONED and any(leaf is self.result for leaf in given):
            self.touched = True
        return result


_TENSOR: Any = Tensor
_UNVERSIONED = {_TENSOR.data.__get__, _TENSOR.numpy, _TENSOR.data_ptr, _TENSOR.untyped_storage, _TENSOR.__array__}
_NEEDS = "method='analytic' has a closed form for one hidden layer whose units are dropped, and needs "
