"""Models and guides in Pyro's own inference: jitted ELBOs, optimisers by name, saved optimiser states, jitted NUTS."""

from __future__ import annotations

import copy
import gc
from pathlib import Path
from typing import Any

import pyro
import pyro.optim
import pytest
import torch
from pyro.infer import (
    MCMC,
    NUTS,
    SVI,
    JitTrace_ELBO,
    JitTraceGraph_ELBO,
    JitTraceMeanField_ELBO,
    Trace_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
)
from pyro.infer.autoguide import AutoNormal
from pyro.infer.mcmc.util import initialize_model
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors

pytestmark = pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.*deprecated")
X = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)
GUIDES: dict[str, Any] = {
    "point": guides.Point,
    "bernoulli": lambda m: guides.BernoulliDropout(m, 0.3, mask_input=False),
    "mean field": guides.MeanField,
    "type A": lambda m: guides.GaussianDropout(m, alpha=0.2),
    "low rank": lambda m: guides.LowRank(m, 2),
    "autonormal": AutoNormal,
}


def model_of(seed: int = 0, **settings: Any) -> models.NetworkModel:
    torch.manual_seed(seed)
    return models.MLP([3, 4, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(10.0), **settings)


PLAIN: dict[Any, Any] = {
    JitTrace_ELBO: Trace_ELBO,
    JitTraceMeanField_ELBO: TraceMeanField_ELBO,
    JitTraceGraph_ELBO: TraceGraph_ELBO,
}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "jitted"),
    [
        *(("point", jitted) for jitted in PLAIN),
        ("mean field", JitTraceMeanField_ELBO),
        ("low rank", JitTrace_ELBO),
        ("autonormal", JitTraceGraph_ELBO),
    ],
)
def test_a_jitted_elbo_has_the_gradient_of_the_plain_one(name: str, jitted: Any) -> None:
    """In mean, for guide and model; torch.jit draws the same noise in another order."""
    model = model_of()
    guide = GUIDES[name](model)
    own, plain = jitted(ignore_jit_warnings=True), PLAIN[jitted]()
    own.loss_and_grads(model, guide, X, Y)
    parameters = [*model.parameters(), *guide.parameters()]

    def gradients(elbo: Any, count: int) -> Tensor:
        found = []
        for _ in range(count):
            for parameter in parameters:
                parameter.grad = None
            elbo.loss_and_grads(model, guide, X, Y)
            found.append(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]))
        return torch.stack(found).double()

    count = 3 if name == "point" else 80
    ours, theirs = gradients(own, count), gradients(plain, count)
    error = ((ours.var(0) + theirs.var(0)) / count).sqrt()
    assert bool(((ours.mean(0) - theirs.mean(0)).abs() < 4.5 * error + 1e-4 * theirs.abs().mean(0) + 1e-5).all())
    assert float(ours.abs().max()) > 0


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["bernoulli", "type A", "mean field"])
def test_noise_is_fresh_in_every_jitted_step(name: str) -> None:
    """Mean and spread of the loss at fixed parameters are those of the plain ELBO."""
    model = model_of()
    guide = GUIDES[name](model)
    jitted, plain = JitTrace_ELBO(ignore_jit_warnings=True), Trace_ELBO()
    count = 200
    ours = torch.tensor([float(jitted.loss_and_grads(model, guide, X, Y)) for _ in range(count)])
    theirs = torch.tensor([plain.loss(model, guide, X, Y) for _ in range(count)])
    error = ((ours.var() + theirs.var()) / count).sqrt()
    assert float(ours.std()) > 0
    assert abs(float(ours.mean() - theirs.mean())) < 4 * float(error)
    torch.testing.assert_close(ours.std(), theirs.std(), rtol=4 / count**0.5, atol=0)  # 4 s.e.


@pytest.mark.more
def test_batches_of_another_size_are_no_silent_error_of_a_jitted_elbo() -> None:
    model = model_of()
    guide = guides.MeanField(model)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), JitTrace_ELBO(ignore_jit_warnings=True))
    svi.step(X, Y, num_data=100)
    with pytest.raises(RuntimeError, match="shape"):
        svi.step(X[:5], Y[:5], num_data=100)


def test_a_jitted_elbo_never_trains_another_modules_parameters() -> None:
    """It finds parameters by name: the second module of the same names is refused until the store is cleared."""
    elbos = [JitTrace_ELBO(ignore_jit_warnings=True) for _ in range(2)]
    first, second = model_of(1), model_of(2)
    one, two = guides.MeanField(first), guides.MeanField(second)
    svi = SVI(first, one, pyro.optim.Adam({"lr": 0.01}), elbos[0])
    svi.step(X, Y)
    other = SVI(second, two, pyro.optim.Adam({"lr": 0.01}), elbos[1])
    with pytest.raises(ValueError, match="finds parameters by their names.*belongs to another module"):
        other.step(X, Y)
    before = [p.detach().clone() for p in one.parameters()]
    SVI(second, two, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO()).step(X, Y)
    assert all(torch.equal(a, b) for a, b in zip(before, one.parameters(), strict=True)), (
        "plain SVI moves its own alone"
    )
    svi.step(X, Y)
    assert not any(torch.equal(a, b) for a, b in zip(before, one.parameters(), strict=True))
    pyro.clear_param_store()
    before = [p.detach().clone() for p in two.parameters()]
    other.step(X, Y)
    assert not any(torch.equal(a, b) for a, b in zip(before, two.parameters(), strict=True))


@pytest.mark.parametrize("name", ["bernoulli", "mean field", "autonormal"])
def test_rates_by_name(name: str) -> None:
    """A parameter of rate 0 stays, all others move; names are those of the parameters."""
    model = model_of()
    guide = GUIDES[name](model)
    seen: list[str] = []

    def rate(parameter: str) -> dict[str, float]:
        seen.append(parameter)
        return {"lr": 0.0 if parameter == "free.layers.0.bias" else 0.01}

    svi = SVI(model, guide, pyro.optim.Adam(rate), Trace_ELBO())
    bias = model.free["layers.0.bias"].detach().clone()
    last = model.free["layers.1.bias"].detach().clone()
    svi.step(X, Y)
    svi.step(X, Y)
    assert torch.equal(model.free["layers.0.bias"], bias)
    assert not torch.equal(model.free["layers.1.bias"], last)
    assert len(seen) == len(set(seen))
    assert {"free.layers.0.bias", "free.layers.1.bias"} < set(seen)


@pytest.mark.parametrize("name", ["mean field", "autonormal"])
def test_a_saved_optimiser_goes_on_where_it_was(name: str, tmp_path: Path) -> None:
    model = model_of()
    guide = GUIDES[name](model)
    first: Any = pyro.optim.Adam({"lr": 0.01})
    svi = SVI(model, guide, first, Trace_ELBO())
    for _ in range(5):
        svi.step(X, Y)
    first.save(str(tmp_path / "optimiser"))
    assert None not in first.get_state()
    kept = copy.deepcopy([p.detach() for p in (*guide.parameters(), *model.parameters())])

    def go_on(optimiser: Any) -> list[Tensor]:
        with torch.no_grad():
            for parameter, value in zip((*guide.parameters(), *model.parameters()), kept, strict=True):
                parameter.copy_(value)
        torch.manual_seed(7)
        again = SVI(model, guide, optimiser, Trace_ELBO())
        for _ in range(3):
            again.step(X, Y)
        return [p.detach().clone() for p in (*guide.parameters(), *model.parameters())]

    loaded: Any = pyro.optim.Adam({"lr": 0.01})
    loaded.load(str(tmp_path / "optimiser"))
    resumed = go_on(loaded)
    for one, two in zip(resumed, go_on(first), strict=True):
        assert torch.equal(one, two)


def test_names_keep_no_parameter_alive() -> None:
    model = model_of()
    guide = guides.MeanField(model)
    SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO()).step(X, Y)
    names: Any = pyro.get_param_store()._param_to_name
    assert len(names) == len([*guide.parameters(), *model.parameters()])
    del model, guide
    gc.collect()
    assert not names
    assert len(pyro.get_param_store()) == 0


@pytest.mark.parametrize("bias_prior", [None, priors.Gaussian()])
def test_jitted_nuts_has_the_potential_of_the_plain_one(bias_prior: Any) -> None:
    """Energy and gradient at random points, and a short chain."""
    model = model_of(bias_prior=bias_prior)
    (_, plain, _, _), (_, jitted, _, _) = (initialize_model(model, (X, Y), jit_compile=jit) for jit in (False, True))
    for _ in range(3):
        z = {name: torch.randn(value.shape) for name, value in model.weight_sites().items()}
        torch.testing.assert_close(jitted(z), plain(z), rtol=1e-4, atol=1e-3)
    kernel = NUTS(model, jit_compile=True, ignore_jit_warnings=True)
    chain = MCMC(kernel, num_samples=2, warmup_steps=2, disable_progbar=True)
    chain.run(X, Y)
    assert set(chain.get_samples()) == set(model.weight_sites())


def test_a_jitted_network_with_recurrent_layers_has_its_weights_back() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.last = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.rnn(x)[0][:, -1])

    model = models.from_module(Recurrent(), prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))
    guide = guides.Point(model)
    x, y = torch.randn(6, 5, 3), torch.randn(6, 1)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), JitTrace_ELBO(ignore_jit_warnings=True))
    svi.step(x, y)
    got = svi.evaluate_loss(x, y)
    assert got == pytest.approx(Trace_ELBO().loss(model, guide, x, y), rel=1e-5)


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
@pytest.mark.parametrize(
    ("prior", "make"),
    [(priors.LogUniform, lambda m: guides.GaussianDropout(m, kind="A", alpha=0.2)), (priors.ARD, guides.ARDDropout)],
)
@pytest.mark.filterwarnings("ignore:.*improper")
def test_what_has_no_density_is_trained_by_fit_as_the_error_says(prior: Any, make: Any, elbo: Any) -> None:
    model = models.MLP([3, 5, 1], prior=prior(), likelihood=likelihoods.Gaussian(4.0))
    svi = SVI(model, make(model), pyro.optim.Adam({"lr": 1e-3}), elbo())
    with pytest.raises(
        NotImplementedError, match=r"train with\s+pyrodrop\.fit, which needs no density as Pyro's ELBOs do"
    ):
        svi.step(X, Y)
    assert pyrodrop.fit(model, make(model), (X, Y), steps=3, engine="pyro", progress=False).history.isfinite().all()
