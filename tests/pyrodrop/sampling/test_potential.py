"""The potential for Pyro's samplers: Pyro's own density, closed forms, and what is refused."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from pyro.distributions import TorchDistribution
from pyro.infer import HMC, MCMC, NUTS
from pyro.infer.mcmc.util import initialize_model
from pyro.ops.integrator import potential_grad
from torch import Tensor, nn
from torch.distributions import constraints
from torch.func import functional_call

import pyrodrop
from pyrodrop import data, likelihoods, models, priors
from tests.small import Heavy

X, Y = torch.linspace(-1, 1, 24).reshape(12, 2), torch.linspace(3, 5, 12)[:, None] ** 2
LABELS = torch.arange(12) % 3


def mlp(
    prior: Any = None,
    likelihood: Any = None,
    outputs: int = 1,
    bias_prior: Any = priors.Gaussian(0.7),  # noqa: B008
) -> models.MLP:
    return models.MLP(
        [2, 5, outputs],
        activation="tanh",
        prior=prior or priors.Gaussian(0.8),
        bias_prior=bias_prior,
        likelihood=likelihood or likelihoods.Gaussian(2.0),
    )


CASES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "Gaussian prior": lambda: (mlp(), (X, Y)),
    "ARD": lambda: (mlp(priors.ARD("input", dist.InverseGamma(2.0, 0.5))), (X, Y)),
    "heavy tails": lambda: (mlp(priors.ARD("weight", dist.HalfCauchy(0.3)), bias_prior=None), (X, Y)),
    "Categorical": lambda: (mlp(Heavy(), likelihoods.Categorical(), 3), (X, LABELS)),
    "heteroscedastic": lambda: (mlp(Heavy(), likelihoods.HeteroscedasticGaussian(), 2), (X, Y)),
    "standardised": lambda: (
        mlp(likelihood=likelihoods.Gaussian(0.1)),
        data.Dataset(3 + 2 * X, Y).standardized(),
    ),
    "point estimates": lambda: (mlp(likelihood=likelihoods.Gaussian(2.0, learned=True), bias_prior=None), (X, Y)),
}


def by_pyro(model: Any, given: Any, dtype: torch.dtype | None, values: dict[str, Tensor]) -> tuple[Any, Tensor]:
    """Gradient and energy by the potential that Pyro's kernels make of a model."""
    model, given = copy.deepcopy(model), data.Dataset.of(given)
    model.to(dtype or torch.float32)
    model.standardize(given)
    model.eval()
    x, y = (part.to(dtype or torch.float32) if part.is_floating_point() else part for part in (given.x, given.y))
    _, function, _, _ = initialize_model(model, (x, y), initial_params=values)
    return potential_grad(function, {name: value.clone() for name, value in values.items()})


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", [None, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_value_and_gradient_are_pyros(case: str, dtype: torch.dtype | None) -> None:
    model, given = CASES[case]()
    p = pyrodrop.potential(model, given, dtype=dtype, engine="traced")
    assert p.engine == "traced"
    for seed in (5, 6):
        values = p.initial_params(seed)
        assert {value.dtype for value in values.values()} == {dtype or torch.float32}
        gradient, energy = potential_grad(p, values)
        wanted, want = by_pyro(model, given, dtype, values)
        close = {"rtol": 1e-9, "atol": 1e-9} if dtype else {"rtol": 1e-4, "atol": 1e-3}
        torch.testing.assert_close(energy, want, **close)
        scale = max(float(each.abs().max()) for each in wanted.values())
        torch.testing.assert_close(gradient, wanted, rtol=close["rtol"], atol=close["atol"] * scale)


def test_the_density_of_a_weight_with_its_variance_by_hand() -> None:
    """y ~ N(x w, 1/2), w ~ N(0, v), v = exp(u) ~ InverseGamma(2, 1/2): all terms, with the change of variables."""
    torch.manual_seed(3)
    x, y = torch.randn(2, 7, 1, dtype=torch.float64)
    net = nn.Linear(1, 1, bias=False)
    model = models.from_module(
        net, priors.ARD("weight", dist.InverseGamma(2.0, 0.5)), likelihood=likelihoods.Gaussian(2.0)
    )
    p = pyrodrop.potential(model, (x, y), dtype=torch.float64, engine="traced")
    w, u = torch.tensor(0.3, dtype=torch.float64), torch.tensor(-0.4, dtype=torch.float64)
    values = {"weight": w.reshape(1, 1), "weight_prior_variance": u.reshape(1, 1)}

    def by_hand(w: Tensor, u: Tensor) -> Tensor:
        of_y = (y - x * w).square().sum() - 7 / 2 * math.log(2 / (2 * math.pi))
        of_w = w.square() / (2 * u.exp()) + (math.log(2 * math.pi) + u) / 2
        of_v = -(2 * math.log(0.5) - math.lgamma(2.0) - 3 * u - 0.5 / u.exp())
        return of_y + of_w + of_v - u

    gradient, energy = potential_grad(p, values)
    torch.testing.assert_close(energy, by_hand(w, u), rtol=1e-7, atol=0)
    wanted = torch.func.grad(by_hand, (0, 1))(w, u)
    for name, want in zip(("weight", "weight_prior_variance"), wanted, strict=True):
        torch.testing.assert_close(gradient[name].squeeze(), want, rtol=1e-6, atol=0)


@pytest.mark.slow
def test_nuts_on_the_compiled_potential_gives_the_closed_form_posterior() -> None:
    """Linear regression with known noise: w | y is Gaussian."""
    torch.manual_seed(1)
    x, y = torch.randn(20, 2, dtype=torch.float64), torch.randn(20, 1, dtype=torch.float64)
    net = nn.Linear(2, 1, bias=False)
    model = models.from_module(net, priors.Gaussian(0.5), likelihood=likelihoods.Gaussian(1.5))
    p = pyrodrop.potential(model, (x, y), dtype=torch.float64)
    assert p.engine == "compiled"
    covariance = torch.linalg.inv(1.5 * x.T @ x + torch.eye(2) / 0.25)
    mean = (covariance @ (1.5 * x.T @ y)).squeeze()
    torch.manual_seed(2)
    mcmc = MCMC(
        NUTS(potential_fn=p),
        num_samples=800,
        warmup_steps=200,
        initial_params=p.initial_params(0),
        transforms=p.transforms,
        disable_progbar=True,
    )
    mcmc.run()
    draws, effective = mcmc.get_samples()["weight"].squeeze(1), mcmc.diagnostics()["weight"]["n_eff"].squeeze()
    assert bool((effective > 100).all())
    assert bool(((draws.mean(0) - mean).abs() < 4 * (covariance.diagonal() / effective).sqrt()).all())
    assert bool(((draws.var(0) / covariance.diagonal()).log().abs() < 4 * (2 / effective).sqrt()).all())


def test_hmc_samples_are_on_the_supports_and_predict() -> None:
    model, given = CASES["ARD"]()
    p = pyrodrop.potential(model, given, dtype=torch.float64, engine="traced")
    mcmc = MCMC(
        HMC(potential_fn=p, step_size=0.01, num_steps=3, adapt_step_size=False),
        num_samples=6,
        warmup_steps=2,
        initial_params=p.initial_params(0),
        transforms=p.transforms,
        disable_progbar=True,
    )
    mcmc.run()
    samples = mcmc.get_samples()
    assert {name: value.shape[1:] for name, value in samples.items()} == p.sites
    assert all(bool((samples[name] > 0).all()) for name in samples if name.endswith("_prior_variance"))
    weights = {name: samples[name] for name in p.model.weight_sites()}
    outputs = p.model.outputs(weights, X)
    for draw in range(6):
        first, first_bias, last, last_bias = (
            weights[f"layers.{i}.{n}"][draw] for i in (0, 1) for n in ("weight", "bias")
        )
        torch.testing.assert_close(outputs[draw], torch.tanh(X.double() @ first.T + first_bias) @ last.T + last_bias)


def test_a_network_runs_in_evaluation_mode_and_the_users_model_does_not_change() -> None:
    net = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
    net[1].running_mean.fill_(0.3)  # type: ignore[union-attr, operator]
    model = models.from_module(net, priors.Gaussian(), likelihood=likelihoods.Gaussian(2.0))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    given = data.Dataset(3 + X, Y).standardized()
    p = pyrodrop.potential(model, given, dtype=torch.float64, engine="traced")
    values = p.initial_params(0)
    weights = {name: value.requires_grad_(False) for name, value in values.items()}
    free = {name: value.double() for name, value in net.state_dict().items() if name not in weights}
    x = given.inputs(given.x).double()  # type: ignore[misc]
    f = functional_call(copy.deepcopy(net).double().eval(), {**free, **weights}, x)
    of_y = dist.Normal(given.targets.inverse(f), 0.5**0.5).log_prob(Y).sum()  # type: ignore[union-attr]
    of_w = sum(dist.Normal(0.0, 1.0).log_prob(weight).sum() for weight in weights.values())
    torch.testing.assert_close(p(values), -(of_y + of_w), rtol=1e-6, atol=0)
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert [module.training for module in model.modules()] == modes


def test_it_can_be_a_term_of_another_function() -> None:
    p = pyrodrop.potential(mlp(), (X, Y), engine="traced")
    values = p.initial_params(0)
    alone, energy = potential_grad(p, values)
    scaled, total = potential_grad(lambda given: 0.5 * p(given) + given["layers.0.bias"].sum(), values)
    torch.testing.assert_close(total, 0.5 * energy + values["layers.0.bias"].sum())
    wanted = {name: 0.5 * value + (name == "layers.0.bias") for name, value in alone.items()}
    torch.testing.assert_close(scaled, wanted)


def test_initial_values_depend_on_the_seed_alone() -> None:
    model, given = CASES["heavy tails"]()
    p = pyrodrop.potential(model, given, engine="traced")
    state = torch.get_rng_state()
    one, again, other = p.initial_params(1), p.initial_params(1), p.initial_params(2)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(one[name], again[name]) for name in p.sites)
    assert not any(torch.equal(one[name], other[name]) for name in p.sites)
    assert {name: value.shape for name, value in one.items()} == p.sites
    assert max(float(value.abs().max()) for name, value in one.items() if name not in model.weight_sites()) <= 2
    assert bool(p(one).isfinite())


class _Branches(nn.Module):
    """Its forward depends on the values of x."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        f: Tensor = self.layer(x)
        return f if bool((f > -1e9).all()) else -f


def test_a_network_that_cannot_be_traced_is_refused() -> None:
    model = models.from_module(_Branches(), priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))
    with pytest.raises(ValueError, match="can be recorded, .*NUTS calls a model as it is.* cannot be traced"):
        pyrodrop.potential(model, (X, Y))


class _Unbounded(likelihoods.HeteroscedasticGaussian):
    """y ~ N(f, exp(-r)), also where float32 does not have the variance: torch refuses a scale of 0."""

    def forward(self, output: Tensor, targets: Any) -> TorchDistribution:
        f, r = output.chunk(2, -1)
        return dist.Normal(f, (-r / 2).exp()).to_event(1)


def deep() -> models.MLP:
    """Under N(0, 1) most draws have rows whose variance is 0 or infinite."""
    torch.manual_seed(0)
    gaussian = priors.Gaussian(1.0)
    return models.MLP([2, 16, 16, 16, 16, 2], prior=gaussian, bias_prior=gaussian, likelihood=_Unbounded())


@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_an_energy_that_overflows_is_infinite_and_no_error() -> None:
    """Samplers reject such a point; elsewhere the energy is that of the density by hand."""
    with torch.autograd.detect_anomaly():
        p = pyrodrop.potential(deep(), (20 * X, Y), engine="traced")
        values = p.initial_params(0)
        near, far = ({name: factor * value for name, value in values.items()} for factor in (0.5, 4.0))
        assert not bool(p(far).isfinite())
        energy = p(near)
    h = 20 * X
    for layer in range(5):
        h = h @ near[f"layers.{layer}.weight"].T + near[f"layers.{layer}.bias"]
        h = h.relu() if layer < 4 else h
    terms = [dist.Normal(h[:, :1], (-h[:, 1:] / 2).exp()).log_prob(Y)]
    terms += [dist.Normal(0.0, 1.0).log_prob(value) for value in near.values()]
    torch.testing.assert_close(energy, -torch.stack([term.sum() for term in terms]).sum())


class _Noisy(likelihoods.Gaussian):
    """A likelihood that draws random numbers."""

    def forward(self, output: Tensor, targets: Any) -> TorchDistribution:
        return super().forward(output + torch.randn_like(output), targets)


class _Counts(priors.Gaussian):
    def expand(self, *shape: int, like: Tensor | None = None) -> TorchDistribution:
        return dist.Poisson(torch.ones(shape)).to_event(len(shape))


class _WithinScale(priors.ARD):
    """w ~ U(-lambda, lambda)."""

    def for_site(self, name: str, like: Tensor, units: Any = None) -> TorchDistribution:
        scale = super().for_site(name, like, units).base_dist.scale
        return dist.Uniform(-scale, scale).to_event(like.dim())


class _Improper(priors.Gaussian):
    def expand(self, *shape: int, like: Tensor | None = None) -> TorchDistribution:
        return dist.ImproperUniform(constraints.real, torch.Size(shape), torch.Size()).to_event(len(shape))


@pytest.mark.filterwarnings("ignore::pyrodrop.priors.ImproperPrior")
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: mlp(priors.LogUniform()), "'layers.0.weight' is log-uniform, which is improper"),
        (lambda: mlp(bias_prior=_Improper()), "'layers.0.bias' is improper"),
        (lambda: mlp(priors.ARD()), "ARD without a hyperprior cannot be sampled"),
        (lambda: mlp(_Counts()), "'layers.0.weight' has a Poisson distribution, which is discrete"),
        (
            lambda: mlp(_WithinScale("weight", dist.HalfCauchy(0.3))),
            "the support of 'layers.0.weight' depends on other latent sites",
        ),
        (lambda: mlp(likelihood=_Noisy()), "recorded, and .* it draws random numbers"),
        (lambda: mlp(outputs=2), "y has 1 columns"),
    ],
)
def test_a_model_without_a_density_is_refused(model: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pyrodrop.potential(model(), (X, Y), engine="traced")


def test_a_network_that_was_read_needs_masks_that_weights_carry() -> None:
    first = [nn.Linear(2, 5), nn.Tanh(), nn.Dropout(0.2)]
    settings: dict[str, Any] = {"likelihood": likelihoods.Gaussian(2.0), "prior": priors.Gaussian(), "num_data": 12}
    carried = pyrodrop.read(nn.Sequential(*first, nn.Linear(5, 1)), X, **settings)
    p = pyrodrop.potential(carried.model, (X, Y), engine="traced")
    assert set(p.sites) == {"0.weight", "3.weight"}
    noisy = pyrodrop.read(nn.Sequential(*first, nn.Softmax(-1), nn.Linear(5, 1)), X, **settings)
    with pytest.raises(ValueError, match="dropout that no weight carries"):
        pyrodrop.potential(noisy.model, (X, Y))
