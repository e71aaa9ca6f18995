"""Draws of the sites of Pyro programs, compared with those of `pyro.infer.Predictive`."""

from __future__ import annotations

import gc
import re
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive, TraceEnum_ELBO, config_enumerate
from pyro.infer.autoguide import AutoDelta, AutoLowRankMultivariateNormal, AutoMultivariateNormal, AutoNormal
from torch import Tensor

import pyrodrop
from pyrodrop.training import program_draws

G = torch.Generator().manual_seed(0)
X = torch.randn(12, generator=G)
Y = 2 * X + 0.3 * torch.randn(12, generator=G)


@pytest.fixture(autouse=True)
def _empty_store() -> None:
    gc.collect()
    pyro.clear_param_store()


def line(x: Tensor, y: Tensor | None = None, size: int | None = None) -> Any:
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    noise = pyro.sample("noise", dist.LogNormal(0.0, 1.0))
    with pyro.plate("rows", len(x), subsample_size=size) as rows:
        return pyro.sample("y", dist.Normal(slope * x[rows], noise), obs=None if y is None else y[rows])


def logistic(x: Tensor, y: Tensor | None = None) -> Any:
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(x)):
        return pyro.sample("y", dist.Bernoulli(logits=slope * x), obs=y)


def fitted(model: Any, guide: Any, y: Tensor = Y, **more: Any) -> pyrodrop.Fit:
    return pyrodrop.fit(model, guide, {"x": X, "y": y, **more}, steps=100, lr=0.05)


@pytest.mark.few(1)
@pytest.mark.parametrize("auto", [AutoNormal, AutoMultivariateNormal, AutoLowRankMultivariateNormal, AutoDelta])
def test_mapped_draws_are_those_of_single_calls(auto: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fit = fitted(line, auto(line))
    with monkeypatch.context() as patch:
        patch.setattr(program_draws, "_BYTES", 2000)  # some draws at a time
        mapped = fit.predict(num_samples=40, seed=3)
    with monkeypatch.context() as patch:
        patch.setattr(program_draws, "_mapped", lambda *_: None)
        single = fit.predict(num_samples=40, seed=3)
    assert {name: value.shape for name, value in mapped.items()} == {"slope": (40,), "noise": (40,), "y": (40, 12)}
    for name, value in single.items():
        torch.testing.assert_close(mapped[name], value, rtol=1e-5, atol=1e-5)
    assert len(mapped["y"].unique()) == 480


@pytest.mark.few(1)
@pytest.mark.parametrize("model", [line, logistic])
def test_draws_are_those_of_predictive(model: Any) -> None:
    guide = AutoNormal(model)
    fit = fitted(model, guide, Y if model is line else (Y > 0).float())
    ours = fit.predict({"x": X + 1, "y": None}, 400)
    torch.manual_seed(0)
    theirs = Predictive(model, guide=guide, num_samples=400)(x=X + 1)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        want = theirs[name].reshape(value.shape)
        se = ((value.var(0) + want.var(0)) / 400).sqrt()
        assert ((value.mean(0) - want.mean(0)).abs() < 4.5 * se + 1e-6).all()
        assert (value.std(0) < 1.3 * want.std(0) + 0.05).all()
        assert (want.std(0) < 1.3 * value.std(0) + 0.05).all()


def test_observations_are_drawn_anew() -> None:
    fit = fitted(line, AutoNormal(line))
    drawn = fit.predict(num_samples=40)["y"]
    assert not (drawn == Y).any()
    assert torch.equal(drawn, fit.predict({"x": X, "y": None}, 40)["y"])


def test_subsamples_are_refused() -> None:
    fit = fitted(line, AutoNormal(line), size=5)
    with pytest.raises(ValueError, match=r"'y' is in the plate 'rows' with 5 of 12 rows"):
        fit.predict()
    assert fit.predict(num_samples=3, sites=["slope"])["slope"].shape == (3,)
    assert fit.predict({"x": X, "y": Y, "size": None}, 3)["y"].shape == (3, 12)


def test_sites_that_were_summed_out_are_drawn_by_the_model() -> None:
    @config_enumerate
    def mixture(y: Tensor) -> None:
        means = pyro.sample("means", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
        with pyro.plate("rows", len(y)):
            kind = pyro.sample("kind", dist.Categorical(torch.tensor([0.2, 0.8])))
            pyro.sample("y", dist.Normal(means[kind], 1.0), obs=y)

    guide = AutoNormal(poutine.block(mixture, hide=["kind"]))
    fit = pyrodrop.fit(mixture, guide, {"y": Y}, steps=2, objective=TraceEnum_ELBO(max_plate_nesting=1))
    drawn = fit.predict(num_samples=100)
    assert drawn["kind"].shape == drawn["y"].shape == (100, 12)
    assert abs(float(drawn["kind"].double().mean()) - 0.8) < 0.06


def test_programs_of_x_and_y() -> None:
    def model(x: Tensor, y: Tensor | None = None) -> Any:
        return logistic(x[:, 0], y)

    fit = pyrodrop.fit(model, AutoNormal(model), (X[:, None], (Y > 0).float()), steps=5)
    assert fit.predict(X[:3, None], 4)["y"].shape == (4, 3)
    assert fit.predict(num_samples=4)["y"].shape == (4, 12)


def test_what_a_program_does_not_have() -> None:
    fit = fitted(line, AutoNormal(line))
    with pytest.raises(TypeError, match="keep is for networks"):
        fit.predict(keep="moments")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="slope, noise, y; got 'weight'"):
        fit.predict(sites=["weight"])
    with pytest.raises(TypeError, match="sequence of names"):
        fit.predict(sites="slope")
    with pytest.raises(ValueError, match="names of the arguments"):
        fit.predict({"x": X}, sites=["y"])


COUNTS: dict[str, Any] = {
    "gamma-Poisson": lambda slope, x: dist.GammaPoisson(2.0, (-slope * x).exp()),
    "Poisson": lambda slope, x: dist.Poisson((slope * x).exp()),
    "categorical": lambda slope, x: dist.Categorical(logits=torch.stack([slope * x, -slope * x], -1)),
    "stable": lambda slope, x: dist.Stable(1.5, 0.0, 1.0, slope * x),  # has an operation that vmap has not
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", COUNTS)
def test_what_cannot_be_mapped_is_said_in_words_of_this_package(name: str, caplog: pytest.LogCaptureFixture) -> None:
    def counts(x: Tensor, y: Tensor | None = None) -> Any:
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            return pyro.sample("y", COUNTS[name](slope, x), obs=y)

    y = torch.arange(12) % 2
    fit = pyrodrop.fit(counts, AutoNormal(counts), {"x": X, "y": y if name == "categorical" else y.float()}, steps=2)
    with caplog.at_level("INFO", "pyrodrop"):
        assert fit.predict(num_samples=40)["y"].shape == (40, 12)
    assert "the program is called for every draw: " in caplog.text
    assert not re.search("vmap|aten|randomness", caplog.text)
