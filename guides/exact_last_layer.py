"""The exact posterior of the last layer given the layers below, for which any other guide can be used."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor, nn

from pyrodrop.checks import HasWeights, count, instance, shown
from pyrodrop.distributions import InputUnits, WeightDistribution
from pyrodrop.distributions.weight import Size
from pyrodrop.divergences import NoDivergence
from pyrodrop.guides.guide import Guide, RateKind, check_model, first_weights, input_units
from pyrodrop.guides.mean_field import MeanField
from pyrodrop.likelihoods import Gaussian, Missing
from pyrodrop.likelihoods.shapes import elements
from pyrodrop.modules import LocalModule
from pyrodrop.networks.last_map import LastMap
from pyrodrop.parts import Part
from pyrodrop.reparam.lazy import LazyWeight


class ExactLastLayer(Part, LocalModule):
    """The Gaussian posterior of the last layer in closed form, given a sample of the layers below.

        W ~ q(W)                      weights of the layers below; Phi [N, H] are the inputs of the last layer at all N rows
        y_d = Phi w_d + b_d + noise of precision tau_d,     w_d ~ N(m_d, diag(s_d^2))       for each of D outputs

        p(w_d | y, W) = N(A^-1 r, A^-1)     A = diag(1 / s_d^2) + tau_d Phi' Phi,   r = m_d / s_d^2 + tau_d Phi' (y_d - b_d)

    This is Bayesian linear regression on features (Bishop, eq. 3.50-3.51). If b_d has a prior, w_d is drawn from its
    posterior with b_d integrated out, and then b_d given w_d. For every value of w and b, ln p(y | w, b, W) + ln p(w, b) -
    ln p(w, b | y, W) is the same number, the evidence of the regression, so that every step has

        ELBO = E_q[ln p(y | W)] - KL(q(W) || prior),   ln p(y_d | W) = ln N(y_d | Phi m_d, 1 / tau_d + Phi diag(s_d^2) Phi')

    without noise from the last layer. It is maximised over the layers below, biases without a prior, and tau if that is
    learned (the evidence approximation; Bishop, section 3.5). With a point estimate of the layers below, it can overfit:
    Ober & Rasmussen. If the noise is not Gaussian, the posterior has no closed form; for classes, Harrison, Willes & Snoek
    (2024), Variational Bayesian Last Layers, arXiv:2404.11599, use a variational one.

    It is the posterior given all training rows, so the guide stores them. `pyrodrop.fit` passes them to the guide. Every
    step and every sample for a prediction computes the features of all rows, and a saved fit contains x and y. Minibatches
    are correct, but as slow as all rows and noisier, so leave `batch_size` None. `estimator` must be ``shared``.
    `kl_weight` changes the layers below; the last layer keeps the posterior written above.

    Under Pyro's `SVI`, the rows are those passed to each step. Call `condition_on` with all rows before predicting.

    References:
        Bishop (2006), Pattern Recognition and Machine Learning, section 3.5.
        Ober & Rasmussen (2019), Benchmarking the Neural Linear Model for Regression, https://arxiv.org/abs/1912.08416.

    Args:
        model: a network of `pyrodrop.models` that returns the output ``[N, D]`` of a `torch.nn.Linear`. The weight of this
            layer is the last of the model's weights and has a Gaussian prior of fixed scale; its bias has such a prior or
            none. The network uses what has a prior in this layer alone. The likelihood is `likelihoods.Gaussian`, or
            `likelihoods.Missing` of it; it may learn its precision.
        features: function of a model that returns the guide of the layers below, such as ``guides.MeanField`` or
            ``functools.partial(guides.BernoulliDropout, drop_rate=0.1)``.

    Raises:
        TypeError: the model is no network of `pyrodrop.models`, or `features` does not return a `Guide`. Before the first
            step: x is not one tensor.
        ValueError: the likelihood is another, or the last weight is that of another layer. Before the first step: the fit
            has another model object, a prior of the last layer is not such a Gaussian (`NoDivergence`), the data are not in
            memory, or the network mixes rows, draws masks that no weight carries, changes the output of its last layer, or
            uses the weight of that layer, or a bias with a prior, elsewhere too.

    Example:
        >>> import torch, pyrodrop
        >>> from pyrodrop import guides, likelihoods, models, priors
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> model = models.MLP([1, 8, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian())
        >>> guide = guides.ExactLastLayer(model)
        >>> guide.describe()
        'ExactLastLayer(MeanField)'
        >>> fit = pyrodrop.fit(model, guide, (x, x**2), steps=50, lr=0.01)
        >>> fit.guide.draw(3)["layers.1.weight"].shape
        torch.Size([3, 1, 8])
    """

    def __init__(self, model: HasWeights, features: Callable[[HasWeights], Guide] = MeanField) -> None:
        super().__init__()
        check_model(model, "an exact last layer")
        instance(features, Callable, "features", "a function of a model that returns the guide of the layers below")
        self.weight, self.bias = _last_layer(model)
        self.sites: tuple[str, ...] = tuple(model.weight_sites())
        below = features(_Below(model, self._last))
        if not isinstance(below, Guide):
            raise TypeError(f"features must return a Guide, such as guides.Point does; got {type(below).__name__}")
        self.features: Guide = below
        self.rows: _Rows = _Rows()
        self.__dict__["model"] = model  # not a submodule, whose parameters would be those of the guide

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        self.model._apply(*args, **kwargs)  # to the same device and dtype
        return super()._apply(*args, **kwargs)

    @property
    def _last(self) -> tuple[str, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def condition_on(self, x: Tensor, y: Tensor) -> None:
        """Set the rows that the posterior of the last layer is conditioned on, as copies. `pyrodrop.fit` calls this method.

        Args:
            x: ``[N, ...]``, in the units of the data.
            y: ``[N, D]``, or ``[N]`` for one output.

        Raises:
            TypeError: x is not one tensor.
            ValueError: the network is not supported (see the class), or the shape of y is not that of its output.
        """
        model: Any = self.model
        instance(x, Tensor, "x", "one tensor, for guides.ExactLastLayer")
        if model.mixes_in_training(x) or model.noise_shapes(x):
            raise ValueError(
                "guides.ExactLastLayer needs a network without masks that no weight carries, in which the output of a row "
                "does not depend on other rows, as it does under BatchNorm in training mode"
            )
        device = model.weight_sites()[self.weight].device
        x = x.to(device, copy=True)
        y = model.likelihood.as_target(y if y.is_floating_point() else y.double()).to(device)
        with torch.no_grad():
            self._posterior({name: model.weight_sites()[name] for name in self.features.sites}, x, y)
        self.rows.x, self.rows.y, self.rows.seen = x, y.nan_to_num(), ~y.isnan()

    def forward(
        self, x: Any = None, y: Tensor | None = None, num_data: int | None = None, **_: Any
    ) -> dict[str, Tensor]:
        """Sample every weight at its Pyro site: the layers below, then the last layer given them and all rows.

        The arguments are those of the model. They are ignored once rows are set.

        Raises:
            ValueError: no rows are set and the arguments are not all rows, or a weight below is not one sample for all rows.
        """
        rows = (x, y) if len(self.rows.y) == 0 and y is not None and num_data in (None, len(y)) else self.rows()
        drawn = self.features()
        if any(isinstance(w, LazyWeight) or w.shape != self.features.shapes[name] for name, w in drawn.items()):
            raise ValueError(
                "guides.ExactLastLayer computes the last layer from one sample of the layers below: estimator must be "
                "'shared', and particles must not be vectorised"
            )
        last = self._posterior(drawn, *rows)
        drawn[self.weight] = pyro.sample(self.weight, last.weight)
        if self.bias is not None:
            drawn[self.bias] = pyro.sample(self.bias, last.bias_given(drawn[self.weight]))
        return drawn

    def _posterior(self, below: dict[str, Tensor], x: Tensor, y: Tensor) -> _LastLayer:
        """The posterior of the last layer given weights below and rows, in standardised units and float64."""
        model: Any = self.model
        initial = model.weight_sites()
        loc, inverse = _prior(model, self.weight)
        phi, fixed, output = _last_map(model, below | {name: initial[name] for name in self._last}, self._last, x)
        if output.dim() != 2 or len(y) != len(output) or y.numel() != output.numel():
            raise ValueError(
                "guides.ExactLastLayer needs outputs [N, D] and a y of their shape; got outputs "
                f"{list(output.shape)} and y {list(y.shape)}"
            )
        phi, targets = phi.double(), model.targets(y.reshape(output.shape)).double()
        noise: Any = elements(model.likelihood(torch.zeros_like(output[:1]), model.targets))
        tau = ~targets.isnan() * (model.targets.scale.double() / noise.scale.double()) ** 2  # [N, D]
        if self.bias is None and fixed is not None:
            targets = targets - fixed.double()
        rows = _Regression(phi, targets.nan_to_num(), tau)
        targets = tau * rows.targets
        cross = tau.T @ phi  # [D, H]
        precision = torch.diag_embed(inverse) + phi.T @ (tau.T.unsqueeze(-1) * phi)  # [D, H, H]
        right = loc * inverse + targets.T @ phi
        bias, slope = None, torch.zeros_like(cross)
        if self.bias is not None:
            loc, inverse = _prior(model, self.bias)
            of_bias = inverse + tau.sum(0)
            at_zero, slope = (loc * inverse + targets.sum(0)) / of_bias, cross / of_bias[:, None]
            bias = _PerOutput(at_zero, of_bias.sqrt()[:, None, None], 1, initial[self.bias])
            precision = precision - slope.unsqueeze(-1) * cross.unsqueeze(-2)
            right = right - at_zero[:, None] * cross
        factor, failed = torch.linalg.cholesky_ex(precision)
        factor = factor.masked_fill((failed != 0)[:, None, None], math.nan)  # so that training reports it
        mean = torch.cholesky_solve(right.unsqueeze(-1), factor).squeeze(-1)
        return _LastLayer(_PerOutput(mean, factor, 2, initial[self.weight]), bias, slope, rows)

    def left_out(self, below: dict[str, Tensor]) -> Tensor:
        """ln p(y_n | y of all other rows, W) of every row n, given one sample W of the layers below, in the units of y.

            sum_d ln N(y_nd | f_nd - l_nd (y_nd - f_nd) / (1 - l_nd), 1 / (tau_d (1 - l_nd))),    l_nd = tau_d Var[f_nd]

        where f_nd is the mean of phi_n w_d + b_d under the posterior given all rows, and l_nd the leverage of row n: the
        conjugate regression without row n in closed form (Rasmussen & Williams 2006, Gaussian Processes for Machine
        Learning, section 5.4.2, https://gaussianprocess.org/gpml/chapters/RW5.pdf).

        Args:
            below: the weights of the layers below by site, without further dimensions; others are ignored.

        Returns:
            ``[N]`` in float64; values of y that are missing count for nothing.

        Raises:
            ValueError: no rows are set.
        """
        last = self._posterior({name: below[name] for name in self.features.sites}, *self.rows())
        phi, targets, tau = last.rows
        design = phi - last.slope.unsqueeze(1)  # [D, N, H]
        mean = (design @ last.weight.mean.unsqueeze(-1)).squeeze(-1)
        variance = torch.linalg.solve_triangular(last.weight.factor, design.mT, upper=False).square().sum(-2)
        if last.bias_at_zero is not None:
            mean = mean + last.bias_at_zero.mean.unsqueeze(-1)
            variance = variance + last.bias_at_zero.factor.squeeze(-1) ** -2
        rest = 1 - tau * variance.T  # [N, D]
        error = tau * (targets - mean.T).square() / rest
        model: Any = self.model
        log_scale = torch.log(tau * rest / (2 * math.pi)) / 2 - model.targets.scale.double().log()
        return torch.where(tau > 0, log_scale - error / 2, 0.0).sum(-1)

    def draw(self, num_samples: int) -> dict[str, Tensor]:
        """Sample every weight: tensors ``[num_samples, ...]`` by site name.

        Raises:
            ValueError: `num_samples` is below 1, or no rows are set.
            TypeError: it is no whole number.
        """
        below = self.features.draw(count(num_samples, "num_samples", "the number of samples"))
        constant = all(bool((values == values[:1]).all()) for values in below.values())
        drawn: dict[str, list[Tensor]] = {name: [] for name in self._last}
        with torch.no_grad():
            for i in range(1 if constant else num_samples):
                last = self._posterior({name: values[i] for name, values in below.items()}, *self.rows())
                drawn[self.weight].append(last.weight.expand((num_samples if constant else 1,)).sample())
                if self.bias is not None:
                    drawn[self.bias].append(last.bias_given(drawn[self.weight][-1]).sample())
        drawn |= {name: [values] for name, values in below.items()}
        return {name: torch.cat(drawn[name]) for name in self.sites}

    def mean(self) -> dict[str, Tensor]:
        """The posterior mean of the layers below, and that of the last layer given this mean; `predict` does not use it.

        Raises:
            ValueError: no rows are set.
        """
        means = self.features.mean()
        with torch.no_grad():
            last = self._posterior(means, *self.rows())
            means[self.weight] = last.weight.mean.to(last.weight.like)
            if self.bias is not None:
                means[self.bias] = last.bias_given(means[self.weight]).mean.to(last.weight.like)
        return {name: means[name] for name in self.sites}

    def restart(self, model: HasWeights) -> None:
        """Reset the guide of the layers below to the current weights of the model; the last layer is computed from them."""
        check_model(model, "an ExactLastLayer")
        self.features.restart(_Below(model, self._last))
        self.__dict__["model"] = model

    def rates(self) -> dict[str, Any]:
        """The rates of the layers below."""
        return self.features.rates()

    @property
    def rate_kind(self) -> RateKind:
        """The kind of rates of the layers below."""
        return self.features.rate_kind

    def describe(self) -> str:
        return f"ExactLastLayer({self.features.describe()})"


class _Rows(nn.Module):
    """The rows that the posterior is conditioned on, and which values of y are not missing; empty until they are set."""

    any_shape = True  # the buffers may have any shape in a file
    x: Tensor
    y: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("x", "y", "seen"):
            self.register_buffer(name, torch.empty(0))

    def forward(self) -> tuple[Tensor, Tensor]:
        """x, and y with NaN where it is missing."""
        if len(self.y) == 0:
            raise ValueError(
                "guides.ExactLastLayer needs all rows of the data, as pyrodrop.fit passes them on; this guide has none: "
                "call guide.condition_on(x, y)"
            )
        return self.x, self.y.masked_fill(~self.seen, math.nan)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        for name in ("x", "y", "seen"):
            if f"{prefix}{name}" in state_dict:
                setattr(self, name, torch.empty_like(state_dict[f"{prefix}{name}"], device=self.x.device))
        super()._load_from_state_dict(state_dict, prefix, *rest)


class _Below:
    """The layers below the last one, as a model that guides are made for."""

    def __init__(self, model: HasWeights, last: tuple[str, ...]) -> None:
        self.model, self.last = model, last

    def _without(self, values: Any) -> dict[str, Any]:
        return {name: value for name, value in values.items() if name not in self.last}

    def weight_sites(self) -> dict[str, Tensor]:
        return self._without(self.model.weight_sites())

    def hyper_sites(self) -> dict[str, dict[str, Tensor]]:
        return self._without(self.model.hyper_sites())

    def input_units(self) -> dict[str, InputUnits]:
        return self._without(input_units(self.model))

    def reset_parameters(self) -> None:
        self.model.reset_parameters()  # type: ignore[attr-defined]

    def first_weights(self) -> tuple[str, ...]:
        return tuple(name for name in first_weights(self.model) if name not in self.last)


class _PerOutput(WeightDistribution):
    """Gaussians, independent between the D outputs, with precision matrices L L', in float64.

    It has no closed-form KL divergence on purpose: the estimate from its sample cancels the noise of the likelihood.

    Args:
        loc: the means, ``[..., D, H]``, or ``[..., D]`` of a bias, where H = 1.
        factor: L, ``[D, H, H]``.
        event_dim: 2, or 1 of a bias.
        like: a tensor with the dtype of samples and densities.
    """

    def __init__(self, loc: Tensor, factor: Tensor, event_dim: int, like: Tensor) -> None:
        super().__init__(loc, event_dim=event_dim, units=InputUnits(None), validate_args=False)
        self.factor, self.like = factor, like

    @property
    def mean(self) -> Tensor:
        return self.loc

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        shape = torch.Size(sample_shape) + self.loc.shape
        noise = torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        deviation = torch.linalg.solve_triangular(self.factor.mT, self._columns(noise), upper=True)
        return (self.loc + deviation.reshape(shape)).to(self.like)

    def log_prob(self, value: Tensor) -> Tensor:
        normal = (self.factor.mT @ self._columns(value - self.loc)).square().sum((-3, -2, -1))
        log_scale = self.factor.diagonal(dim1=-2, dim2=-1).log().sum()
        return (log_scale - (normal + self.event_shape.numel() * math.log(2 * math.pi)) / 2).to(self.like)

    def _columns(self, values: Tensor) -> Tensor:
        """``[..., *event_shape]`` as ``[..., D, H, 1]``."""
        batch = values.shape[: values.dim() - len(self.event_shape)]
        return values.reshape(*batch, *self.factor.shape[:2], 1)


class _Regression(NamedTuple):
    """The rows: inputs ``[N, H]``; y less a bias without a prior, and its precisions, 0 if missing, ``[N, D]``."""

    phi: Tensor
    targets: Tensor
    tau: Tensor


class _LastLayer(NamedTuple):
    """The posteriors of the weight, and of a bias with a prior: its mean at w is that of `bias_at_zero` minus slope w."""

    weight: _PerOutput
    bias_at_zero: _PerOutput | None
    slope: Tensor
    rows: _Regression

    def bias_given(self, weight: Tensor) -> _PerOutput:
        assert self.bias_at_zero is not None
        return self.bias_at_zero.at(self.bias_at_zero.loc - (self.slope * weight).sum(-1))


def _last_map(
    model: Any, weights: dict[str, Tensor], last: tuple[str, ...], x: Tensor
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Inputs, bias and output of the linear map with the sites `last`, a weight and perhaps its bias.

    Raises:
        ValueError: the network uses one of these sites otherwise, or changes the output of the map.
    """
    with LastMap([weights[name] for name in last]) as seen:
        output = model.outputs(weights, x)
    use, linear = seen.last, seen.last.linear() if seen.last else None
    phi, *used = linear or (x, None, None)
    alone = use is seen.first and all(weights[name] is tensor for name, tensor in zip(last, used, strict=False))
    if use is None or not alone or use.result is not output or seen.changed():
        raise ValueError(
            f"guides.ExactLastLayer needs a network that uses {' and '.join(map(repr, last))} in a torch.nn.Linear alone, "
            "and returns the output of that layer unchanged; this one does not"
        )
    return phi, used[1], output


def _last_layer(model: Any) -> tuple[str, str | None]:
    """Names of the last weight, and of its bias if that has a prior.

    Raises:
        TypeError, ValueError: the posterior of this layer has no closed form.
    """
    if not hasattr(model, "noise_shapes"):
        raise TypeError(f"guides.ExactLastLayer needs a network of pyrodrop.models; got {shown(model)}")
    likelihood = model.likelihood
    if type(likelihood.likelihood if isinstance(likelihood, Missing) else likelihood) is not Gaussian:
        raise ValueError(
            "guides.ExactLastLayer needs likelihoods.Gaussian, or likelihoods.Missing of it, under which the posterior of "
            f"the last layer has a closed form; got {likelihood.describe()}"
        )
    weights = model.weight_sites()
    name = [name for name, weight in weights.items() if weight.dim() > 1][-1:] or [""]
    if not name[0].endswith("weight") or weights[name[0]].dim() != 2:
        raise ValueError(
            "guides.ExactLastLayer needs the weight [D, H] of a torch.nn.Linear as the last of the weights with a prior; "
            f"got {list(weights)}"
        )
    bias = f"{name[0].removesuffix('weight')}bias"
    return name[0], bias if bias in weights else None


def _prior(model: Any, name: str) -> tuple[Tensor, Tensor]:
    """Means and precisions of the Gaussian prior of a weight."""
    prior, like, units = model.priors[name], model.weight_sites()[name], input_units(model)[name]
    if not prior.hyper_sites(name, like, units):
        with poutine.block():
            normal: Any = elements(prior.for_site(name, like, units))
        if type(normal) is dist.Normal:
            return normal.loc.double(), normal.scale.double() ** -2
    raise NoDivergence(
        f"guides.ExactLastLayer needs a Gaussian prior of fixed scale in the last layer; got {prior.describe()} for {name!r}"
    )
