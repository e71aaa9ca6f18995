"""Pyro programs that are trained on keyword arguments: estimates, files, checkpoints, replicates."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import RenyiELBO, Trace_ELBO, TraceEnum_ELBO, config_enumerate
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

import pyrodrop
from pyrodrop.training.result import Fit
from tests.small import line

G = torch.Generator().manual_seed(0)
X = torch.randn(30, generator=G)
Y = 2 * X + 0.3 * torch.randn(30, generator=G)
DATA = {"x": X, "y": Y}


@config_enumerate
def mixture(y: Tensor) -> None:
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(2)))
    means = pyro.sample("means", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    with pyro.plate("rows", len(y)):
        kind = pyro.sample("kind", dist.Categorical(weights))
        pyro.sample("y", dist.Normal(means[kind], 1.0), obs=y)


def trained(steps: int = 20, **options: Any) -> Fit:
    return pyrodrop.fit(line, AutoNormal(line), DATA, steps=steps, lr=0.05, **options)


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [None, 10])
def test_the_elbo_is_that_of_pyro(size: int | None) -> None:
    guide = AutoNormal(line)
    fit = pyrodrop.fit(line, guide, DATA | {"size": size}, steps=50, lr=0.05)
    ours = fit.elbo(100)
    with torch.no_grad():
        theirs = torch.tensor([-Trace_ELBO().loss(line, guide, X, Y, size=size) for _ in range(100)])
    se = (ours.se**2 + float(theirs.var()) / 100) ** 0.5
    assert abs(ours.value - float(theirs.mean())) < 5 * se
    assert str(ours.convention) == "exact"


@pytest.mark.more
def test_a_guide_that_draws_in_another_order_has_the_elbo_of_its_draws() -> None:
    """KL(q(b) || p(b | a)) at an a that was drawn given b has another mean than log q - log p."""

    def model(y: Tensor) -> None:
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(pyro.sample("b", dist.Normal(a, 0.5)), 1.0), obs=y)

    def guide(y: Tensor) -> None:
        b = pyro.sample("b", dist.Normal(pyro.param("loc", torch.tensor(0.5)), 0.5))
        pyro.sample("a", dist.Normal(0.9 * b, 0.3))

    fit = pyrodrop.fit(model, guide, {"y": torch.tensor(1.0)}, steps=1, lr=1e-6)
    ours = fit.elbo(500)
    with torch.no_grad():
        theirs = torch.tensor([-Trace_ELBO().loss(model, guide, y=torch.tensor(1.0)) for _ in range(500)])
    assert abs(ours.value - float(theirs.mean())) < 5 * (ours.se**2 + float(theirs.var()) / 500) ** 0.5


def gaussian_chain(scale: Tensor) -> Any:
    eye = torch.eye(1)
    noise = dist.Normal(torch.zeros(1), 1.0).to_event(1)
    return dist.GaussianHMM(noise, 0.5 * eye, noise, eye, dist.Normal(torch.zeros(1), scale.expand(1)).to_event(1))


CHAINS: dict[str, Any] = {
    "discrete": lambda scale: dist.DiscreteHMM(
        torch.zeros(2), torch.eye(2), dist.Normal(torch.tensor([-1.0, 1.0]), scale)
    ),
    "masked": lambda scale: gaussian_chain(scale).expand([4]).mask(torch.tensor([True, True, False, True])).to_event(1),
}
OBSERVED = {"discrete": [9], "masked": [4, 9, 1]}


@pytest.mark.parametrize("name", CHAINS)
def test_hidden_markov_models_take_their_length_from_the_observations(name: str) -> None:
    def model(y: Tensor) -> None:
        scale = pyro.sample("scale", dist.LogNormal(0.0, 0.3))
        pyro.sample("y", CHAINS[name](scale), obs=y)

    guide, y = AutoNormal(model), torch.randn(OBSERVED[name], generator=torch.Generator().manual_seed(1))
    fit = pyrodrop.fit(model, guide, {"y": y}, steps=5, lr=0.05)
    elbo = fit.elbo(50)
    with torch.no_grad():
        theirs = torch.tensor([-Trace_ELBO().loss(model, guide, y=y) for _ in range(50)])
    assert abs(elbo.value - float(theirs.mean())) < 5 * (elbo.se**2 + float(theirs.var()) / 50) ** 0.5


def test_sites_that_are_summed_out_have_no_elbo() -> None:
    guide = AutoNormal(poutine.block(mixture, hide=["kind"]))
    loss = TraceEnum_ELBO(max_plate_nesting=1)
    fit = pyrodrop.fit(mixture, guide, {"y": Y}, steps=3, lr=0.01, objective=loss, engine="pyro")
    with pytest.raises(ValueError, match="it has no site 'kind'"):
        fit.elbo(2)
    assert "TraceEnum_ELBO" in str(fit)


def test_a_factor_of_model_and_guide_is_none_of_the_elbo() -> None:
    """As the tips in Pyro's documentation divide the loss by the number of rows."""
    guide = AutoNormal(line)
    guide(**DATA)
    plain, scaled = (
        pyrodrop.fit(*around, DATA, steps=1, lr=1e-7, engine="pyro").elbo(5)
        for around in ((line, guide), (poutine.scale(line, scale=0.1), poutine.scale(guide, scale=0.1)))
    )
    assert scaled.value == pytest.approx(plain.value, rel=1e-4)
    assert scaled.se == pytest.approx(plain.se, rel=1e-4)
    assert str(scaled.convention) == "exact (without the factor 0.1 of pyro.poutine.scale around model and guide)"


def test_the_losses_of_an_objective_are_bounds_above_the_elbo() -> None:
    guide = AutoNormal(line, init_scale=0.5)
    fit = pyrodrop.fit(line, guide, DATA, steps=40, lr=1e-6, objective=RenyiELBO(alpha=0.0, num_particles=20))
    elbo = fit.elbo(100)
    assert -float(fit.losses.mean()) - elbo.value > 4 * (float(fit.losses.var()) / 40 + elbo.se**2) ** 0.5
    assert float(fit.history[:, 1].abs().max()) == 0


def test_other_data_must_have_the_names_of_the_arguments() -> None:
    fit = trained(2)
    assert fit.elbo(3, DATA).value == fit.elbo(3).value
    assert fit.elbo(3, {"x": X[:5], "y": Y[:5]}).value != fit.elbo(3).value
    with pytest.raises(ValueError, match=r"names of the arguments in training, x, y, of .*; got x, z"):
        fit.elbo(data={"x": X, "z": Y})
    with pytest.raises(TypeError, match=r"mapping of the keyword arguments x, y.*got a tuple"):
        fit.elbo(data=(X, Y))


def test_a_file_restores_the_guide_of_a_function(tmp_path: Path) -> None:
    fit = trained()
    path, want = fit.save(tmp_path / "fit.safetensors"), fit.elbo(5)
    guide = AutoNormal(line)
    with pytest.raises(ValueError, match="does not belong to this AutoNormal"):
        Fit.load(path, line, guide)
    guide(**DATA)
    loaded = Fit.load(path, line, guide)
    assert loaded.elbo(5, DATA) == want
    assert loaded.fingerprint == fit.fingerprint
    with pytest.raises(TypeError, match="keyword arguments x, y"):
        loaded.elbo(5, (X, Y))


def by_hand(x: Tensor, y: Tensor | None = None, size: int | None = None) -> None:
    positive = dist.constraints.positive
    pyro.sample("slope", dist.Normal(pyro.param("loc", torch.tensor(0.0)), 0.1))
    pyro.sample("noise", dist.LogNormal(0.0, pyro.param("scale", torch.tensor(0.1), constraint=positive)))


def test_parameters_in_the_store_are_not_saved(tmp_path: Path) -> None:
    fit = pyrodrop.fit(line, by_hand, DATA, steps=2)
    with pytest.raises(TypeError, match="loc, scale of this fit are in Pyro's global store"):
        fit.save(tmp_path / "fit.safetensors")


def plates() -> Any:
    """A loss that runs the model once to count its plates, before the first step."""
    return Trace_ELBO(num_particles=2, vectorize_particles=True)


@pytest.mark.few(2)
@pytest.mark.parametrize("objective", [None, plates], ids=["", "plates"])
@pytest.mark.parametrize("hand", [False, True])
def test_a_run_continues_in_a_new_process(tmp_path: Path, hand: bool, objective: Any) -> None:
    def run(steps: int, **more: Any) -> Tensor:
        """As a new process would: an empty store, new objects."""
        gc.collect()
        pyro.clear_param_store()
        settings: dict[str, Any] = {"lr": 0.05, "engine": "traced", "objective": objective and objective(), **more}
        data = DATA if objective else DATA | {"size": 10}
        return pyrodrop.fit(line, by_hand if hand else AutoNormal(line), data, steps=steps, **settings).losses

    path = tmp_path / "state.safetensors"
    want = run(12)
    run(5, checkpoint=path)
    assert torch.equal(run(12, checkpoint=path), want)
    with pytest.raises(ValueError, match="seed is 0 there and 1 here"):
        run(12, checkpoint=path, seed=1)


@pytest.mark.parametrize("engine", ["pyro", "traced"])
def test_a_fit_leaves_no_gradients_behind(engine: Any) -> None:
    """The next step of `SVI` would add to those of parameters that are trained in place."""
    guide = AutoNormal(line)
    pyrodrop.fit(line, guide, DATA, steps=3, engine=engine, objective=Trace_ELBO())
    assert all(parameter.grad is None for parameter in guide.parameters())
