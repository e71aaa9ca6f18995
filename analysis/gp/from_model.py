"""The Gaussian process to which a network's prior converges as its hidden layers become infinitely wide.

    w_l ~ N(0, scale_l^2)                   v_l = fan-in scale_l^2       in `NetworkKernel`'s symbols
                                            v_0q = Q scale_0q^2          with one scale per column of x
    b_l ~ N(0, bias scale_l^2)              c_l = bias scale_l^2
    W_l = M_l diag(z_l) + theta E_l,   M_l ~ N(0, scale_l^2)             with dropout: random weights and dropout masks, the
    v_l (1 - drop_rate_l)  ->  v_l (1 - drop_rate_l) + fan-in theta^2    prior of the model with the noise of a guide

Up to the effect of finite width, the model's posteriors approximate exact inference under this prior.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pyrodrop import priors
from pyrodrop.analysis.gp.network_kernel import NetworkKernel
from pyrodrop.analysis.gp.starts import Start
from pyrodrop.checks import by_name, flag, instance, real, shown
from pyrodrop.guides import BernoulliDropout, DropConnect, Guide
from pyrodrop.likelihoods import Categorical, Gaussian
from pyrodrop.models import MLP, NetworkModel
from pyrodrop.priors.infinite_width import TANH_GAIN


def from_model(
    model: NetworkModel,
    guide: Guide | None = None,
    *,
    bias_scale: float | Mapping[str, float] | None = None,
    tanh_as_erf: bool = False,
) -> Start:
    """The kernel, noise and standardisation of a `models.MLP`, for `GaussianProcess` and `GaussianProcessClassifier`.

    Args:
        model: an MLP of ReLU or erf units with Gaussian priors. The current precision of its likelihood sets the noise, and
            the number of hidden units only scales the variances.
        guide: a `BernoulliDropout` or `DropConnect` of the model. Its rates and theta enter the prior, its weights do not.
        bias_scale: standard deviation of the biases that have no prior in the model: one value for all, or by name
            (``{"layers.0.*": 5.0, "*": 0.0}``). With None their variance is 0 and a warning is issued, since a network
            without biases is much less flexible: with one input, its ReLU functions are two half-lines.
        tanh_as_erf: approximate tanh by erf(sqrt(pi) u / 2); the kernel of tanh itself has no closed form.

    Raises:
        TypeError: the model, a prior, the likelihood or the guide is of another type.
        ValueError: tanh without `tanh_as_erf`, another activation, several precisions, or dropout on the network's input.
    """
    if not isinstance(model, MLP):
        raise TypeError(f"from_model needs a model that is a models.MLP; got {shown(model)}")
    layers = list(model.network.layers)  # type: ignore[arg-type, union-attr]
    activation, gain = _activation(model.network.activation, tanh_as_erf)  # type: ignore[arg-type, union-attr]
    fan_in = [layer.in_features for layer in layers]
    weights = [n * _variance(model, f"layers.{i}.weight") for i, n in enumerate(fan_in)]
    names = [f"layers.{i}.bias" for i in range(len(layers))]
    points = [name for name in names if name not in model.priors]
    if points and bias_scale is None:
        warnings.warn(
            f"these biases of the model have no prior: {', '.join(points)}; the kernel uses variance 0 for them. Give the "
            "model a bias_prior, or pass bias_scale=... (0.0 for this value without the warning)",
            stacklevel=2,
        )
    tanh_as_erf = flag(tanh_as_erf, "tanh_as_erf", "whether to approximate tanh by erf")
    scales = by_name(0.0 if bias_scale is None else bias_scale, points, "bias_scale") if points else {}
    scales = {n: real(s, "bias_scale", "the standard deviation of biases", least=0) for n, s in scales.items()}
    biases = [scales[name] ** 2 if name in points else float(_variance(model, name)) for name in names]
    rates = [0.0] * (len(layers) - 1)
    if guide is not None:
        theta, rates = _noise(guide, len(layers))
        keep = [1.0] + [1 - rate for rate in rates]
        weights = [v + n * theta**2 / k for v, n, k in zip(weights, fan_in, keep, strict=True)]
        biases = [c if name in points else c + theta**2 for c, name in zip(biases, names, strict=True)]
    variances = [weights[0].tolist(), *(float(v.mean()) for v in weights[1:])]  # hidden units average out
    kernel = NetworkKernel(activation, variances, biases, drop_rate=rates, gain=gain)
    likelihood = model.likelihood
    if isinstance(likelihood, Categorical):
        return Start(kernel, inputs=model.inputs, classes=layers[-1].out_features)
    if not isinstance(likelihood, Gaussian):
        raise TypeError(f"from_model needs a Gaussian or Categorical likelihood; got {likelihood.describe()}")
    precision: Tensor = likelihood.precision  # type: ignore[assignment]
    if precision.dim():
        raise ValueError(
            f"from_model needs a likelihood with one precision, since a Gaussian process has one column of y; got "
            f"{likelihood.describe()}"
        )
    return Start(kernel, precision=float(precision.detach()), inputs=model.inputs, targets=model.targets)


def bias_spread(model: NetworkModel) -> dict[str, float]:
    """Root mean square of the current values of the biases without a prior, by name: a choice for `bias_scale`.

    In a wide layer only the distribution of the biases matters; this approximates it by a zero-mean Gaussian. A TypeError if
    the model is not one of `pyrodrop.models`.
    """
    instance(model, NetworkModel, "model", "a model of pyrodrop.models")
    return {name: float(model.free[name].detach().double().square().mean().sqrt()) for name in model.free}


def _activation(function: Callable[[Tensor], Tensor], tanh_as_erf: bool) -> tuple[str, float]:
    """The name of the activation in `NetworkKernel`, and its gain."""
    if function in (torch.relu, torch.nn.functional.relu):
        return "relu", 1.0
    if function in (torch.erf, torch.special.erf):
        return "erf", 1.0
    name = getattr(function, "__name__", repr(function))
    if function in (torch.tanh, torch.nn.functional.tanh):
        if tanh_as_erf:
            return "erf", TANH_GAIN
        raise ValueError(
            "the kernel of a tanh network has no closed form; tanh_as_erf=True approximates tanh by erf(sqrt(pi) u / 2), "
            "with an error of at most 0.0354"
        )
    raise ValueError(f"the activation must be relu, erf, or tanh with tanh_as_erf=True; got {name}")


def _variance(model: MLP, name: str) -> Tensor:
    """The prior variance of the weights, or one for every input unit."""
    prior = model.priors[name]
    if type(prior) is not priors.Gaussian:
        raise TypeError(f"from_model needs Gaussian priors; the prior of {name!r} is {prior.describe()}")
    return torch.tensor(prior.scale).double().square()


def _noise(guide: Guide, layers: int) -> tuple[float, list[float]]:
    """The guide's theta and its drop rates of the hidden units."""
    if not isinstance(guide, BernoulliDropout):
        raise TypeError(
            f"the guide must be a {BernoulliDropout.__name__} or {DropConnect.__name__}; got "
            f"{guide.describe() if isinstance(guide, Guide) else shown(guide)}"
        )
    rates = guide.rates()
    first, *hidden = (rates.get(f"layers.{i}.weight", 0.0) for i in range(layers))
    if first > 0:
        raise ValueError(
            "dropout on the network's input does not average out in wide networks: the prior is then a mixture of Gaussian "
            f"processes without a single kernel. Use mask_input=False; got drop_rate {first:g} for 'layers.0.weight'"
        )
    return guide.theta, hidden
