"""`priors.from_gp`: its kernel, evidence and scales against NumPy and SciPy, what it promises, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import erf
from scipy.stats import multivariate_normal
from torch import Tensor, nn

from pyrodrop import data, likelihoods, models, priors
from pyrodrop.analysis import gp
from pyrodrop.priors import FittedPriors
from pyrodrop.priors import fitted as fitted_priors


def mlp(widths: list[int] | None = None, activation: Any = "tanh", **options: Any) -> models.MLP:
    return models.MLP(
        widths or [2, 30, 1],
        activation,
        **{"prior": priors.Gaussian(), "likelihood": likelihoods.Gaussian(), **options},
    )


def noisy(size: int = 40, seed: int = 0) -> data.Dataset:
    """A function of the first of two columns, in units of their own."""
    x, noise = torch.randn(size, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).split([2, 1], 1)
    return data.Dataset(7 + 3 * x, 50 + 20 * torch.sin(2 * x[:, :1]) + 4 * noise)


def scales_of(fitted: FittedPriors) -> list[np.ndarray]:
    """Scales of weights and biases, layer after layer."""
    return [
        np.array(p.scale) for pair in zip(fitted.prior.values(), fitted.bias_prior.values(), strict=True) for p in pair
    ]


def arcsine(x: np.ndarray, fitted: FittedPriors, units: int, a: float) -> np.ndarray:
    """Williams (1997), eq. 11, of units erf(a u), of standardised y, from the scales of single weights."""
    weights, bias, last, last_bias = scales_of(fitted)
    inner = a**2 * ((x * weights**2) @ x.T + bias**2)
    size = 1 + 2 * np.diag(inner)
    moment = 2 / np.pi * np.arcsin(2 * inner / np.sqrt(np.outer(size, size)))
    return units * last**2 * moment + last_bias**2


@pytest.mark.parametrize("standardised", [True, False])
def test_evidence_and_leave_one_out_are_those_of_a_multivariate_normal(standardised: bool) -> None:
    """In the units of y: SciPy's density of all rows; of each row given the others, the ratio of two of these."""
    train = noisy().standardized() if standardised else noisy()
    fitted = priors.from_gp(mlp(), train)
    inputs, targets = fitted.model.inputs, fitted.model.targets
    x, y = inputs(train.x).numpy(), train.y[:, 0].numpy() - float(targets.loc)
    of_f = arcsine(x, fitted, 30, math.sqrt(math.pi) / 2) * float(targets.scale) ** 2
    covariance = of_f + float(fitted.noise_sd) ** 2 * np.eye(len(x))
    joint = multivariate_normal(cov=covariance).logpdf(y)
    assert fitted.evidence == pytest.approx(joint, rel=1e-6)
    others = [
        multivariate_normal(cov=np.delete(np.delete(covariance, i, 0), i, 1)).logpdf(np.delete(y, i))
        for i in range(len(y))
    ]
    assert fitted.leave_one_out == pytest.approx(np.mean(joint - np.array(others)), rel=1e-6)
    assert fitted.constant == pytest.approx(np.mean(-(np.log(2 * np.pi * y.var()) + (y - y.mean()) ** 2 / y.var()) / 2))


def test_every_column_has_a_noise_of_its_own() -> None:
    """Of standard deviations .1 and 3, within three errors; evidence and leave-one-out are the sums over columns."""
    g = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(100, 1, generator=g, dtype=torch.float64) - 2
    noise = torch.randn(100, 2, generator=g, dtype=torch.float64) * torch.tensor([0.1, 3.0])
    train = data.Dataset(x, torch.cat([torch.sin(2 * x), torch.cos(x)], 1) + noise).standardized()
    fitted = priors.from_gp(mlp([1, 30, 2]), train)
    np.testing.assert_allclose(fitted.noise_sd, [0.1, 3.0], rtol=3 / math.sqrt(2 * 100))
    inputs, targets = fitted.model.inputs, fitted.model.targets
    of_f = arcsine(inputs(x).numpy(), fitted, 30, math.sqrt(math.pi) / 2)
    evidence = left_out = 0.0
    for n, y in enumerate((train.y - targets.loc).T.numpy()):
        covariance = of_f * float(targets.scale[n]) ** 2 + float(fitted.noise_sd[n]) ** 2 * np.eye(100)
        joint = multivariate_normal(cov=covariance).logpdf(y)
        evidence += joint
        for i in range(100):
            others = multivariate_normal(cov=np.delete(np.delete(covariance, i, 0), i, 1)).logpdf(np.delete(y, i))
            left_out += (joint - others) / 100
    assert fitted.evidence == pytest.approx(evidence, rel=1e-6)
    assert fitted.leave_one_out == pytest.approx(left_out, rel=1e-6)


def drawn_features(net: nn.Sequential, fitted: FittedPriors, x: Tensor, draws: int) -> np.ndarray:
    """Inputs of the last layer at weights that are drawn in the order of the parameters, by plain modules."""
    g, net = torch.Generator().manual_seed(0), net.double()
    scales = {**fitted.prior, **fitted.bias_prior}
    below = {n: value for n, value in net[:-1].named_parameters() if n in scales}
    z = {n: torch.randn(draws, *value.shape, generator=g, dtype=torch.float64) for n, value in below.items()}
    phi = []
    with torch.no_grad():
        for i in range(draws):
            for name, value in below.items():
                value.copy_(z[name][i] * torch.tensor(scales[name].scale, dtype=torch.float64))
            phi.append(net[:-1](fitted.model.inputs(x)))
    return torch.cat(phi, 1).numpy()


DRAWN: dict[str, tuple[Any, int, bool]] = {  # the network, its draws, and whether columns of x have scales
    "deep": (lambda: nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 100), nn.ReLU(), nn.Linear(100, 2)), 20, True),
    "narrow, without biases": (
        lambda: nn.Sequential(nn.Linear(2, 16, bias=False), nn.Sigmoid(), nn.Linear(16, 2, bias=False)), 125, True
    ),
    "norm": (lambda: nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 200), nn.ReLU(), nn.Linear(200, 2)), 20, True),
    "convolution": (
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 2)), nn.Conv1d(1, 60, 2), nn.Tanh(), nn.Flatten(), nn.Linear(60, 2, bias=False)
        ),
        34,
        False,
    ),
}  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize("case", DRAWN)
def test_evidence_of_other_networks_is_that_of_features_at_draws(case: str) -> None:
    """NumPy's Gaussian density of y under s_w^2 mean phi phi' + s_b^2, in the units of y, and its leave-one-out."""
    make, draws, columns = DRAWN[case]
    train = noisy()
    train = data.Dataset(train.x, torch.cat([train.y, train.x.sin()[:, :1]], 1)).standardized()
    fitted = priors.from_gp(models.from_module(make(), priors.Gaussian(), likelihoods.Gaussian()), train)
    net = make()
    phi = drawn_features(net, fitted, train.x, draws)
    *_, last = fitted.prior.items()
    first = next(iter(fitted.prior.values()))
    assert len(np.atleast_1d(first.scale)) == (2 if columns else 1)
    bias = fitted.bias_prior.get(last[0].replace("weight", "bias"))
    k = last[1].scale ** 2 / draws * phi @ phi.T + (bias.scale**2 if bias else 0.0)
    evidence = left_out = 0.0
    targets = fitted.model.targets
    for n, y in enumerate((train.y - targets.loc).T.numpy()):
        covariance = k * float(targets.scale[n]) ** 2 + float(fitted.noise_sd[n]) ** 2 * np.eye(len(y))
        precision = np.linalg.inv(covariance)
        evidence -= (y @ precision @ y + np.linalg.slogdet(covariance)[1] + len(y) * math.log(2 * math.pi)) / 2
        of_row = np.diag(precision)
        left_out += np.mean(np.log(of_row / (2 * math.pi)) - (precision @ y) ** 2 / of_row) / 2
    assert fitted.evidence == pytest.approx(evidence, rel=1e-6)
    assert fitted.leave_one_out == pytest.approx(left_out, rel=1e-6)
    assert f"{phi.shape[1]:,} in {draws} draws" in fitted.kernel
    assert fitted.model.priors == {n: {**fitted.prior, **fitted.bias_prior}[n] for n in fitted.model.priors}
    assert all(name.startswith("0.") for name in fitted.model.free)  # those of LayerNorm


def test_kernel_of_draws_is_that_of_infinite_width() -> None:
    """On average over 40 draws of 2,000 units, to four errors of Williams (1997), eq. 11, and so does the evidence, whose
    error is about .01 nats per row."""

    class Erf(nn.Module):
        def forward(self, u: Tensor) -> Tensor:
            return torch.erf(u)

    train = noisy(60)
    train = data.Dataset(train.x[:, :1], train.y).standardized()
    closed = priors.from_gp(mlp([1, 50, 1], torch.erf), train)
    net = nn.Sequential(nn.Linear(1, 50), Erf(), nn.Linear(50, 1))
    model = models.from_module(net, priors.Gaussian(), likelihoods.Gaussian())
    model.standardize(train)
    model.check(train)
    weights, bias, last, last_bias = (float(scale) for scale in scales_of(closed))
    y = train.targets(train.y)[:, 0].numpy()
    noise = float(closed.noise_sd) / float(train.targets.scale)
    kernels, evidences = [], []
    for seed in range(40):
        family = fitted_priors._kernels(model, fitted_priors._layers(model), train.x, seed)
        kernel = family.make([[weights**2 * float(family.spread) ** 2], 50 * last**2], [bias**2, last_bias**2])
        kernels.append(kernel.covariance(family.x, family.x).detach().numpy())
        evidences.append(multivariate_normal(cov=kernels[-1] + noise**2 * np.eye(60)).logpdf(y))
    want = arcsine(closed.model.inputs(train.x).numpy(), closed, 50, 1.0)
    z = (np.mean(kernels, 0) - want) / (np.std(kernels, 0) / 40**0.5)
    assert np.abs(z).max() < 4.5
    want_evidence = closed.evidence + 60 * math.log(float(train.targets.scale))
    assert np.std(evidences) < 0.02 * 60
    assert abs(np.mean(evidences) - want_evidence) < 0.01 * 60 + 4 * np.std(evidences) / 40**0.5
    there = priors.from_gp(model, train)
    assert abs(there.evidence - closed.evidence) < 0.03 * 60
    np.testing.assert_allclose(there.noise_sd, closed.noise_sd, rtol=0.05)


def test_gradients_are_those_of_multivariate_normals() -> None:
    """Of the density that torch differentiates, by the covariance."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(9, 5, generator=g, dtype=torch.float64).split([2, 3], 1)
    s = [(x @ x.T + scale * torch.eye(9)).double().requires_grad_() for scale in (0.2, 1.0, 2.0)]
    for covariance, column in zip(s, y.T, strict=True):
        density = torch.distributions.MultivariateNormal(torch.zeros(9).double(), covariance).log_prob(column)
        found, _, _ = fitted_priors._of_column(covariance, column)
        torch.testing.assert_close(found, density)
        slopes = [torch.autograd.grad(each, covariance)[0] for each in (found, density)]
        torch.testing.assert_close(slopes[0], (slopes[1] + slopes[1].T) / 2)


@pytest.mark.parametrize(("activation", "of"), [(torch.erf, erf), ("relu", lambda u: np.maximum(u, 0))])
def test_kernel_is_the_covariance_of_wide_networks(activation: Any, of: Any) -> None:
    """E[f(x) f(x')] over the 200,000 units of a layer that NumPy draws, with a scale per column, to four errors."""
    prior = {"layers.0.weight": priors.Gaussian([1.5, 0.3]), "layers.1.weight": priors.Gaussian(0.2)}
    model = mlp([2, 30, 1], activation, prior=prior, bias_prior=priors.Gaussian(0.7))
    x = np.array([[0.5, -1.0], [2.0, 0.3], [-0.4, 3.0]])
    rng = np.random.default_rng(0)
    units = of(x @ (rng.standard_normal((200_000, 2)) * [1.5, 0.3]).T + 0.7 * rng.standard_normal(200_000))
    products = units[:, None] * units[None]
    want, error = products.mean(-1), products.std(-1) / len(units.T) ** 0.5
    got = gp.from_model(model).kernel(torch.tensor(x)).to_dense().detach().numpy()
    assert (np.abs(got - 0.7**2 - 30 * 0.2**2 * want) < 4 * 30 * 0.2**2 * error).all()


def test_scales_of_functions_drawn_from_a_prior_are_recovered() -> None:
    """Four functions of 150 rows of a network of 3,000 erf units. First-layer scales 3 and .3 and noise .1, within 35 %."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-2, 2, (150, 2))
    hidden = erf(x @ (rng.standard_normal((3000, 2)) * [3.0, 0.3]).T + 2 * rng.standard_normal(3000))
    y = hidden @ rng.standard_normal((3000, 4)) / 3000**0.5 + 0.1 * rng.standard_normal((150, 4))
    fitted = priors.from_gp(mlp([2, 50, 4], torch.erf), (x, y))
    weights, bias, last, _ = scales_of(fitted)
    np.testing.assert_allclose([*weights, bias, last * 50**0.5], [3.0, 0.3, 2.0, 1.0], rtol=0.35)
    np.testing.assert_allclose(fitted.noise_sd.numpy(), 0.1, rtol=0.1)
    assert fitted.noise_sd.shape == (4,)


@pytest.mark.parametrize("standardised", [True, False])
def test_other_units_of_x_and_y_give_the_same_functions(standardised: bool) -> None:
    plain = noisy()
    other = data.Dataset(plain.x * torch.tensor([1000.0, 0.01]), plain.y * 1e-3)
    one, two = (priors.from_gp(mlp(), d.standardized() if standardised else d) for d in (plain, other))
    here, there = scales_of(one), scales_of(two)
    if not standardised:
        there[0] *= [1000.0, 0.01]
        there[2:] = [scale * 1e3 for scale in there[2:]]
    for a, b in zip(here, there, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-2)
    assert two.evidence == pytest.approx(one.evidence + 40 * math.log(1000), abs=0.02)
    assert float(two.noise_sd) * 1000 == pytest.approx(float(one.noise_sd), rel=1e-2)


@pytest.mark.few(3)
@pytest.mark.parametrize("widths", [[2, 1], [2, 20, 1], [2, 20, 10, 1]])
@pytest.mark.parametrize("activation", ["tanh", "relu", "gelu", "silu", "elu", "softplus", nn.functional.leaky_relu])
def test_the_model_is_the_network_under_these_priors(widths: list[int], activation: Any) -> None:
    model, train = mlp(widths, activation, seed=3), noisy(60).standardized()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fitted = priors.from_gp(model, train)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert fitted.model.priors == {**fitted.prior, **fitted.bias_prior}
    assert not fitted.model.likelihood.learned
    last = f"layers.{len(widths) - 2}.weight"
    assert torch.equal(fitted.model.weight_sites()[last], model.weight_sites()[last])
    again = priors.from_gp(model, train)
    assert all(torch.equal(v, again.model.state_dict()[n]) for n, v in fitted.model.state_dict().items())
    assert priors.from_gp(model, train, learn_noise=True).model.likelihood.learned


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_whole_numbers_are_measurements(activation: str) -> None:
    x = torch.arange(40).reshape(20, 2) % 7
    y = (x[:, :1] - 3.0).square() + torch.linspace(0.0, 1.0, 20)[:, None]
    whole, real = (priors.from_gp(mlp([2, 20, 1], activation), (values, y)) for values in (x, x.float()))
    assert whole.evidence == pytest.approx(real.evidence, rel=1e-9)


def test_of_many_rows_some_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitted_priors, "ROWS", 50)
    fitted, other = (priors.from_gp(mlp(), noisy(70).standardized(), seed=seed) for seed in (0, 1))
    assert (fitted.rows, fitted.of_rows) == (50, 70)
    assert "50 rows, drawn at random of 70" in repr(fitted)
    assert fitted.evidence != other.evidence


def nan(y: Tensor) -> Tensor:
    y = y.clone()
    y[3] = math.nan
    return y


def of(*modules: nn.Module, **options: Any) -> models.NetworkModel:
    return models.from_module(nn.Sequential(*modules), priors.Gaussian(), likelihoods.Gaussian(), **options)


def fixed(layer: nn.Linear) -> nn.Linear:
    layer.bias.requires_grad_(False)
    return layer


class Summed(nn.Linear):
    """A network of two tensors."""

    def __init__(self) -> None:
        super().__init__(2, 1)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x + other)


def pair() -> data.Dataset:
    return data.Dataset((noisy().x.float(), noisy().x.float()), noisy().y.float())


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "another program": (lambda: lambda x, y: None, noisy, "model must be a network of pyrodrop.models, for from_gp"),
    "another prior": (
        lambda: of(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 1), bias_prior=priors.Gaussian()),
        noisy,
        "got '1.weight' with a prior: other parameters have none",
    ),
    "a fixed bias": (lambda: of(nn.Linear(2, 3), fixed(nn.Linear(3, 1))), noisy, "both trained; got '1.bias' fixed"),
    "another output": (lambda: of(nn.Linear(2, 1), nn.Softplus()), noisy, "uses '0.weight' in a torch.nn.Linear alone"),
    "rows together": (
        lambda: of(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)),
        noisy,
        "depends on no other row",
    ),
    "another likelihood": (
        lambda: mlp(likelihood=likelihoods.StudentT()),
        noisy,
        "or likelihoods.Categorical for from_gp; got a MLP with StudentT.*: choose the scales",
    ),
    "several tensors": (
        lambda: models.from_module(Summed(), priors.Gaussian(), likelihoods.Gaussian()),
        pair,
        "one tensor",
    ),
    "missing y": (mlp, lambda: (noisy().x, nan(noisy().y)), "y must be finite; got 1 NaN or infinite of 40 values"),
    "constant y": (mlp, lambda: (noisy().x, torch.ones(40)), "y must vary"),
    "columns of x": (lambda: mlp([3, 5, 1]), noisy, "3"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    make_model, make_data, message = REFUSED[case]
    with pytest.raises((TypeError, ValueError), match=message):
        priors.from_gp(make_model(), make_data())


def test_columns_of_y_in_other_units_are_standardised_or_refused() -> None:
    """The last layer has one scale, which cannot be that of functions of both columns."""
    x = torch.linspace(-2.0, 2.0, 60)[:, None]
    y = torch.cat([1e4 * torch.sin(3 * x), torch.cos(2 * x)], 1)
    model = models.MLP([1, 20, 2], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian())
    with pytest.raises(ValueError, match=r"y must have columns of similar standard deviations.*got .*e\+03, 0\."):
        priors.from_gp(model, (x, y))
    noise = priors.from_gp(model, data.Dataset(x, y).standardized()).noise_sd
    assert bool((noise < 0.1 * y.std(0)).all())
