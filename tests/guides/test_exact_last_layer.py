"""The exact last layer against Bayesian linear regression in numpy and scipy, which call none of the guide's code."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import multivariate_normal, norm
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.data import Dataset
from pyrodrop.training.elbo import elbo_terms
from tests.small import normal

X = normal(30, 2, seed=1)
Y = torch.stack([torch.sin(3 * X[:, 0]), X[:, 1] ** 2], 1) + 0.2 * normal(30, 2, seed=2)
DATA = Dataset(X * 3 + 7, Y * torch.tensor([50.0, 0.2]) + 4).standardized()
SCALE, BIAS_SCALE = 0.6, 1.7
PRIOR = {"layers.2.*": priors.Gaussian(SCALE), "*": priors.Gaussian(0.9)}
QUICK: dict[str, Any] = {"steps": 30, "lr": 0.03, "seed": 0, "progress": False}


def model_of(bias: bool = False, likelihood: Any = None, widths: Any = (2, 6, 4, 2), **options: Any) -> Any:
    return models.MLP(
        list(widths),
        "tanh",
        prior=options.pop("prior", PRIOR),
        bias_prior={"layers.2.*": priors.Gaussian(BIAS_SCALE), "*": None} if bias else None,
        likelihood=likelihood or likelihoods.Gaussian(),
        **options,
    )


def fitted(
    features: Callable[[Any], guides.Guide] = guides.Point, bias: bool = False, data: Any = DATA, **options: Any
) -> Any:
    model = model_of(bias, options.pop("likelihood", None))
    return pyrodrop.fit(model, guides.ExactLastLayer(model, features), data, **{**QUICK, **options})


def features_at(fit: Any, weights: dict[str, Tensor], x: Tensor) -> np.ndarray:
    """The inputs of the last layer, in float64."""
    h = ((x - fit.model.inputs.loc) / fit.model.inputs.scale).double()
    for layer in ("layers.0", "layers.1"):
        h = torch.tanh(h @ weights[f"{layer}.weight"].double().T + fit.model.free[f"{layer}.bias"].double())
    return h.detach().numpy()  # type: ignore[no-any-return]


def units(fit: Any) -> tuple[Tensor, Tensor]:
    """Location and scale of y, by output."""
    return fit.model.targets.loc.double().expand(2), fit.model.targets.scale.double().expand(2)


def standardised(fit: Any, y: Tensor) -> np.ndarray:
    loc, scale = units(fit)
    return ((y.double() - loc) / scale).numpy()  # type: ignore[no-any-return]


def noise_variance(fit: Any) -> np.ndarray:
    """Of standardised y, by output."""
    return (1 / (fit.model.likelihood.precision.detach().double() * units(fit)[1] ** 2)).numpy()  # type: ignore[no-any-return]


def log_evidence(fit: Any, weights: dict[str, Tensor], x: Tensor, y: Tensor) -> float:
    """ln p(y | features) in the units of y: multivariate normals of the outputs."""
    phi, targets, total = features_at(fit, weights, x), standardised(fit, y), 0.0
    bias = "layers.2.bias" in fit.model.priors
    for d, variance in enumerate(noise_variance(fit)):
        covariance = SCALE**2 * phi @ phi.T + bias * BIAS_SCALE**2 + variance * np.eye(len(phi))
        mean = np.zeros(len(phi)) if bias else np.full(len(phi), float(fit.model.free["layers.2.bias"][d].detach()))
        total += multivariate_normal(mean, covariance).logpdf(targets[:, d])
        total -= len(phi) * math.log(units(fit)[1][d])
    return float(total)


def regression(fit: Any, weights: dict[str, Tensor], x: Tensor, y: Tensor) -> list[tuple[np.ndarray, np.ndarray]]:
    """Mean and covariance of (w_d, b_d) of each output, by normal equations with a column of ones."""
    phi, targets = features_at(fit, weights, x), standardised(fit, y)
    bias, made = "layers.2.bias" in fit.model.priors, []
    for d, variance in enumerate(noise_variance(fit)):
        design = np.column_stack([phi, np.ones(len(phi))]) if bias else phi
        target = targets[:, d] - (0 if bias else float(fit.model.free["layers.2.bias"][d].detach()))
        inverse_prior = np.diag([SCALE**-2] * phi.shape[1] + [BIAS_SCALE**-2] * bias)
        covariance = np.linalg.inv(inverse_prior + design.T @ design / variance)
        made.append((covariance @ design.T @ target / variance, covariance))
    return made


@pytest.mark.parametrize("bias", [False, True], ids=["bias without a prior", "bias with a prior"])
@pytest.mark.parametrize("features", [guides.Point, guides.MeanField])
def test_every_step_has_the_evidence_of_the_regression(features: Any, bias: bool) -> None:
    """For every draw: nll + ln q - ln p of the last layer is -ln p(y | features)."""
    fit = fitted(features, bias)
    x, y = fit.data.x, fit.data.y
    guide, model = fit.guide, fit.model
    for seed in range(3):
        torch.manual_seed(seed)
        loss = float(sum(elbo_terms(model, guide, x, y)).detach())
        torch.manual_seed(seed)
        below = guide.features()
        want = -log_evidence(fit, below, x, y)
        for name, weight in below.items():
            prior = torch.distributions.Normal(0.0, 0.9)
            if features is guides.Point:
                want -= float(prior.log_prob(weight.detach()).sum())
            else:
                q = torch.distributions.Normal(guide.features.loc[name], (guide.features.log_variance[name] / 2).exp())
                want += float(torch.distributions.kl_divergence(q, prior).sum().detach())
        assert loss == pytest.approx(want, rel=2e-5)


def test_the_gradient_is_that_of_the_evidence() -> None:
    """Of features, free biases and precisions, by autograd through a multivariate normal."""
    fit = fitted()
    model, guide, x, y = fit.model.double(), fit.guide.double(), fit.data.x, fit.data.y
    parameters = {**dict(model.named_parameters()), **dict(guide.named_parameters())}
    got = torch.autograd.grad(sum(elbo_terms(model, guide, x, y)), list(parameters.values()))
    weights = {name: guide.features.loc[name] for name in guide.features.sites}
    h = (x.double() - model.inputs.loc) / model.inputs.scale
    for layer in ("layers.0", "layers.1"):
        h = torch.tanh(h @ weights[f"{layer}.weight"].T + model.free[f"{layer}.bias"])
    target = (y.double() - model.targets.loc) / model.targets.scale
    loss = -sum(torch.distributions.Normal(0.0, 0.9).log_prob(weight).sum() for weight in weights.values())
    for d in range(2):
        variance = 1 / (model.likelihood.precision[d] * model.targets.scale[d] ** 2)
        covariance = SCALE**2 * h @ h.T + variance * torch.eye(len(h))
        mean = model.free["layers.2.bias"][d].expand(len(h))
        loss = loss - torch.distributions.MultivariateNormal(mean, covariance).log_prob(target[:, d])
    want = torch.autograd.grad(loss, list(parameters.values()))
    assert len(got) == 6  # two weights, three biases, the precisions
    for name, ours, theirs in zip(parameters, got, want, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6, msg=name)


@pytest.mark.parametrize("bias", [False, True], ids=["bias without a prior", "bias with a prior"])
def test_predictions_are_those_of_bayesian_linear_regression(bias: bool) -> None:
    """Mean and variance of f between and beyond the data, within 5 standard errors; the mean weights up to rounding."""
    fit, draws = fitted(bias=bias), 4000
    new = torch.linspace(-8, 20, 7)[:, None].expand(7, 2).contiguous()
    weights = fit.guide.mean()
    phi = features_at(fit, weights, new)
    f = fit.predict(new, draws, seed=1).f.double().numpy()
    for d, (mean, covariance) in enumerate(regression(fit, weights, fit.data.x, fit.data.y)):
        own = [*weights["layers.2.weight"][d].tolist(), *([float(weights["layers.2.bias"][d])] if bias else [])]
        np.testing.assert_allclose(own, mean, rtol=1e-4, atol=1e-5)
        design = np.column_stack([phi, np.ones(7)]) if bias else phi
        shift = 0.0 if bias else float(fit.model.free["layers.2.bias"][d].detach())
        loc, scale = (float(value[d]) for value in units(fit))
        sd = scale * np.sqrt(np.einsum("nh,hk,nk->n", design, covariance, design))
        error = f[:, :, d].mean(0) - (loc + scale * (design @ mean + shift))
        assert np.all(np.abs(error) < 5 * sd / draws**0.5 + 1e-4 * scale)
        assert np.all(np.abs(f[:, :, d].var(0) / sd**2 - 1) < 5 * (2 / draws) ** 0.5)


def test_every_draw_of_the_layers_below_has_its_own_last_layer() -> None:
    """Squared distances of the draws from the means of their regressions are chi-squared, of a degree per weight."""
    fit = fitted(functools.partial(guides.BernoulliDropout, drop_rate=0.5, mask_input=False))
    torch.manual_seed(0)
    drawn = fit.guide.draw(300)
    distances = []
    for i in range(300):
        weights = {name: values[i] for name, values in drawn.items()}
        for d, (mean, covariance) in enumerate(regression(fit, weights, fit.data.x, fit.data.y)):
            away = weights["layers.2.weight"][d].double().numpy() - mean
            distances.append(away @ np.linalg.solve(covariance, away))
    assert abs(np.mean(distances) - 4) < 5 * (8 / 600) ** 0.5


@pytest.mark.parametrize("bias", [False, True], ids=["bias without a prior", "bias with a prior"])
def test_a_row_left_out_is_a_regression_without_it(bias: bool) -> None:
    """ln p(y) - ln p(y without row n), of multivariate normals, for every row."""
    fit = fitted(guides.MeanField, bias)
    weights = {name: values[0] for name, values in fit.guide.features.draw(1).items()}
    x, y = fit.data.x, fit.data.y
    whole, every = log_evidence(fit, weights, x, y), torch.arange(len(y))
    want = [whole - log_evidence(fit, weights, x[every != n], y[every != n]) for n in range(len(y))]
    np.testing.assert_allclose(fit.guide.left_out(weights).detach(), want, rtol=1e-4, atol=1e-4)


def test_without_layers_below_it_is_the_evidence_of_the_model() -> None:
    """A network of one layer is Bayesian linear regression: its ELBO is ln p(y), its draws those of the posterior."""
    model = models.MLP(
        [2, 1],
        prior=priors.Gaussian(),
        bias_prior=priors.Gaussian(2.0),
        likelihood=likelihoods.Gaussian(4.0, learned=True),
    )
    fit = pyrodrop.fit(model, guides.ExactLastLayer(model), (X, Y[:, 0]), **QUICK)
    x, tau = X.double().numpy(), float(fit.model.likelihood.precision.detach())  # type: ignore[attr-defined]
    evidence = multivariate_normal(np.zeros(30), x @ x.T + 4 + np.eye(30) / tau).logpdf(Y[:, 0].double().numpy())
    elbo = fit.elbo(2)
    assert elbo.value == pytest.approx(float(evidence), rel=1e-5)
    assert elbo.se < 1e-3
    assert elbo.convention.kind == "exact"


def test_a_minibatch_is_an_unbiased_part_of_all_rows() -> None:
    """With the same draw, the mean loss of the minibatches that make up the data is the loss of all rows."""
    fit = fitted(guides.MeanField, bias=True)
    x, y, losses = fit.data.x, fit.data.y, []
    for rows in (slice(None), *(slice(first, first + 10) for first in (0, 10, 20))):
        torch.manual_seed(5)
        losses.append(float(sum(elbo_terms(fit.model, fit.guide, x[rows], y[rows], num_data=30)).detach()))
    assert losses[0] == pytest.approx(sum(losses[1:]) / 3, rel=1e-5)
    of_batches = fitted(guides.MeanField, bias=True, batch_size=10)
    assert math.isfinite(of_batches.elbo(3).value)


def test_saved_and_trained_as_others(tmp_path: Path) -> None:
    """A file restores predictions by itself and into a new guide; engines and replicates train alike."""
    fit = fitted(guides.MeanField, bias=True, engine="pyro")
    want = fit.predict(DATA.x, 20, seed=3).mean
    path = fit.save(tmp_path / "fit")
    model = model_of(True)
    for loaded in (
        pyrodrop.Fit.load(path),
        pyrodrop.Fit.load(path, model, guides.ExactLastLayer(model, guides.MeanField)),
    ):
        torch.testing.assert_close(loaded.predict(DATA.x, 20, seed=3).mean, want, rtol=0, atol=0)
    torch.testing.assert_close(fitted(guides.MeanField, True, engine="traced").losses, fit.losses, rtol=1e-5, atol=1e-3)
    made = [model_of(True, seed=seed) for seed in range(2)]
    each = [guides.ExactLastLayer(model, guides.Point) for model in made]
    sets = [DATA, Dataset(DATA.x, DATA.y.flip(0)).standardized()]
    together = pyrodrop.fit_replicates(made, each, sets, count=2, **QUICK)
    for one, model, guide, data in zip(together, made, each, sets, strict=True):
        alone = pyrodrop.fit(model, guide, data, **QUICK)
        torch.testing.assert_close(one.losses, alone.losses, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("bias", [False, True], ids=["bias without a prior", "bias with a prior"])
def test_sums_have_the_posterior_of_the_rows(bias: bool, tmp_path: Path) -> None:
    """Within rounding, by normal equations; a file has no rows, and training needs them again."""
    fit = fitted(bias=bias)
    want = regression(fit, fit.guide.mean(), fit.data.x, fit.data.y)
    fit.guide.forget_rows()
    fit.guide.forget_rows()
    assert all(30 not in tensor.shape for tensor in fit.guide.state_dict().values())
    again = pyrodrop.Fit.load(fit.save(tmp_path / "fit"))
    weights = again.guide.mean()
    for d, (mean, _) in enumerate(want):
        own = [*weights["layers.2.weight"][d].tolist(), *([float(weights["layers.2.bias"][d])] if bias else [])]
        np.testing.assert_allclose(own, mean, rtol=1e-4, atol=1e-5)
    factor = again.guide._posterior(weights, *again.guide.rows()).factor.detach()  # type: ignore[operator, union-attr]
    order = [4, 0, 1, 2, 3] if bias else range(4)
    for d, (_, covariance) in enumerate(want):
        got = torch.linalg.inv(factor[d] @ factor[d].T).numpy()
        np.testing.assert_allclose(got, covariance[np.ix_(order, order)], rtol=1e-4)
    with pytest.raises(ValueError, match="is trained with all rows of the data, and has forgotten them"):
        again.guide(DATA.x, DATA.y)
    assert again.elbo(2, DATA).value == pytest.approx(fit.elbo(2).value, rel=1e-5)
    trained = pyrodrop.fit(again.model, again.guide, DATA, **QUICK)
    assert not trained.guide.rows.summed  # type: ignore[union-attr, operator]
    again.guide.restart(again.model)  # type: ignore[operator, union-attr]
    with pytest.raises(ValueError, match="this guide has none"):
        again.predict(DATA.x, 2)
    with pytest.raises(ValueError, match="forget_rows needs likelihoods.Gaussian above guides.Point"):
        fitted(guides.MeanField).guide.forget_rows()


def test_a_guide_without_rows_says_so() -> None:
    model = model_of()
    guide = guides.ExactLastLayer(model)
    for call in (lambda: guide(X), lambda: guide(X, Y), lambda: guide.draw(2), guide.mean):
        with pytest.raises(ValueError, match=r"this guide has none: call guide.condition_on\(x, y\)"):
            call()


def test_guide_and_model_stay_together() -> None:
    """A copy of the guide has a copy of the model, so it is refused beside the model; it moves its own."""
    model = model_of()
    copied = copy.deepcopy(guides.ExactLastLayer(model)).double()
    with pytest.raises(ValueError, match="guide computes with its model, which must be the model of this call"):
        pyrodrop.fit(model, copied, (X, Y), steps=1)
    with pytest.raises(ValueError, match="guides computes with its model"):
        pyrodrop.fit_replicates(model, guides.ExactLastLayer(model_of()), (X, Y), count=2, steps=1)
    copied.condition_on(X.double(), Y.double())
    assert copied.draw(2)["layers.2.weight"].dtype == torch.float64
    assert model.weight_sites()["layers.2.weight"].dtype == torch.float32


class Softmax:
    """Labels y [N] of a last layer under N(0, SCALE^2) weights and N(0, BIAS_SCALE^2) biases, in NumPy and SciPy."""

    def __init__(self, design: np.ndarray, y: np.ndarray, sd: np.ndarray, offset: Any = 0.0) -> None:
        self.design, self.y, self.sd, self.offset = design, y, sd, offset  # sd [D, M]

    def log_joint(self, v: np.ndarray) -> np.ndarray:
        """ln p(y | V) + ln p(V), with all constants, for V [..., D, M]."""
        f = np.einsum("nm,...dm->...nd", self.design, v) + self.offset
        of_labels = f[..., np.arange(len(self.y)), self.y] - np.logaddexp.reduce(f, -1)
        return of_labels.sum(-1) + norm(0, self.sd).logpdf(v).sum((-2, -1))  # type: ignore[no-any-return]

    def laplace(self) -> tuple[np.ndarray, np.ndarray]:
        """The mode [D M] by SciPy, and the precision by a matrix for every row."""
        shape, onehot = self.sd.shape, np.eye(len(self.sd))[self.y]

        def slope(v: np.ndarray) -> np.ndarray:
            f = self.design @ (v := v.reshape(shape)).T + self.offset
            p = np.exp(f - np.logaddexp.reduce(f, 1, keepdims=True))
            return ((p - onehot).T @ self.design + v / self.sd**2).ravel()

        found = minimize(
            lambda v: -self.log_joint(v.reshape(shape)), np.zeros(self.sd.size), jac=slope, method="BFGS",
            options={"gtol": 1e-9, "maxiter": 5000},
        )  # fmt: skip
        precision = np.diag(self.sd.ravel() ** -2)
        f = self.design @ found.x.reshape(shape).T + self.offset
        for row, p in zip(self.design, np.exp(f - np.logaddexp.reduce(f, 1, keepdims=True)), strict=True):
            precision += np.kron(np.diag(p) - np.outer(p, p), np.outer(row, row))
        return found.x, precision


def label_fit(
    classes: int, bias: bool = True, features: Any = guides.Point, **options: Any
) -> tuple[Any, Tensor, Tensor]:
    """A fit of labels of a curved boundary, and the rows."""
    score = torch.sin(3 * X[:, 0]) + X[:, 1] ** 2 + 0.5 * normal(30, 2, seed=3)[:, 0]
    y = torch.bucketize(score, score.quantile(torch.arange(1, classes) / classes))
    model = model_of(bias, likelihoods.Categorical(), widths=(2, 6, 4, classes))
    return pyrodrop.fit(model, guides.ExactLastLayer(model, features), (X, y), **{**QUICK, **options}), X, y


def softmax_of(fit: Any, weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Softmax:
    """The oracle for the features of some weights; the bias is the last column of its design."""
    phi, bias = features_at(fit, weights, x), "layers.2.bias" in fit.model.priors
    design = np.column_stack([phi, np.ones(len(phi))]) if bias else phi
    sd = np.full((int(y.max()) + 1, design.shape[1]), SCALE)
    if bias:
        sd[:, -1] = BIAS_SCALE
    return Softmax(design, y.numpy(), sd, 0.0 if bias else fit.model.free["layers.2.bias"].detach().double().numpy())


@pytest.mark.parametrize("bias", [False, True], ids=["bias without a prior", "bias with a prior"])
@pytest.mark.parametrize("classes", [2, 3])
def test_labels_have_the_mode_and_curvature_of_scipy(classes: int, bias: bool) -> None:
    """ln q of draws is that of a normal with SciPy's mode and the precision summed over rows; so are mean and covariance."""
    fit, x, y = label_fit(classes, bias)
    oracle = softmax_of(fit, fit.guide.mean(), x, y)
    mode, precision = oracle.laplace()
    below = {name: values[0] for name, values in fit.guide.features.draw(1).items()}
    with torch.no_grad():
        last = fit.guide._posterior(below, *fit.guide.rows())
        torch.manual_seed(0)
        w = last.weight.expand((4000,)).sample()
        b = last.bias_given(w).sample()[..., None] if bias else w[..., :0]
        log_q = last.weight.log_prob(w) + (last.bias_given(w).log_prob(b[..., 0]) if bias else 0)
    v = torch.cat([w, b], -1).flatten(1).double().numpy()
    want = multivariate_normal(mode, np.linalg.inv(precision)).logpdf(v)
    np.testing.assert_allclose(log_q, want, atol=2e-3)
    white = (v - mode) @ np.linalg.cholesky(precision)
    assert np.abs(white.mean(0)).max() < 5 / 4000**0.5
    assert np.abs(np.cov(white.T) - np.eye(len(mode))).max() < 5 * (2 / 4000) ** 0.5


@pytest.mark.parametrize("classes", [2, 3])
def test_an_elbo_of_labels_is_a_bound_near_the_evidence(classes: int) -> None:
    """Of a network of one layer: below ln p(y) by importance sampling, and near it; its convention is exact."""
    y = torch.bucketize(X[:, 0] + 0.3 * X[:, 1] ** 2, torch.tensor([0.0, 0.8])[: classes - 1])
    scales = {"prior": priors.Gaussian(SCALE), "bias_prior": priors.Gaussian(BIAS_SCALE)}
    model = models.MLP([2, 4, classes], likelihood=likelihoods.Categorical(), **scales)
    fit = pyrodrop.fit(model, guides.ExactLastLayer(model, guides.Point), (X, y), **{**QUICK, "steps": 1})
    weights = fit.guide.mean()
    phi = torch.relu(X @ weights["layers.0.weight"].T + weights["layers.0.bias"]).double().numpy()
    oracle = Softmax(np.column_stack([phi, np.ones(30)]), y.numpy(), np.array([[SCALE] * 4 + [BIAS_SCALE]] * classes))
    mode, precision = oracle.laplace()
    q = multivariate_normal(mode, np.linalg.inv(precision))
    v = q.rvs(20_000, random_state=0)
    ratio = oracle.log_joint(v.reshape(-1, *oracle.sd.shape)) - q.logpdf(v)
    evidence, bound = np.logaddexp.reduce(ratio) - math.log(len(v)), ratio.mean()
    prior = sum(float(norm(0, scale).logpdf(weights[f"layers.0.{kind}"]).sum()) for kind, scale in
                (("weight", SCALE), ("bias", BIAS_SCALE)))  # fmt: skip
    elbo = fit.elbo(200)
    assert elbo.value == pytest.approx(bound + prior, abs=5 * elbo.se + 5 * ratio.std() / len(v) ** 0.5)
    assert evidence - 0.5 < bound < evidence
    assert elbo.convention.kind in ("exact", "up_to_constant")


def test_the_gradient_of_labels_is_that_of_the_loss() -> None:
    """By central differences of the loss with the same noise, of weights below and a free bias."""
    fit, x, y = label_fit(3, bias=False)
    model, guide = fit.model.double(), fit.guide.double()
    guide.condition_on(x.double(), y)

    def loss() -> Tensor:
        torch.manual_seed(0)
        return sum(elbo_terms(model, guide, x.double(), y))

    parameters = [guide.features.loc["layers.1.weight"], model.free["layers.2.bias"]]
    slopes = torch.autograd.grad(loss(), parameters)
    for parameter, slope in zip(parameters, slopes, strict=True):
        for place in range(3):
            values = []
            for step in (1e-4, -1e-4):
                with torch.no_grad():
                    parameter.view(-1)[place] += step
                    values.append(float(loss()))
                    parameter.view(-1)[place] -= step
            assert float(slope.view(-1)[place]) == pytest.approx((values[0] - values[1]) / 2e-4, rel=1e-4, abs=1e-5)


def test_yes_or_no_labels_and_missing_ones() -> None:
    """A Bernoulli of two outputs is a Categorical of two classes for each, and a missing label changes nothing."""
    y = (X > 0).float()
    model = model_of(True, likelihoods.Bernoulli())
    fit = pyrodrop.fit(model, guides.ExactLastLayer(model, guides.Point), (X, y), **QUICK)
    weights = fit.guide.mean()
    phi = features_at(fit, weights, X)
    design = np.column_stack([phi, np.ones(30)])
    for d in range(2):
        v = np.array([*weights["layers.2.weight"][d].tolist(), float(weights["layers.2.bias"][d])])
        p = 1 / (1 + np.exp(-design @ v))
        slope = design.T @ (y[:, d].numpy() - p) - v / np.array([SCALE] * 4 + [BIAS_SCALE]) ** 2
        np.testing.assert_allclose(slope, 0, atol=1e-3)


def test_labels_are_saved_and_trained_as_others(tmp_path: Path) -> None:
    fit, x, y = label_fit(2, features=guides.MeanField)
    again = pyrodrop.Fit.load(fit.save(tmp_path / "fit"))
    torch.testing.assert_close(again.predict(x, 20, seed=3).f, fit.predict(x, 20, seed=3).f, rtol=0, atol=0)
    traced, _, _ = label_fit(2, features=guides.MeanField, engine="traced")
    torch.testing.assert_close(traced.losses, fit.losses, rtol=1e-4, atol=1e-2)
    made = [model_of(True, likelihoods.Categorical(), seed=seed) for seed in range(2)]
    each = [guides.ExactLastLayer(model, guides.Point) for model in made]
    runs = pyrodrop.fit_replicates(made, each, (x, y), count=2, **QUICK)
    alone = pyrodrop.fit(made[1], each[1], (x, y), **QUICK)
    torch.testing.assert_close(runs[1].losses, alone.losses, rtol=1e-3, atol=1e-1)
    assert fit.guide.describe() == "ExactLastLayer(MeanField, Laplace)"
    with pytest.raises(ValueError, match="left_out has a closed form for Gaussian noise"):
        fit.guide.left_out(fit.guide.mean())


class WithNoise(nn.Module):
    """f beside r, a parameter, or of another layer: the variance of standardised y is exp(-r)."""

    def __init__(self, body: nn.Module, noise: nn.Module | None, mean: nn.Module, outputs: int) -> None:
        super().__init__()
        self.body, self.noise, self.log_precision = body, noise, nn.Parameter(torch.zeros(outputs))
        self.mean = mean

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        r = self.log_precision + (torch.zeros_like(h[:, :1]) if self.noise is None else self.noise(h))
        return torch.cat([self.mean(h), r.expand(len(x), -1)], 1)


@pytest.mark.parametrize("features", [guides.Point, guides.MeanField])
def test_noise_that_varies_has_the_evidence_of_its_rows(features: Any) -> None:
    """ln p(y | W) is that of normals with the noise of each row; so are the rows that are left out, one by one."""
    torch.manual_seed(0)
    net = WithNoise(nn.Sequential(nn.Linear(2, 5), nn.Tanh()), nn.Linear(5, 2), nn.Linear(5, 2), 2)
    model = models.from_module(net, {"mean.*": priors.Gaussian(SCALE), "*": priors.Gaussian(0.9)},
                               likelihoods.HeteroscedasticGaussian())  # fmt: skip
    fit = pyrodrop.fit(model, guides.ExactLastLayer(model, features), DATA, **QUICK)
    guide, tree = fit.guide, fit.model.free  # type: ignore[union-attr]
    free = {name: tree[name].detach().double() for name in tree}
    torch.manual_seed(3)
    loss = float(elbo_terms(fit.model, guide, fit.data.x, fit.data.y).loss.detach())
    torch.manual_seed(3)
    below = {name: value.detach().double() for name, value in guide.features().items()}  # type: ignore[operator, union-attr]
    h = ((fit.data.x - fit.model.inputs.loc) / fit.model.inputs.scale).double()  # type: ignore[union-attr]
    h = torch.tanh(h @ below["body.0.weight"].T + free["body.0.bias"])
    r = (free["log_precision"] + h @ below["noise.weight"].T + free["noise.bias"]).numpy()
    targets, scales, every = standardised(fit, fit.data.y), units(fit)[1], np.arange(30)

    def evidence(rows: np.ndarray) -> float:
        total = 0.0
        for d in range(2):
            phi = h.numpy()[rows]
            covariance = SCALE**2 * phi @ phi.T + np.diag(np.exp(-r[rows, d]))
            normal = multivariate_normal(np.full(len(rows), float(free["mean.bias"][d])), covariance)
            total += float(normal.logpdf(targets[rows, d])) - len(rows) * math.log(scales[d])
        return total

    want = -evidence(every)
    for name, weight in below.items():
        prior = torch.distributions.Normal(0.0, 0.9)
        if features is guides.Point:
            want -= float(prior.log_prob(weight).sum())
        else:
            q = torch.distributions.Normal(guide.features.loc[name], (guide.features.log_variance[name] / 2).exp())  # type: ignore[operator, union-attr]
            want += float(torch.distributions.kl_divergence(q, prior).sum().detach())
    assert loss == pytest.approx(want, rel=2e-5)
    left_out = [evidence(every) - evidence(every[every != n]) for n in range(30)]
    weights = {name: value.float() for name, value in below.items()}
    np.testing.assert_allclose(guide.left_out(weights).detach(), left_out, rtol=1e-3, atol=1e-3)  # type: ignore[operator, union-attr]
    with pytest.raises(ValueError, match="forget_rows needs likelihoods.Gaussian above guides.Point"):
        guide.forget_rows()  # type: ignore[operator, union-attr]


class LogGamma(priors.Prior):
    """Of the logarithm of a variable with a Gamma distribution."""

    def __init__(self, shape: float, rate: float) -> None:
        self.shape, self.rate = shape, rate

    def expand(self, *shape: int, like: Tensor | None = None) -> Any:
        shape_, rate = (torch.full(shape, value).to(like) for value in (self.shape, self.rate))  # type: ignore[arg-type]
        logarithm = torch.distributions.ExpTransform().inv
        return pyro.distributions.TransformedDistribution(pyro.distributions.Gamma(shape_, rate), [logarithm]).to_event(
            len(shape)
        )

    def describe(self) -> str:
        return f"LogGamma({self.shape:g}, {self.rate:g})"


def test_a_noise_with_a_gamma_prior_is_one_more_weight_below() -> None:
    """Beside the integral over ln tau on a grid: evidence, ln tau, and mean and sd of f, which is nearly Student's t."""
    x = normal(12, 1, seed=4)
    y = 2 * x + 0.5 * normal(12, 1, seed=5)
    net = WithNoise(nn.Identity(), None, nn.Linear(1, 1, bias=False), 1)
    model = models.from_module(
        net, priors.Gaussian(2.0), likelihoods.HeteroscedasticGaussian(), bias_prior=LogGamma(2.0, 1.0)
    )
    guide = guides.ExactLastLayer(model)
    fit = pyrodrop.fit(model, guide, (x, y), steps=600, lr=0.03, seed=0, progress=False,
                       lr_schedule=pyrodrop.schedules.cosine(600))  # fmt: skip
    xs, ys, t = x[:, 0].double().numpy(), y[:, 0].double().numpy(), np.linspace(-6, 6, 4001)
    precision = 1 / 4 + np.exp(t) * (xs @ xs)
    mean = np.exp(t) * (xs @ ys) / precision
    log_joint = 6 * t - np.exp(t) * (ys @ ys) / 2 + precision * mean**2 / 2 - np.log(precision * 4) / 2
    log_joint += 2 * t - np.exp(t) - 6 * math.log(2 * math.pi)  # Gamma(2, 1) has the normaliser 1
    evidence = np.logaddexp.reduce(log_joint) + math.log(t[1] - t[0])
    weights = np.exp(log_joint - np.logaddexp.reduce(log_joint))
    elbo = fit.elbo(2000)
    assert evidence - 0.1 < elbo.value < evidence + 4 * elbo.se
    drawn = fit.guide.draw(4000)  # type: ignore[operator, union-attr]
    log_tau, w = drawn["log_precision"][:, 0].double(), drawn["mean.weight"].flatten().double()
    sd = math.sqrt(weights @ t**2 - (weights @ t) ** 2)
    assert float(log_tau.mean()) == pytest.approx(weights @ t, abs=0.2 * sd)
    assert float(log_tau.std()) == pytest.approx(sd, rel=0.15)
    of_w = math.sqrt(weights @ (1 / precision + mean**2) - (weights @ mean) ** 2)
    assert float(w.mean()) == pytest.approx(weights @ mean, abs=0.1 * of_w)
    assert float(w.std()) == pytest.approx(of_w, rel=0.08)


class _Net(nn.Module):
    def __init__(self, output: Callable[[Any, Tensor], Tensor], *more: nn.Module) -> None:
        super().__init__()
        self.first, self.more, self.last, self.output = nn.Linear(2, 4), nn.Sequential(*more), nn.Linear(4, 2), output

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self, self.more(self.first(x)).tanh())


NETWORKS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "in place": (lambda: _Net(lambda net, h: net.last(h).mul_(2)), "returns the output of that layer unchanged"),
    "tied": (lambda: nn.Sequential(layer := nn.Linear(2, 2), nn.Tanh(), layer), "torch.nn.Linear alone"),
    "an activation": (lambda: _Net(lambda net, h: net.last(h).exp()), "returns the output of that layer unchanged"),
    "BatchNorm": (lambda: _Net(lambda net, h: net.last(h), nn.BatchNorm1d(4)), "does not depend on other rows"),
    "a bias used below": (lambda: _Net(lambda net, h: net.last(h + net.last.bias.sum())), "'last.bias' in a torch"),
}  # fmt: skip


@pytest.mark.parametrize("output", [lambda f: [f * 2, f * 0], lambda f: [f, f], lambda f: [f * 0, f]])
def test_noise_that_depends_on_the_last_layer_is_refused(output: Callable[[Tensor], list[Tensor]]) -> None:
    net = _Net(lambda net, h: torch.cat(output(net.last(h)), 1))
    model = models.from_module(net, priors.Gaussian(), likelihoods.HeteroscedasticGaussian())
    with pytest.raises(ValueError, match="before that of other layers for the noise"):
        pyrodrop.fit(model, guides.ExactLastLayer(model), (X, Y), steps=1)
    plain = models.MLP([2, 3, 4], prior=priors.Gaussian(), likelihood=likelihoods.HeteroscedasticGaussian())
    with pytest.raises(ValueError, match=r"outputs \[30, 4\], 4 of the last layer, and y \[30, 2\]"):
        pyrodrop.fit(plain, guides.ExactLastLayer(plain), (X, Y), steps=1)


@pytest.mark.parametrize("name", NETWORKS)
def test_other_networks_are_refused(name: str) -> None:
    make, message = NETWORKS[name]
    bias_prior = priors.Gaussian() if "bias" in name else None
    model = models.from_module(make(), priors.Gaussian(), likelihoods.Gaussian(), bias_prior=bias_prior)
    with pytest.raises(ValueError, match=message):
        pyrodrop.fit(model, guides.ExactLastLayer(model), (X, Y), steps=1)


def test_what_has_no_exact_last_layer_is_refused() -> None:
    for likelihood in (likelihoods.Poisson(), likelihoods.StudentT()):
        with pytest.raises(ValueError, match="needs likelihoods.Gaussian, HeteroscedasticGaussian, Categorical or"):
            guides.ExactLastLayer(model_of(likelihood=likelihood))
    model = model_of()
    with pytest.raises(TypeError, match="features must return a Guide, .* got Ensemble"):
        guides.ExactLastLayer(model, lambda below: guides.Ensemble(below, guides.Point, 2))  # type: ignore[arg-type,return-value]
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=10)
    with pytest.raises(ValueError, match="needs all rows of the data in memory"):
        pyrodrop.fit(model, guides.ExactLastLayer(model), loader, steps=1)
    alone = models.MLP(
        [2, 1], prior=priors.Gaussian(), bias_prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0)
    )
    with pytest.raises(RuntimeError, match="ExactLastLayer has none: learn the noise"):
        pyrodrop.fit(alone, guides.ExactLastLayer(alone), (X, Y[:, :1]), steps=1)
