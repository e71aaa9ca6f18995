"""Draws of the sites of Pyro programs, compared with those of `pyro.infer.Predictive`."""

from __future__ import annotations

import functools
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive, Trace_ELBO, TraceEnum_ELBO, config_enumerate
from pyro.infer.autoguide import AutoDelta, AutoLowRankMultivariateNormal, AutoMultivariateNormal, AutoNormal
from pyro.nn import PyroModule
from torch import Tensor

import pyrodrop
from pyrodrop.training import program_draws
from tests.small import line

G = torch.Generator().manual_seed(0)
X = torch.randn(12, generator=G)
Y = 2 * X + 0.3 * torch.randn(12, generator=G)


def logistic(x: Tensor, y: Tensor | None = None) -> Any:
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(x)):
        return pyro.sample("y", dist.Bernoulli(logits=slope * x), obs=y)


def fitted(model: Any, guide: Any, y: Tensor | None = Y, **more: Any) -> pyrodrop.Fit:
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


def test_what_a_program_is_conditioned_on_stays() -> None:
    """As in `Predictive`; with observations that are given in this way alone, there is nothing to draw anew."""
    noise = torch.tensor(0.25)
    fixed = poutine.condition(line, data={"noise": noise})
    fit = fitted(fixed, AutoNormal(fixed))
    for data in (None, {"x": X, "y": None}):
        drawn = fit.predict(data, 400)
        assert (drawn["noise"] == noise).all()
        residuals = drawn["y"] - drawn["slope"][:, None] * X
        assert float(residuals.std()) == pytest.approx(0.25, rel=0.05)  # the median of the prior is 1
    for values in ({"y": Y}, {"y": Y, "noise": noise}):
        of_data = poutine.condition(line, data=values)
        fit = fitted(of_data, AutoNormal(of_data), None)
        with pytest.raises(ValueError, match=f"gives the values of {', '.join(sorted(values))}, which stay"):
            fit.predict(num_samples=5)
        assert fit.predict(num_samples=5, sites=["slope"])["slope"].shape == (5,)


def test_arguments_that_default_to_none_may_be_left_out() -> None:
    """As those of `pyro.infer.Predictive`: y is drawn anew; of a module, as its `forward` says."""

    class Line(PyroModule):
        def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
            return line(x, y)

    for model in (Line(), functools.partial(line, size=None)):
        pyro.clear_param_store()
        fit = fitted(model, AutoNormal(model))
        drawn, want = fit.predict({"x": X[:3]}, 5, seed=1), fit.predict({"x": X[:3], "y": None}, 5, seed=1)
        assert all(torch.equal(value, want[name]) for name, value in drawn.items())


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
    drawn = fit.predict(num_samples=100, sites=["means", "kind", "y"])
    assert drawn["kind"].shape == drawn["y"].shape == (100, 12)
    assert abs(float(drawn["kind"].double().mean()) - 0.8) < 0.06


def hidden_states(y: Tensor) -> None:
    loc = pyro.sample("loc", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    pyro.sample("y", dist.DiscreteHMM(torch.zeros(2), torch.eye(2), dist.Normal(loc, 1.0)), obs=y)


@pytest.mark.parametrize("num_samples", [3, 40])  # by calls, and recorded
def test_what_cannot_be_drawn_is_refused_if_it_is_asked_for(num_samples: int) -> None:
    fit = pyrodrop.fit(hidden_states, AutoNormal(hidden_states), {"y": Y}, steps=5)
    with pytest.raises(ValueError, match=r"'y' cannot be drawn from its DiscreteHMM distribution"):
        fit.predict(num_samples=num_samples)
    assert fit.predict(num_samples=num_samples, sites=["loc"])["loc"].shape == (num_samples, 2)


def test_deterministic_values_in_plates_are_those_of_predictive() -> None:
    """Pyro takes all axes of such a value for event axes, and adds those of the plates to its distribution."""

    def model(x: Tensor, y: Tensor | None = None) -> None:
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            mean = pyro.deterministic("mean", slope * x)
            drawn = pyro.sample("y", dist.Normal(mean, 0.1), obs=y)
            pyro.deterministic("double", 2 * drawn)

    guide = AutoNormal(model)
    fit = fitted(model, guide)
    with torch.no_grad():
        theirs = torch.tensor([-Trace_ELBO().loss(model, guide, X, Y) for _ in range(50)])
    assert abs(fit.elbo(50).value - float(theirs.mean())) < 5 * (fit.elbo(50).se ** 2 + float(theirs.var()) / 50) ** 0.5
    ours = fit.predict(num_samples=40)
    want = Predictive(model, guide=guide, num_samples=40)(x=X)
    assert {name: value.numel() for name, value in ours.items()} == {
        name: value.numel() for name, value in want.items()
    }
    torch.testing.assert_close(ours["mean"], ours["slope"][:, None] * X)
    torch.testing.assert_close(ours["double"], 2 * ours["y"])


def test_what_a_program_does_not_have() -> None:
    fit = fitted(line, AutoNormal(line))
    with pytest.raises(ValueError, match="slope, noise, y; got 'weight'"):
        fit.predict(sites=["weight"])
    with pytest.raises(TypeError, match="sequence of names"):
        fit.predict(sites="slope")
    with pytest.raises(ValueError, match="names of the arguments in training, x, y, of .*; got y"):
        fit.predict({"y": Y}, sites=["y"])
    with pytest.raises(ValueError, match="names of the arguments in training, x, y, of .*; got x"):
        fit.elbo(2, {"x": X})  # the ELBO of what?
