"""The exact posterior of the last layer given the layers below, for which any other guide can be used; of class labels
Laplace's approximation of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor, nn
from torch.nn.functional import linear

from pyrodrop.checks import HasWeights, count, instance, shown
from pyrodrop.distributions import InputUnits, WeightDistribution
from pyrodrop.distributions.weight import Size
from pyrodrop.divergences import NoDivergence
from pyrodrop.guides.guide import Guide, RateKind, check_model, first_weights, input_units
from pyrodrop.guides.laplace import TURN, LabelRows
from pyrodrop.guides.mean_field import MeanField
from pyrodrop.guides.point import Point
from pyrodrop.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian
from pyrodrop.likelihoods.shapes import elements
from pyrodrop.modules import LocalModule
from pyrodrop.networks.last_map import LastMap
from pyrodrop.networks.trial import close
from pyrodrop.parts import Part
from pyrodrop.priors import Gaussian as GaussianPrior
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
    Ober & Rasmussen.

    Class labels have no closed form. Given W, their last layer has Laplace's approximation, the normal distribution of all
    its weights at the mode of p(w, b | y, W) with the curvature there (`pyrodrop.guides.laplace`), by Newton's method from
    logits that the guide stores. It is a q(w, b | W) as any other, so the ELBO, with a draw of w and b, is a lower bound of
    the log evidence; it is not that of the best normal distribution. The matrix of D outputs has (D H)^2 entries; of two
    classes two blocks of H^2, of a Bernoulli D. Harrison, Willes & Snoek (2024), Variational Bayesian Last Layers,
    arXiv:2404.11599, learn the normal distribution of classes instead.

    It is the posterior given all training rows, so the guide stores them. `pyrodrop.fit` passes them to the guide. Every
    step and every sample for a prediction computes the features of all rows, and a saved fit contains x and y, unless the
    layers below are `guides.Point` and `forget_rows` was called. Minibatches are correct, but as slow as all rows and
    noisier, so leave `batch_size` None. `estimator` must be ``shared``. `kl_weight` changes the layers below; the last layer
    keeps the posterior written above.

    Under Pyro's `SVI`, call `condition_on` with all rows before the first step.

    References:
        Bishop (2006), Pattern Recognition and Machine Learning, section 3.5.
        Ober & Rasmussen (2019), Benchmarking the Neural Linear Model for Regression, https://arxiv.org/abs/1912.08416.
        Rasmussen & Williams (2006), http://gaussianprocess.org/gpml, section 3.5: Laplace's approximation of classes.

    Args:
        model: a network of `pyrodrop.models` that returns the output ``[N, D]`` of a `torch.nn.Linear`. The weight of this
            layer is the last of the model's weights and has a Gaussian prior of fixed scale; its bias has such a prior or
            none. The network uses what has a prior in this layer alone. The likelihood is `likelihoods.Gaussian`, which may
            learn its precision, `Categorical`, `Bernoulli`, or `HeteroscedasticGaussian`: the network then returns the
            output of this layer beside the noise, of other layers or a parameter, and tau_d differs between rows.
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
        self.of_labels: bool = isinstance(model.likelihood, Categorical | Bernoulli)  # type: ignore[attr-defined]
        self.rows: _Rows = _Rows(("x", "y", "start") if self.of_labels else ("x", "y", "seen"))
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
            y: ``[N, D]``, or ``[N]`` for one output or class labels.

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
        y = model.likelihood.as_target(y if y.is_floating_point() or self.of_labels else y.double()).to(device)
        self.rows.y = self.rows.y[:0]
        with torch.no_grad():
            model.likelihood.check(y, model.outputs(model.weight_sites(), x[:1]), model.targets)
            weights = model.weight_sites()
            phi, bias, output = _last_map(model, weights, self._last, x)
            mean, size = linear(phi, weights[self.weight], bias), len(weights[self.weight])
            moved = _last_map(model, weights | {self.weight: weights[self.weight] + 1}, self._last, x)[2]
            if not close(mean, output[..., :size]) or not close(moved[..., size:], output[..., size:]):
                raise ValueError(_UNLIKE.format(" and ".join(map(repr, self._last))))  # or it has changed it in place
            last = self._posterior({name: weights[name] for name in self.features.sites}, x, y)
        self.rows.x = x
        if self.of_labels:
            self.rows.y, self.rows.start = y.clone(), last.rows.logits(last.rows.posterior(None)[0])
        else:
            self.rows.y, self.rows.seen = y.clone(), torch.ones_like(y, dtype=torch.bool)

    @torch.no_grad()
    def forget_rows(self) -> None:
        """Replace the rows of a trained guide by a triangular matrix that has the same products, for a file without x and y.

            [1, Phi, y]' [1, Phi, y] = R' R       R [1 + H + D, 1 + H + D], the QR decomposition (Golub & Van Loan 2013, 5.2)

        R has the same posterior as the rows. Predictions are the same up to rounding, and compute no features of training
        rows any more. `left_out` and training need the rows; `pyrodrop.fit` sets them.

        Raises:
            ValueError: the likelihood is another, no rows are set, or the features of a row differ between draws.
        """
        likelihood = self.model.likelihood
        if not isinstance(likelihood, Gaussian) or not isinstance(self.features, Point):
            raise ValueError(
                "forget_rows needs likelihoods.Gaussian above guides.Point: otherwise each draw needs all rows; got "
                f"{likelihood.describe()} and {self.describe()}"
            )
        rows = self.rows()
        if not self.rows.summed:
            phi, y, _ = self._design({name: values[0] for name, values in self.features.draw(1).items()}, *rows)
            self.rows.keep(torch.linalg.qr(torch.cat([phi, y], 1), mode="r")[1], y.shape[1])

    def forward(self, *_: Any, **__: Any) -> dict[str, Tensor]:
        """Sample every weight at its Pyro site: the layers below, then the last layer given them and all rows.

        The arguments are those of the model, and are ignored.

        Raises:
            ValueError: no rows are set, or they are forgotten and a gradient is computed; or a weight below is not one
                sample for all rows.
        """
        drawn = self.features()
        if any(isinstance(w, LazyWeight) or w.shape != self.features.shapes[name] for name, w in drawn.items()):
            raise ValueError(
                "guides.ExactLastLayer computes the last layer from one sample of the layers below: estimator must be "
                "'shared', and particles must not be vectorised"
            )
        rows = self.rows()
        if self.rows.summed and torch.is_grad_enabled():
            raise ValueError(
                "guides.ExactLastLayer is trained with all rows of the data, and has forgotten them: call "
                "guide.condition_on(x, y), as pyrodrop.fit does"
            )
        last = self._posterior(drawn, *rows)
        drawn[self.weight] = pyro.sample(self.weight, last.weight)
        if self.bias is not None:
            drawn[self.bias] = pyro.sample(self.bias, last.bias_given(drawn[self.weight]))
        return drawn

    def _posterior(self, below: dict[str, Tensor], x: Tensor, y: Tensor, start: Tensor | None = None) -> _LastLayer:
        """The posterior of the last layer given weights below and rows, in standardised units and float64.

        Args:
            start: of class labels, logits ``[N, D]`` at which the search for the mode starts.
        """
        model: Any = self.model
        initial = model.weight_sites()
        loc, inverse = _prior(model, self.weight)
        if self.bias is not None:
            of_bias = _prior(model, self.bias)
            loc, inverse = (torch.cat([b[:, None], w], 1) for b, w in zip(of_bias, (loc, inverse), strict=True))
        rows: Any
        if self.of_labels:
            rows = self._labels(*self._inputs(below, x), y, loc, inverse)
        else:
            phi, targets, output = (x, y, torch.zeros_like(y)) if self.rows.summed else self._design(below, x, y)
            noise: Any = elements(model.likelihood(output, model.targets))
            tau = (model.targets.scale.double() / noise.scale.double()) ** 2  # [N, D]
            rows = _Regression(phi, targets, tau, loc, inverse)
        goal, precision = rows.posterior(start) if self.of_labels else rows.posterior()
        outputs = len(loc) // len(precision)  # of which the weights are dependent
        biases = outputs if self.bias is not None else 0
        if biases > 1:  # the biases first, so that the weights have their marginal precision
            size = loc.shape[1]
            order = torch.tensor(sorted(range(loc.numel()), key=lambda i: (i % size > 0, i)), device=precision.device)
            precision = precision[:, order][..., order]
        factor, failed = torch.linalg.cholesky_ex(precision)
        factor = factor.masked_fill((failed != 0)[:, None, None], math.nan)  # so that training reports it
        mean = goal if self.of_labels else torch.cholesky_solve(goal.unsqueeze(-1), factor).squeeze(-1)
        turn = TURN.to(mean) if self.of_labels and rows.turned else None
        mean = mean if turn is None else turn @ mean
        weight = _PerOutput(mean[:, bool(biases) :], factor[:, biases:, biases:], 2, initial[self.weight], turn)
        if self.bias is None:
            return _LastLayer(weight, None, torch.empty(0), rows, mean, factor)
        of_bias = factor[:, :biases, :biases]
        slope = torch.linalg.solve_triangular(of_bias.mT, factor[:, biases:, :biases].mT, upper=True)
        at_mean = _PerOutput(mean[:, 0], of_bias, 1, initial[self.bias], turn)
        return _LastLayer(weight, at_mean, slope, rows, mean, factor)

    def _inputs(self, below: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs of the layer ``[N, M]``, with a 1 first for a bias with a prior; a bias without one ``[D]``; the output."""
        model: Any = self.model
        initial = model.weight_sites()
        phi, fixed, output = _last_map(model, below | {name: initial[name] for name in self._last}, self._last, x)
        phi, offset = phi.double(), torch.zeros_like(initial[self.weight][:, 0], dtype=torch.float64)
        if self.bias is not None:
            return torch.cat([torch.ones_like(phi[:, :1]), phi], 1), offset, output
        return phi, offset if fixed is None else fixed.double(), output

    def _design(self, below: dict[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs of the layer; standardised y less a bias without a prior, ``[N, D]``; the output."""
        model: Any = self.model
        phi, offset, output = self._inputs(below, x)
        if output.dim() != 2 or len(y) != len(output) or y.numel() != len(y) * len(offset):
            raise ValueError(
                "guides.ExactLastLayer needs outputs [N, D] of the last layer and a y of their shape; got outputs "
                f"{list(output.shape)}, {len(offset)} of the last layer, and y {list(y.shape)}"
            )
        return phi, model.targets(y.reshape(len(y), -1)).double() - offset, output

    def _labels(
        self, phi: Tensor, offset: Tensor, output: Tensor, y: Tensor, loc: Tensor, inverse: Tensor
    ) -> LabelRows:
        model: Any = self.model
        softmax = isinstance(model.likelihood, Categorical)
        y = y.unsqueeze(1) == torch.arange(output.shape[1], device=y.device) if softmax else y.reshape(output.shape)
        rows = LabelRows(phi, y.to(phi), torch.ones_like(phi[:, :1]), offset, loc, inverse, softmax)
        equal = all(type(prior := model.priors[name]) is GaussianPrior for name in self._last) and (
            self.bias is None or prior.numbers()["scale"].dim() == 0
        )  # between outputs
        return rows.of_two_classes() if softmax and output.shape[1] == 2 and equal else rows

    def left_out(self, below: dict[str, Tensor]) -> Tensor:
        """ln p(y_n | y of all other rows, W) of every row n, given one sample W of the layers below, in the units of y.

            sum_d ln N(y_nd | f_nd - l_nd (y_nd - f_nd) / (1 - l_nd), 1 / (tau_d (1 - l_nd))),    l_nd = tau_d Var[f_nd]

        where f_nd is the mean of phi_n w_d + b_d under the posterior given all rows, and l_nd the leverage of row n: the
        conjugate regression without row n in closed form (Rasmussen & Williams 2006, Gaussian Processes for Machine
        Learning, section 5.4.2, https://gaussianprocess.org/gpml/chapters/RW5.pdf).

        Args:
            below: the weights of the layers below by site, without further dimensions; others are ignored.

        Returns:
            ``[N]`` in float64.

        Raises:
            ValueError: no rows are set, or they were forgotten, or y are class labels.
        """
        if self.of_labels or self.rows.summed:
            what = "class labels" if self.of_labels else "a guide without rows"
            raise ValueError(f"left_out has a closed form for Gaussian noise, and needs the rows; got {what}")
        last = self._posterior({name: below[name] for name in self.features.sites}, *self.rows())
        phi, targets, tau, *_ = last.rows
        variance = torch.linalg.solve_triangular(last.factor, phi.T, upper=False).square().sum(-2)  # [D, N]
        rest = 1 - tau * variance.T  # [N, D]
        error = tau * (targets - phi @ last.mean.T).square() / rest
        model: Any = self.model
        log_scale = torch.log(tau * rest / (2 * math.pi)) / 2 - model.targets.scale.double().log()
        return (log_scale - error / 2).sum(-1)

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
        if self.rows.summed:
            self.rows.y = self.rows.y[:0]  # of other features
        self.__dict__["model"] = model

    def rates(self) -> dict[str, Any]:
        """The rates of the layers below."""
        return self.features.rates()

    @property
    def rate_kind(self) -> RateKind:
        """The kind of rates of the layers below."""
        return self.features.rate_kind

    def describe(self) -> str:
        return f"ExactLastLayer({self.features.describe()}{', Laplace' if self.of_labels else ''})"


class _Rows(nn.Module):
    """The rows that the posterior is conditioned on, or R of their QR decomposition, where `seen` is empty; of class labels
    also logits at which the search for the mode starts. Empty until they are set."""

    any_shape = True  # the buffers may have any shape in a file
    x: Tensor
    y: Tensor
    seen: Tensor
    start: Tensor

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        for name in names:
            self.register_buffer(name, torch.empty(0))

    def forward(self) -> tuple[Tensor, ...]:
        """x and y; of class labels also the start of the search for the mode."""
        if len(self.y) == 0:
            raise ValueError(
                "guides.ExactLastLayer needs all rows of the data, as pyrodrop.fit passes them on; this guide has none: "
                "call guide.condition_on(x, y)"
            )
        return (self.x, self.y, self.start) if "start" in self._buffers else (self.x, self.y)

    @property
    def summed(self) -> bool:
        """Whether x are inputs of the layer, and y standardised, of R."""
        return "seen" in self._buffers and len(self.y) > 0 and not self.seen.numel()

    def keep(self, factor: Tensor, outputs: int) -> None:
        """Replace the rows by R of their QR decomposition, whose last columns are y."""
        self.x, self.y = factor[:, :-outputs].clone(), factor[:, -outputs:].clone()
        self.seen = torch.empty(0, dtype=torch.bool, device=factor.device)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        for name in self._buffers:
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
    """Gaussians, independent between the D outputs or one for all, with precision matrices L L', in float64.

    It has no closed-form KL divergence on purpose: the estimate from its sample cancels the noise of the likelihood.

    Args:
        loc: the means, ``[..., D, H]``, or ``[..., D]`` of a bias, where H = 1.
        factor: L, ``[D, H, H]``, or ``[1, D H, D H]`` if outputs are dependent.
        event_dim: 2, or 1 of a bias.
        like: a tensor with the dtype of samples and densities.
        turn: an orthogonal, symmetric matrix ``[D, D]`` of linear combinations of outputs that are independent, in place of
            the outputs.
    """

    def __init__(self, loc: Tensor, factor: Tensor, event_dim: int, like: Tensor, turn: Tensor | None = None) -> None:
        super().__init__(loc, event_dim=event_dim, units=InputUnits(None), validate_args=False)
        self.factor, self.like, self.turn = factor, like, turn

    @property
    def mean(self) -> Tensor:
        return self.loc

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        shape = torch.Size(sample_shape) + self.loc.shape
        noise = torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        columns = noise.reshape(*shape[: len(shape) - len(self.event_shape)], *self.factor.shape[:2], 1)
        return (
            self.loc + self.turned(torch.linalg.solve_triangular(self.factor.mT, columns, upper=True).reshape(shape))
        ).to(self.like)

    def log_prob(self, value: Tensor) -> Tensor:
        normal = (self.factor.mT @ self.as_columns(value - self.loc)).square().sum((-3, -2, -1))
        log_scale = self.factor.diagonal(dim1=-2, dim2=-1).log().sum()
        return (log_scale - (normal + self.event_shape.numel() * math.log(2 * math.pi)) / 2).to(self.like)

    def turned(self, values: Tensor) -> Tensor:
        """The linear combinations of values ``[..., *event_shape]``, or the values of linear combinations."""
        if self.turn is None:
            return values
        return values @ self.turn if len(self.event_shape) == 1 else self.turn @ values

    def as_columns(self, values: Tensor) -> Tensor:
        """``[..., *event_shape]`` as ``[..., D, H, 1]``, or ``[..., 1, D H, 1]`` if outputs are dependent."""
        batch = values.shape[: values.dim() - len(self.event_shape)]
        return self.turned(values).reshape(*batch, *self.factor.shape[:2], 1)


class _Regression(NamedTuple):
    """The rows: inputs ``[N, M]``, with a 1 for a bias with a prior; y less a bias without one, and its
    precisions, ``[N, D]``; mean and precision of the prior, ``[D, M]``."""

    phi: Tensor
    targets: Tensor
    tau: Tensor
    loc: Tensor
    inverse: Tensor

    def posterior(self) -> tuple[Tensor, Tensor]:
        """The precisions times the mean, ``[D, M]``, and the precisions ``[D, M, M]``."""
        precision = torch.diag_embed(self.inverse) + self.phi.T @ (self.tau.T.unsqueeze(-1) * self.phi)
        return self.loc * self.inverse + (self.tau * self.targets).T @ self.phi, precision


class _LastLayer(NamedTuple):
    """The posteriors of the weight, and of a bias with a prior given the mean of the weight; those of all, ``[D, M]``."""

    weight: _PerOutput
    bias_at_mean: _PerOutput | None
    slope: Tensor
    rows: Any
    mean: Tensor
    factor: Tensor

    def bias_given(self, weight: Tensor) -> _PerOutput:
        assert self.bias_at_mean is not None
        moved = (self.slope @ self.weight.as_columns(weight - self.weight.loc)).reshape(*weight.shape[:-1])
        return self.bias_at_mean.at(self.bias_at_mean.loc - self.bias_at_mean.turned(moved))


def _last_map(
    model: Any, weights: dict[str, Tensor], last: tuple[str, ...], x: Tensor
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Inputs, bias and output of the linear map with the sites `last`, a weight and perhaps its bias.

    Raises:
        ValueError: the network uses one of these sites otherwise, or changes the output of the map.
    """
    with LastMap([weights[name] for name in last]) as seen:
        output = model.outputs(weights, x)
    use = seen.last
    phi, *used = (use.linear() if use else None) or (x, None, None)
    alone = use is seen.first and all(weights[name] is tensor for name, tensor in zip(last, used, strict=False))
    beside = isinstance(model.likelihood, HeteroscedasticGaussian)  # to which the noise is concatenated
    if use is None or not alone or not (beside or use.result is output):
        raise ValueError(_UNLIKE.format(" and ".join(map(repr, last))))
    return phi, used[1], output


_UNLIKE = (
    "guides.ExactLastLayer needs a network that uses {} in a torch.nn.Linear alone, and returns the output of that layer "
    "unchanged, before that of other layers for the noise if it has any; this one does not"
)


def _last_layer(model: Any) -> tuple[str, str | None]:
    """Names of the last weight, and of its bias if that has a prior.

    Raises:
        TypeError, ValueError: the posterior of this layer has no closed form.
    """
    if not hasattr(model, "noise_shapes"):
        raise TypeError(f"guides.ExactLastLayer needs a network of pyrodrop.models; got {shown(model)}")
    likelihood = model.likelihood
    if type(likelihood) not in (Gaussian, HeteroscedasticGaussian, Categorical, Bernoulli):
        raise ValueError(
            "guides.ExactLastLayer needs likelihoods.Gaussian, HeteroscedasticGaussian, Categorical or Bernoulli; got "
            f"{likelihood.describe()}"
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
