"""Microcanonical Langevin Monte Carlo against posteriors in closed form, and its tuning against laws that are known."""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, priors
from pyrodrop.models import NetworkModel
from pyrodrop.sampling import chains
from pyrodrop.sampling.density import CompiledDensity, density_of
from pyrodrop.sampling.mclmc import MCLMC, STEPS
from pyrodrop.sampling.sample import drawing_of, from_runs
from pyrodrop.sampling.tuning import EnergyStepSize, VarianceWithinChains, transitions_per_draw
from tests.pyrodrop.sampling.test_sample import X, Y, exact, linear, standard_errors

V = 5e-4


def run(model: NetworkModel, data: Any = (X, Y), **options: Any) -> pyrodrop.Sampled:
    settings = {"chains": 64, "draws": 40, "tune": 100, "engine": "traced", "kernel": "mclmc", "progress": False}
    return pyrodrop.sample(model, data, **(settings | options))


@pytest.fixture(scope="module")
def sampled() -> pyrodrop.Sampled:
    return run(linear())


def test_a_conjugate_posterior(sampled: pyrodrop.Sampled) -> None:
    """Means without bias; variances within the bias of the step size, 2 %, and 4 standard errors."""
    mean, covariance = exact()
    w = torch.cat([sampled.samples["weight"][:, :, 0], sampled.samples["bias"]], 2)
    for i in range(3):
        assert standard_errors(w[..., i], float(mean[i])) < 4
        square = (w[..., i] - mean[i]) ** 2 / covariance[i, i]
        error = abs(float(square.mean()) - 1) / max(1e-9, standard_errors(square, 1.0))
        assert abs(float(square.mean()) - 1) < 0.02 + 4 * error
    assert sampled.diagnostics().mixed
    assert 0.3 < sampled.settings["energy_variance_reached"] / V < 3


@pytest.mark.more
def test_scales_of_four_orders_of_magnitude() -> None:
    torch.manual_seed(3)
    x = torch.randn(40, 6, dtype=torch.float64) * torch.logspace(-2, 2, 6, dtype=torch.float64)
    y = torch.randn(40, 1, dtype=torch.float64)
    net = nn.Linear(6, 1, bias=False).double()
    model = pyrodrop.models.from_module(net, prior=priors.Gaussian(1.0), likelihood=likelihoods.Gaussian(4.0))
    found = run(model, (x, y), draws=60)
    covariance = torch.linalg.inv(4.0 * x.T @ x + torch.eye(6, dtype=torch.float64))
    ratio = found.samples["weight"][:, :, 0].flatten(0, 1).var(0) / covariance.diag()
    assert ((ratio - 1).abs() < 0.15).all()


def test_the_step_size_gives_the_energy_that_is_asked_for() -> None:
    """Changes with the mean square 3 eps^6, from a start that is 50 times too small."""
    wanted = (0.02 / 3) ** (1 / 6)
    step = EnergyStepSize(wanted / 50, 0.02)
    for _ in range(40):
        step.learn(torch.tensor([1.0, -1.0]) * math.sqrt(3 * step.now**6))
    assert step.now == pytest.approx(wanted, rel=0.02)


def test_scales_are_standard_deviations_within_chains() -> None:
    torch.manual_seed(4)
    track = (
        torch.randn(3, 2000, 2, dtype=torch.float64) * torch.tensor([1.0, 5.0]) + 100 * torch.arange(3.0)[:, None, None]
    )
    within = VarianceWithinChains(track[:, 0])
    for now in range(2000):
        within.learn(track[:, now])
    np.testing.assert_allclose(within.scale(), np.sqrt(track.var(1).mean(0)), rtol=2e-3)


def test_transitions_for_a_draw_are_those_of_an_autoregressive_process() -> None:
    """AR(1) with coefficient a has (1 + a) / (1 - a) transitions to a draw."""
    torch.manual_seed(5)
    values = [torch.randn(4, 2, dtype=torch.float64)]
    for _ in range(5000):
        values.append(0.8 * values[-1] + 0.6 * torch.randn(4, 2, dtype=torch.float64))
    assert transitions_per_draw(torch.stack(values, 1)) == pytest.approx(9.0, rel=0.25)  # n / ess of 5,000 transitions


class Walled(MCLMC):
    """Moves by 1, and loses the energy of the second of three chains."""

    def follow(self, state: Any, noise: Tensor) -> Any:
        changes = torch.zeros(3, STEPS, dtype=torch.float64)
        changes[1, 3] = 5000.0
        return state._replace(q=state.q + 1), changes


def test_a_chain_that_loses_energy_stays_and_is_counted() -> None:
    compiled = CompiledDensity(density_of(linear(), (X, Y)), 3, "pyro", MCLMC.step)
    begin = torch.zeros(3, 3, dtype=torch.float64)
    kernel = Walled(compiled, begin, torch.Generator().manual_seed(0), 0, energy_variance=V)
    q, stats, _ = chains.run(kernel, 4)
    assert stats["diverging"].tolist() == [[False] * 4, [True] * 4, [False] * 4]
    assert (q[1] == 0).all()
    assert q[0, :, 0].tolist() == [1, 2, 3, 4]
    before, kernel.tune = kernel.tuned.step_size, 100
    kernel.adapt(1)
    assert kernel.tuned.step_size == before / 2


def network() -> NetworkModel:
    torch.manual_seed(0)
    gaussian = priors.Gaussian(1.0)
    return pyrodrop.models.MLP(
        [2, 6, 2], prior=gaussian, bias_prior=gaussian, likelihood=likelihoods.HeteroscedasticGaussian()
    )


@pytest.mark.more
def test_chains_begin_at_the_weights_of_runs_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = network(), []
    fits = pyrodrop.fit_replicates(
        model,
        guides.Point(model),
        (X.float(), Y.float()),
        count=2,
        steps=50,
        starts="new",
        engine="traced",
        progress=False,
    )

    def starting(kernel: MCLMC, *args: Any) -> Any:
        seen.append(kernel.state.q.clone())
        kernel.tune = 0
        return chains.run(kernel, *args)

    monkeypatch.setattr(sys.modules["pyrodrop.sampling.sample"], "run", starting)
    sampled = run(model, (X.float(), Y.float()), start=fits, chains=4, draws=4)
    for chain in range(4):
        weights = fits[chain % 2].guide.draw(1)
        assert torch.equal(seen[0][chain], torch.cat([weights[name].flatten() for name in sampled.samples]))
    again = run(model, (X.float(), Y.float()), start=sampled, chains=4, draws=4)
    last = torch.cat([sampled.samples[name][:, -1].flatten(1) for name in again.samples], 1)
    assert torch.equal(seen[1], last)


def test_starts_from_a_guide_with_spread_leave_the_callers_random_numbers_alone() -> None:
    model = network()
    fit = pyrodrop.fit(
        model, guides.MeanField(model), (X.float(), Y.float()), steps=5, engine="traced", device="cpu", progress=False
    )
    density = density_of(model, (X.float(), Y.float()))
    compiled, before = CompiledDensity(density, 3, "traced"), torch.random.get_rng_state()
    first, second = (from_runs(compiled, drawing_of(fit), torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(first, second)
    assert not torch.equal(first[0], first[1])  # each chain has a draw of its own


@pytest.mark.more
def test_starts_that_do_not_fit_are_refused() -> None:
    model, one = network(), priors.Gaussian(1.0)
    other = pyrodrop.models.MLP([2, 3, 2], prior=one, bias_prior=one, likelihood=likelihoods.HeteroscedasticGaussian())
    fit = pyrodrop.fit(other, guides.Point(other), (X.float(), Y.float()), steps=1, progress=False)
    with pytest.raises(
        ValueError, match=r"start must have the latent sites .* 'layers\.0\.weight' has shape .*; got run 0"
    ):
        run(model, (X.float(), Y.float()), start=fit)
    for wrong in (3, [], "fit", [model]):
        with pytest.raises(TypeError, match="start must be"):
            run(model, (X.float(), Y.float()), start=wrong)


def test_a_single_number_is_refused() -> None:
    one = pyrodrop.models.from_module(
        nn.Linear(1, 1, bias=False), prior=priors.Gaussian(1.0), likelihood=likelihoods.Gaussian(1.0)
    )
    with pytest.raises(ValueError, match="at least 2 latent numbers"):
        run(one, (X[:, :1].float(), Y.float()))


def test_draws_are_kept_thinned_and_described(sampled: pyrodrop.Sampled, tmp_path: Path) -> None:
    again = pyrodrop.Sampled.load(sampled.thinned(64).save(tmp_path / "draws.safetensors"), linear())
    assert again.kernel == "mclmc"
    assert set(again.stats) == {"lp", "energy_error", "diverging", "n_steps"}
    assert torch.equal(again.samples["weight"], sampled.thinned(64).samples["weight"])
    assert "energy changes by" in repr(sampled)
    assert (sampled.stats["n_steps"] == 40).all()
