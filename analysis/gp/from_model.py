"""The Gaussian process that a network's prior becomes as its hidden layers grow.

    w_l ~ N(0, scale_l^2)                   v_l = fan-in scale_l^2       in `NetworkKernel`'s symbols
    b_l ~ N(0, bias scale_l^2)              c_l = bias scale_l^2
    W_l = M_l diag(z_l) + theta E_l,   M_l ~ N(0, scale_l^2)             the same with dropout: a network with random weights
    v_l (1 - drop_rate_l)  ->  v_l (1 - drop_rate_l) + fan-in theta^2    and its masks, the prior of the model with a guide

Exact inference under this prior is what the model's posteriors approximate, up to the finite width.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pyrodrop import priors
from pyrodrop.analysis.gp.network_kernel import NetworkKernel
from pyrodrop.analysis.gp.starts import Start
from pyrodrop.guides import BernoulliDropout, DropConnect, Guide
from pyrodrop.likelihoods import Categorical, Gaussian
from pyrodrop.models import MLP, NetworkModel
from pyrodrop.names import by_name

TANH_GAIN = math.sqrt(math.pi) / 2  # gives erf(a u) the slope of tanh at 0; they are at most .0354 apart


def from_model(
    model: NetworkModel,
    guide: Guide | None = None,
    *,
    bias_scale: float | Mapping[str, float] | None = None,
    tanh_as_erf: bool = False,
) -> Start:
    """The kernel, noise and standardisation of a `models.MLP`, for `GaussianProcess` and `GaussianProcessClassifier`.

    Args:
        model: an MLP of ReLU or erf units with Gaussian priors. Its likelihood's precision (the value it has now, if it
            is learned) becomes the noise, its number of hidden units only the scale of the variances.
        guide: a `BernoulliDropout` or `DropConnect` of it whose rates and theta enter the prior. Its weights do not.
        bias_scale: standard deviation of the biases that have no prior in the model: one for all, or by name
            (``{"layers.0.*": 5.0, "*": 0.0}``). Such biases are points; None takes their variance as 0 with a warning,
            since a network without biases can do far less: of one input, its ReLU functions are two half-lines.
        tanh_as_erf: take erf(sqrt(pi) u / 2) for tanh, which has no closed form and is refused otherwise.

    Raises:
        TypeError: another model, prior, likelihood or guide than those.
        ValueError: tanh without `tanh_as_erf`, another activation, a first layer with dropout.
    """
    if not isinstance(model, MLP):
        raise TypeError(f"the kernel of a network is read from models.MLP; got {type(model).__name__}")
    layers = list(model.network.layers)  # type: ignore[arg-type, union-attr]
    activation, gain = _activation(model.network.activation, tanh_as_erf)  # type: ignore[arg-type, union-attr]
    fan_in = [layer.in_features for layer in layers]
    weights = [n * _scale(model, f"layers.{i}.weight") ** 2 for i, n in enumerate(fan_in)]
    names = [f"layers.{i}.bias" for i in range(len(layers))]
    points = [name for name in names if name not in model.priors]
    if points and bias_scale is None:
        warnings.warn(
            f"the biases of this model are points without a prior ({', '.join(points)}): their variance is taken as 0. "
            "Give the model a bias_prior, or say bias_scale=... (0.0 to agree)",
            stacklevel=2,
        )
    scales = by_name(bias_scale or 0.0, points, "bias_scale") if points else {}
    biases = [scales[name] ** 2 if name in points else _scale(model, name) ** 2 for name in names]
    rates = [0.0] * (len(layers) - 1)
    if guide is not None:
        theta, rates = _noise(guide, len(layers))
        keep = [1.0] + [1 - rate for rate in rates]
        weights = [v + n * theta**2 / k for v, n, k in zip(weights, fan_in, keep, strict=True)]
        biases = [c if name in points else c + theta**2 for c, name in zip(biases, names, strict=True)]
    kernel = NetworkKernel(activation, weights, biases, drop_rate=rates, gain=gain)
    likelihood = model.likelihood
    if isinstance(likelihood, Categorical):
        return Start(kernel, inputs=model.inputs, classes=layers[-1].out_features)
    if not isinstance(likelihood, Gaussian):
        raise TypeError(
            f"a Gaussian process takes a Gaussian or Categorical likelihood; the model's is {likelihood.describe()}"
        )
    precision: Tensor = likelihood.precision  # type: ignore[assignment]
    return Start(kernel, precision=float(precision.detach()), inputs=model.inputs, targets=model.targets)


def bias_spread(model: NetworkModel) -> dict[str, float]:
    """Root mean square of the biases that are points, by name: as wide as they are now, a choice for `bias_scale`.

    Of many units with fixed biases only the biases' distribution matters, which this takes for a zero-mean Gaussian.
    """
    return {name: float(model.free[name].detach().double().square().mean().sqrt()) for name in model.free}


def _activation(function: Callable[[Tensor], Tensor], tanh_as_erf: bool) -> tuple[str, float]:
    """The kernel's name of it, and its gain."""
    if function in (torch.relu, torch.nn.functional.relu):
        return "relu", 1.0
    if function in (torch.erf, torch.special.erf):
        return "erf", 1.0
    name = getattr(function, "__name__", repr(function))
    if function in (torch.tanh, torch.nn.functional.tanh):
        if tanh_as_erf:
            return "erf", TANH_GAIN
        raise ValueError(
            "the kernel of a tanh network has no closed form; tanh_as_erf=True takes erf(sqrt(pi) u / 2) for it, which is "
            "at most 0.0354 away"
        )
    raise ValueError(f"the kernel of a network is known for relu and erf, and approximated for tanh; got {name}")


def _scale(model: MLP, name: str) -> float:
    prior = model.priors[name]
    if not isinstance(prior, priors.Gaussian):
        raise TypeError(
            f"a network with Gaussian priors becomes a Gaussian process; the prior of {name!r} is {prior.describe()}"
        )
    return prior.scale


def _noise(guide: Guide, layers: int) -> tuple[float, list[float]]:
    """theta, and the drop rates of the hidden units."""
    if not isinstance(guide, BernoulliDropout):
        raise TypeError(
            f"the drop rate of a network's kernel is that of {BernoulliDropout.__name__} or {DropConnect.__name__}; "
            f"got {guide.describe()}"
        )
    rates = guide.rates()
    first, *hidden = (rates.get(f"layers.{i}.weight", 0.0) for i in range(layers))
    if first > 0:
        raise ValueError(
            "masks of the network's own input do not average out, however wide it is: the prior is then a mixture of "
            f"Gaussian processes and has no kernel. mask_input=False leaves the input whole; got drop_rate {first:g} for "
            "'layers.0.weight'"
        )
    return guide.theta, hidden
