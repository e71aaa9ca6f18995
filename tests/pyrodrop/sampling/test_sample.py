"""Draws of the exact posterior, against posteriors in closed form or by quadrature."""

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from arviz_stats.base import array_stats
from torch import Tensor, nn
from torch.func import functional_call

import pyrodrop
from pyrodrop import guides, likelihoods, priors
from pyrodrop.analysis.arviz.sampled_draws import thinned
from pyrodrop.models import NetworkModel
from pyrodrop.sampling.hmc import HMC
from pyrodrop.sampling.mixing import Diagnostics, diagnose

_G = torch.Generator().manual_seed(0)
X = torch.randn(12, 2, dtype=torch.float64, generator=_G)
Y = X @ torch.tensor([[1.0], [-0.5]], dtype=torch.float64) + 0.3 * torch.randn(12, 1, dtype=torch.float64, generator=_G)


def linear(bias: bool = True, precision: float = 4.0) -> NetworkModel:
    return pyrodrop.models.from_module(
        nn.Linear(2, 1, bias=bias).double(),
        prior=priors.Gaussian(0.7),
        bias_prior=priors.Gaussian(1.5) if bias else None,
        likelihood=likelihoods.Gaussian(precision),
    )


def run(model: NetworkModel, data: Any = (X, Y), **options: Any) -> pyrodrop.Sampled:
    settings = {"chains": 16, "draws": 150, "tune": 200, "engine": "traced", "max_steps": 16, "progress": False}
    return pyrodrop.sample(model, data, **(settings | options))


@pytest.fixture(scope="module")
def sampled() -> pyrodrop.Sampled:
    return run(linear())


def standard_errors(values: Tensor, want: float) -> float:
    """How many standard errors the mean of ``[chains, draws]`` is from a number."""
    own = values.double().numpy()
    return abs(own.mean() - want) / (own.std() / math.sqrt(array_stats.ess(own, method="mean")))


def exact(power: float = 1.0, x: Tensor = X) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the weights and the bias, in closed form."""
    design = torch.cat([x, torch.ones(12, 1, dtype=torch.float64)], 1)
    prior = torch.diag(torch.tensor([0.7, 0.7, 1.5], dtype=torch.float64) ** -2)
    covariance = torch.linalg.inv(prior + power * 4.0 * design.T @ design)
    return covariance @ (power * 4.0 * design.T @ Y)[:, 0], covariance


@pytest.mark.few(1)
@pytest.mark.parametrize("power", [1.0, 0.25])
def test_a_conjugate_posterior(power: float, sampled: pyrodrop.Sampled) -> None:
    found = sampled if power == 1 else run(linear(precision=4 * power))
    check_moments(found, *exact(power))
    assert array_stats.ess(found.samples["weight"][:, :, 0, 0].numpy()) > 500  # so that the errors above are small
    assert found.settings["dtype"] == "float64"


@pytest.mark.more
def test_weights_that_are_strongly_correlated() -> None:
    """Two inputs that are nearly the same, so that only the sum of their weights is known."""
    x = X @ torch.tensor([[1.0, 1.0], [0.0, 0.1]], dtype=torch.float64)
    mean, covariance = exact(4.0, x)
    assert covariance[0, 1] / (covariance[0, 0] * covariance[1, 1]).sqrt() < -0.97
    found = run(linear(precision=16.0), (x, Y), tune=250, max_steps=64)
    check_moments(found, mean, covariance)
    assert array_stats.ess(found.samples["weight"][:, :, 0, 0].numpy()) > 500


@pytest.mark.more
def test_a_conjugate_posterior_by_few_chains() -> None:
    check_moments(run(linear(), chains=4, draws=225, max_steps=8), *exact())
    with pytest.raises(ValueError, match="chains is the number of chains .* at least 4; got 3"):
        run(linear(), chains=3)


def check_moments(found: pyrodrop.Sampled, mean: Tensor, covariance: Tensor) -> None:
    """Means and second moments of all weights are these, within 4 standard errors."""
    w = torch.cat([found.samples["weight"][:, :, 0], found.samples["bias"]], 2)
    for i in range(3):
        assert standard_errors(w[..., i], float(mean[i])) < 4
        for j in range(3):
            product = (w[..., i] - mean[i]) * (w[..., j] - mean[j])
            assert standard_errors(product, float(covariance[i, j])) < 4


@pytest.mark.slow
def test_a_posterior_with_a_hyperprior() -> None:
    """w ~ N(0, v), v ~ InverseGamma(3, 2): E[w], E[w^2] and E[ln v] by quadrature over w and ln v."""
    x, y = torch.tensor([[1.0], [1.0]], dtype=torch.float64), torch.tensor([[1.2], [0.4]], dtype=torch.float64)
    model = pyrodrop.models.from_module(
        nn.Linear(1, 1, bias=False).double(),
        prior=priors.ARD("layer", dist.InverseGamma(3.0, 2.0)),
        likelihood=likelihoods.Gaussian(2.0),
        bias_prior=None,
    )
    found = run(model, (x, y), draws=300, tune=300)
    w, log_v = np.meshgrid(np.linspace(-5, 5, 2001), np.linspace(-6, 6, 2001), indexing="ij")
    v = np.exp(log_v)
    log_p = -((1.2 - w) ** 2) - (0.4 - w) ** 2 - w**2 / (2 * v) - 0.5 * log_v - 3 * log_v - 2 / v
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    (site,) = (name for name in found.samples if name != "weight")
    own = found.samples["weight"][:, :, 0, 0]
    scale = found.samples[site].reshape(own.shape).log()
    assert standard_errors(own, float((p * w).sum())) < 4
    assert standard_errors(own**2, float((p * w**2).sum())) < 4
    assert standard_errors(scale, float((p * log_v).sum())) < 4


@pytest.mark.more
def test_a_classifier() -> None:
    """The logistic regression of one weight, by quadrature."""
    x = torch.tensor([[0.5], [1.0], [-1.5], [2.0]], dtype=torch.float64)
    y = torch.tensor([1, 1, 0, 0])
    model = pyrodrop.models.from_module(
        nn.Sequential(nn.Linear(1, 1, bias=False), Doubled()).double(),
        prior=priors.Gaussian(2.0),
        bias_prior=None,
        likelihood=likelihoods.Categorical(),
    )
    found = run(model, (x, y))
    w = np.linspace(-15, 15, 20001)
    logits = w[:, None] * x.numpy()[:, 0]
    log_p = -np.log1p(np.exp(-np.where(y.numpy() == 1, logits, -logits))).sum(1) - w**2 / 8
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    own = found.samples["0.weight"][:, :, 0, 0]
    assert standard_errors(own, float((p * w).sum())) < 4
    assert standard_errors(own**2, float((p * w**2).sum())) < 4


class Doubled(nn.Module):
    """One logit as those of two classes."""

    def forward(self, logit: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(logit), logit], 1)


def network(widths: int = 6) -> NetworkModel:
    return pyrodrop.models.MLP(
        [1, widths, 1], prior=priors.Gaussian(), bias_prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(20.0)
    )


@pytest.mark.slow
def test_f_agrees_with_pyros_nuts() -> None:
    from pyro.infer import MCMC, NUTS

    x = torch.linspace(-1, 1, 25, dtype=torch.float64)[:, None]
    data, model = (x, torch.sin(3 * x)), network()
    found = pyrodrop.sample(model, data, dtype=torch.float64, chains=32, draws=200, tune=400)
    assert found.diagnostics().r_hat_f < 1.05
    p = pyrodrop.potential(model, data, dtype=torch.float64)
    functions = []
    for seed in range(2):
        torch.manual_seed(seed)
        mcmc = MCMC(
            NUTS(potential_fn=p), 800, 400, initial_params=p.initial_params(seed), transforms=p.transforms,
            disable_progbar=True,
        )  # fmt: skip
        mcmc.run()
        functions.append(p.model.outputs(mcmc.get_samples(), x[::4])[..., 0])
    theirs = torch.stack(functions).numpy()
    ours = found.predict(x[::4], 6400).f.reshape(32, 200, -1).numpy()
    for i in range(theirs.shape[-1]):
        for power in (1, 2):
            one, other = ours[..., i] ** power, theirs[..., i] ** power
            error = math.hypot(*(v.std() / math.sqrt(array_stats.ess(v, method="mean")) for v in (one, other)))
            assert abs(one.mean() - other.mean()) < 4 * error


@pytest.mark.more
def test_the_same_seed_gives_the_same_draws_and_leaves_the_callers_random_state() -> None:
    model = linear()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, two, other = (run(model, draws=5, tune=100, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    for name, values in one.samples.items():
        assert torch.equal(values, two.samples[name])
        assert not torch.equal(values, other.samples[name])


@pytest.mark.few(1)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_callers_gradient_mode_does_not_matter(mode: Any) -> None:
    model, settings = linear(), {"chains": 4, "draws": 4, "tune": 100, "max_steps": 4}
    want = run(model, **settings).samples
    with mode():
        found = run(model, (X.clone(), Y.clone()), **settings)
        energy = pyrodrop.potential(model, (X.clone(), Y.clone()), engine="traced")
    assert all(torch.equal(values, want[name]) for name, values in found.samples.items())
    assert torch.isfinite(energy(energy.initial_params()))


def test_the_model_does_not_change() -> None:
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.linspace(50, 60, 25)[:, None]
    run(model, (x, x), chains=4, draws=4, tune=100, max_steps=4)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_predictions_are_those_of_the_draws(sampled: pyrodrop.Sampled) -> None:
    """Against a call of the network for each draw."""
    net, x = nn.Linear(2, 1).double(), torch.randn(4, 2, dtype=torch.float64)
    draws = [(c, d) for c in range(16) for d in range(150)]
    every = [functional_call(net, {n: v[c, d] for n, v in sampled.samples.items()}, (x,)) for c, d in draws]
    torch.testing.assert_close(sampled.predict(x, 2400).f, torch.stack(every))
    torch.testing.assert_close(sampled.predict(x, 1200).f, torch.stack(every[::2]))
    torch.testing.assert_close(sampled.predict(x, 4800).f[::2], torch.stack(every))


@pytest.mark.more
def test_predictions_are_in_the_units_of_the_data() -> None:
    x = torch.linspace(1000, 1100, 20, dtype=torch.float64)[:, None]
    y = 5e4 + 300 * (x - 1050) + torch.randn(20, 1, generator=torch.Generator().manual_seed(0))
    data = pyrodrop.data.Dataset(x, y, inputs=_scale(x), targets=_scale(y))
    model = pyrodrop.models.from_module(
        nn.Linear(1, 1).double(),
        prior=priors.Gaussian(),
        bias_prior=priors.Gaussian(),
        likelihood=likelihoods.Gaussian(1 / 400.0**2),
    )
    found = run(model, data)
    prediction = found.predict(x, 2400)
    assert float((prediction.mean - y).abs().max()) < 600
    f, one = prediction.f.reshape(16, 150, 20), torch.distributions.Normal
    want = one(f, 400.0).log_prob(y[:, 0])
    torch.testing.assert_close(found.log_likelihood(), want, rtol=1e-6, atol=1e-6)


def _scale(values: Tensor) -> Any:
    from pyrodrop.scaling import Standardize

    return Standardize(values.mean(0), values.std(0))


def test_the_statistics_are_those_of_the_draws(sampled: pyrodrop.Sampled) -> None:
    """lp is the log joint density of every draw, by the formula."""
    w, b = sampled.samples["weight"][:, :, 0], sampled.samples["bias"]
    f = w @ X.T + b
    normal = torch.distributions.Normal
    want = (
        normal(f, 0.5).log_prob(Y[:, 0]).sum(2) + normal(0, 0.7).log_prob(w).sum(2) + normal(0, 1.5).log_prob(b).sum(2)
    )
    torch.testing.assert_close(sampled.stats["lp"], want)
    assert (sampled.stats["energy"] > -sampled.stats["lp"]).all()  # H = U + a positive kinetic energy
    assert ((sampled.stats["acceptance_rate"] >= 0) & (sampled.stats["acceptance_rate"] <= 1)).all()
    assert sampled.stats["n_steps"].min() >= 1
    assert sampled.stats["n_steps"].max() <= 16


def test_divergences_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bound of 1/2 nat on the error of the energy, a trajectory diverges where its acceptance is below exp(-1/2)."""
    monkeypatch.setattr("pyrodrop.sampling.hmc.DIVERGENT", 0.5)
    found = run(linear(), draws=20, tune=100)
    low = found.stats["acceptance_rate"] < math.exp(-0.5)
    assert torch.equal(found.stats["diverging"], low)
    assert 0 < int(low.sum()) < low.numel()
    assert found.diagnostics().diverging == int(low.sum())


def test_diagnostics_are_arvizs(sampled: pyrodrop.Sampled) -> None:
    found = sampled.diagnostics()
    f = (sampled.samples["weight"][:, :, 0] @ X.T + sampled.samples["bias"]).numpy()
    assert found.r_hat_f == pytest.approx(max(array_stats.rhat(f[..., i]) for i in range(12)))
    tails = [array_stats.ess(f[..., i], method="tail", prob=(0.05, 0.95)) for i in range(12)]
    bulk = [array_stats.ess(f[..., i]) for i in range(12)]
    assert found.ess_f == pytest.approx(min(*tails, *bulk))
    own = sampled.log_likelihood().sum(2).numpy()
    assert found.r_hat_log_likelihood == pytest.approx(array_stats.rhat(own))
    assert found.mixed
    assert "The chains have mixed" in str(found)
    assert sampled.settings["diagnostics"] == found.to_dict()


def test_chains_that_have_not_mixed_say_so(caplog: pytest.LogCaptureFixture) -> None:
    """tanh(10 w) near 1 or -1: chains with w > 0 and w < 0 do not meet."""
    x = torch.tensor([[1.0], [-1.0]])
    model = pyrodrop.models.from_module(
        nn.Sequential(nn.Linear(1, 1, bias=False), Bistable()),
        prior=priors.Gaussian(1.0),
        bias_prior=None,
        likelihood=likelihoods.Gaussian(400.0),
    )
    with caplog.at_level(logging.WARNING, "pyrodrop"):
        found = run(model, (x, torch.ones(2, 1)), chains=8, draws=50)
    assert "the chains have not mixed" in caplog.text
    assert not found.diagnostics().mixed


class Bistable(nn.Module):
    """|f| is what is observed at 1 and -1, and the sign of f is free."""

    def forward(self, f: Tensor) -> Tensor:
        return torch.where(f.abs() < 0.7, f, f**2)


def test_diagnostics_count_divergences_and_rounding() -> None:
    f, own = torch.randn(8, 100, 3), torch.randn(8, 100)
    assert diagnose(f, own, 0, 0.0).mixed
    assert "2 trajectories diverged" in str(diagnose(f, own, 2, 0.0))
    assert "use float64" in str(diagnose(f, own, 0, 0.2))
    with pytest.raises(ValueError, match="the same in all draws"):
        diagnose(torch.zeros(8, 100, 3), own, 0, 0.0)
    found = diagnose(f, own, 0, math.nan)
    assert str(Diagnostics.of_dict(found.to_dict() | {"of another version": 1.0})) == str(found)


def test_the_rounding_of_energies_in_float32_is_reported() -> None:
    x = torch.linspace(-1, 1, 400)[:, None]
    y = 1000 * torch.sign(torch.sin(40 * x))  # far from what the network can be, so that energies are large
    model = pyrodrop.models.from_module(
        nn.Linear(1, 1), prior=priors.Gaussian(), bias_prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(10.0)
    )
    large, small = (run(model, (x, each), chains=4, draws=4, tune=100) for each in (y, torch.sin(x)))
    assert large.diagnostics().energy_rounding > 0.05
    assert "use float64" in str(large.diagnostics())
    assert 0 < small.settings["energy_rounding"] < 0.05
    assert run(model, (x, y), chains=4, draws=4, tune=100, dtype=torch.float64).settings["energy_rounding"] < 1e-5


def test_saved_draws_are_read_back(sampled: pyrodrop.Sampled, tmp_path: Path) -> None:
    x = torch.randn(4, 2, dtype=torch.float64)
    path = sampled.save(tmp_path / "draws.safetensors")
    found = pyrodrop.Sampled.load(path, linear())
    assert torch.equal(found.predict(x, 100).f, sampled.predict(x, 100).f)
    assert found.fingerprint == sampled.fingerprint
    assert all(torch.equal(found.stats[name], values) for name, values in sampled.stats.items())
    assert found.diagnostics() == sampled.diagnostics()
    few = pyrodrop.Sampled.load(thinned(sampled, 3).save(tmp_path / "few.safetensors"), linear())
    assert few.draws == 3
    for name, values in sampled.samples.items():
        assert torch.equal(few.samples[name], values[:, [49, 99, 149]])
    with pytest.raises(ValueError, match=r"network.bias is unexpected"):
        pyrodrop.Sampled.load(path, linear(bias=False))
    other = pyrodrop.models.from_module(
        nn.Linear(3, 1), prior=priors.Gaussian(), bias_prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0)
    )
    with pytest.raises(ValueError, match=r"network.weight has shape"):
        pyrodrop.Sampled.load(path, other)
    fit = pyrodrop.fit(linear(), pyrodrop.guides.MeanField(linear()), (X, Y), steps=2)
    with pytest.raises(ValueError, match="no file of Sampled.save"):
        pyrodrop.Sampled.load(fit.save(tmp_path / "fit.safetensors"), linear())


def test_draws_that_do_not_fit_in_memory_are_refused() -> None:
    with pytest.raises(ValueError, match="GiB, more than half of what is free: keep fewer"):
        pyrodrop.sample(linear(), (X, Y), chains=10**6, draws=10**6)


def test_chains_begin_at_the_weights_of_runs_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """At those of replicates, and at the last draws of chains; hyperparameters are drawn."""
    model, seen = network(), []
    data = (torch.linspace(-1, 1, 9)[:, None], torch.zeros(9, 1))
    settings: dict[str, Any] = {"engine": "traced", "progress": False, "seed": 0}
    fits = pyrodrop.fit_replicates(model, guides.MeanField(model), data, count=2, steps=5, starts="new", **settings)
    before, begun = torch.get_rng_state(), HMC.__init__

    def noted(self: HMC, density: Any, q: Tensor, *args: Any, **kwargs: Any) -> None:
        seen.append(q)
        begun(self, density, q, *args, **kwargs)

    monkeypatch.setattr(HMC, "__init__", noted)
    first, second = (run(model, data, start=fits, chains=4, draws=4, tune=100) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0][0], seen[0][2])  # of one run, with draws of their own
    means = [torch.cat([fit.guide.draw(200)[n].mean(0).flatten() for n in first.samples]) for fit in fits]
    for chain in range(4):
        assert float((seen[0][chain] - means[chain % 2]).norm()) < float((seen[0][chain] - means[1 - chain % 2]).norm())
    run(model, data, start=second, chains=4, draws=4, tune=100)
    last = torch.cat([second.samples[name][:, -1].flatten(1) for name in second.samples], 1)
    assert torch.equal(seen[2], last)


def test_several_layers_from_trained_starts_are_sampled_by_microcanonical_chains() -> None:
    """One from every run, unless energy_variance is 0, for several layers and a start; chains go on as they were."""
    data = (torch.linspace(-1, 1, 9)[:, None], torch.zeros(9, 1))
    options: dict[str, Any] = {"draws": 4, "tune": 100, "engine": "traced", "max_steps": 2, "progress": False}
    made = []
    for widths in ([1, 2, 2, 1], [1, 2, 1]):
        prior = priors.Gaussian()
        model = pyrodrop.models.MLP(widths, prior=prior, bias_prior=prior, likelihood=likelihoods.Gaussian(1.0))
        starts = pyrodrop.fit_replicates(
            model, guides.Point(model), data, count=5, steps=2, starts="new", progress=False, engine="traced"
        )
        ways: list[dict[str, Any]] = [{"start": starts}, {"start": starts, "energy_variance": 0}, {}]
        runs = [pyrodrop.sample(model, data, **options, **how) for how in (ways[:1] if len(widths) == 3 else ways)]
        runs += [pyrodrop.sample(model, data, **options, start=run) for run in runs[:2] if len(widths) == 4]
        made += [tuple(run.settings[name] for name in ("kernel", "energy_variance", "chains")) for run in runs]
    hmc = ("hmc", 0, 64)
    assert made == [("mclmc", 0.1, 5), hmc, hmc, ("mclmc", 0.1, 4), hmc, hmc]


@pytest.mark.more
def test_starts_that_do_not_fit_are_refused() -> None:
    model = linear()
    other = pyrodrop.fit(network(), guides.Point(network()), (X[:, :1].float(), Y.float()), steps=1, progress=False)
    with pytest.raises(ValueError, match=r"start must have the latent sites .*; got run 0"):
        run(model, start=other)
    for wrong in (3, [], "fit", [model]):
        with pytest.raises(TypeError, match="start must be"):
            run(model, start=wrong)
