"""Data trees of Pyro programs."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO, config_enumerate
from pyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal
from torch import Tensor

import pyrodrop
from pyrodrop.analysis import to_arviz

G = torch.Generator().manual_seed(0)
X = torch.randn(12, 2, generator=G)
Y = X.sum(1) + 0.3 * torch.randn(12, generator=G)
DATA = {"x": X, "y": Y}


@pytest.fixture(autouse=True)
def _empty_store() -> None:
    gc.collect()
    pyro.clear_param_store()


def regression(x: Tensor, y: Tensor, mask: Any = True) -> None:
    with pyro.plate("columns", 2):
        weights = pyro.sample("weights", dist.Normal(0.0, 1.0))
    pyro.deterministic("total", weights.sum())
    with pyro.plate("y", len(x)), poutine.mask(mask=mask):
        pyro.sample("y_seen", dist.Normal(x @ weights, 0.5), obs=y)


def fitted(auto: Any = AutoNormal, around: Any = lambda program: program) -> pyrodrop.Fit:
    return pyrodrop.fit(around(regression), around(auto(regression)), DATA, steps=300, lr=0.03)


def test_sites_have_plates_as_dimensions() -> None:
    fit = fitted()
    tree = to_arviz(fit, num_samples=200)
    assert tree["posterior"]["weights"].dims == ("chain", "draw", "columns")
    assert tree["posterior"]["total"].shape == (1, 200)
    assert tree["posterior_predictive"]["y_seen"].dims == ("chain", "draw", "y")
    drawn = fit.predict(num_samples=200)
    np.testing.assert_allclose(tree["posterior"]["weights"].values[0], drawn["weights"].numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(tree["observed_data"]["y_seen"].values, Y.numpy())


@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_densities_are_those_of_the_draws(scale: float) -> None:
    """Also where model and guide are scaled, as to divide the loss by the number of rows."""
    tree = to_arviz(fitted(around=partial(poutine.scale, scale=scale)), DATA, num_samples=200, log_likelihood=True)
    weights = torch.as_tensor(tree["posterior"]["weights"].values[0])
    of_y = torch.distributions.Normal(weights @ X.T, 0.5).log_prob(Y)
    np.testing.assert_allclose(tree["log_likelihood"]["y_seen"].values[0], of_y.numpy(), rtol=1e-4, atol=1e-4)
    lp = of_y.sum(1) + torch.distributions.Normal(0.0, 1.0).log_prob(weights).sum(1)
    np.testing.assert_allclose(tree["sample_stats"]["lp"].values[0], lp.numpy(), rtol=1e-4)
    assert tree.attrs["khat"] < 1.5


def test_masked_observations_have_no_log_likelihood() -> None:
    """ArviZ's loo takes a number for each observation, and raises an error for 0 in all draws."""
    mask = torch.arange(12) % 4 > 0
    fit = pyrodrop.fit(regression, AutoNormal(regression), DATA | {"mask": mask}, steps=3)
    tree = to_arviz(fit, num_samples=5, log_likelihood=True)
    weights = torch.as_tensor(tree["posterior"]["weights"].values[0])
    want = torch.distributions.Normal(weights @ X[mask].T, 0.5).log_prob(Y[mask])
    np.testing.assert_allclose(tree["log_likelihood"]["y_seen"].values[0], want.numpy(), rtol=1e-4)
    assert tree["log_likelihood"]["y_seen"].dims == ("chain", "draw", "y_seen_counted")
    assert tree["observed_data"]["y_seen"].shape == (12,)


def test_what_a_program_is_conditioned_on_is_no_observation() -> None:
    def program(x: Tensor, y: Tensor) -> None:
        pyro.sample("noise", dist.HalfNormal(1.0))
        regression(x, y)

    model = poutine.condition(program, data={"noise": torch.tensor(0.5)})
    tree = to_arviz(pyrodrop.fit(model, AutoNormal(model), DATA, steps=3), num_samples=5, log_likelihood=True)
    for group in ("observed_data", "posterior_predictive", "log_likelihood"):
        assert list(tree[group].data_vars) == ["y_seen"]


def test_observations_that_cannot_be_drawn_have_no_predictive() -> None:
    def chain(y: Tensor) -> None:
        loc = pyro.sample("loc", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
        pyro.sample("y", dist.DiscreteHMM(torch.zeros(2), torch.eye(2), dist.Normal(loc, 1.0)), obs=y)

    tree = to_arviz(pyrodrop.fit(chain, AutoNormal(chain), {"y": Y}, steps=5), num_samples=4, log_likelihood=True)
    assert "posterior_predictive" not in tree.children
    assert "'y' cannot be drawn from its DiscreteHMM" in tree.attrs["posterior_predictive_missing"]
    np.testing.assert_array_equal(tree["observed_data"]["y"].values, Y.numpy())
    loc = torch.as_tensor(tree["posterior"]["loc"].values[0])
    want = [dist.DiscreteHMM(torch.zeros(2), torch.eye(2), dist.Normal(own, 1.0)).log_prob(Y) for own in loc]
    np.testing.assert_allclose(tree["log_likelihood"]["y"].values[0], torch.stack(want).numpy(), rtol=1e-4)


def test_points_and_sums_have_no_densities() -> None:
    tree = to_arviz(fitted(AutoDelta), num_samples=50)
    assert "points, which have no density: weights" in tree.attrs["log_likelihood_missing"]
    assert "log_likelihood" not in tree.children

    @config_enumerate
    def mixture(y: Tensor) -> None:
        means = pyro.sample("means", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
        with pyro.plate("rows", len(y)):
            kind = pyro.sample("kind", dist.Categorical(torch.ones(2)))
            pyro.sample("y", dist.Normal(means[kind], 1.0), obs=y)

    guide = AutoNormal(poutine.block(mixture, hide=["kind"]))
    fit = pyrodrop.fit(mixture, guide, {"y": Y}, steps=2, objective=TraceEnum_ELBO(max_plate_nesting=1))
    tree = to_arviz(fit, num_samples=5)
    assert tree["posterior"]["means"].dims == ("chain", "draw", "means_dim_0")
    with pytest.raises(ValueError, match="summed out in training: kind"):
        to_arviz(fit, num_samples=5, log_likelihood=True)


def test_replicates_are_chains() -> None:
    many = pyrodrop.Replicates([fitted(), fitted()])
    assert to_arviz(many, num_samples=4)["posterior"].sizes["chain"] == 2
    other = pyrodrop.Replicates(
        [fitted(), pyrodrop.fit(regression, AutoNormal(regression), {"x": X, "y": -Y}, steps=5)]
    )
    with pytest.raises(ValueError, match="different data"):
        to_arviz(other, num_samples=4)


def test_several_programs_are_one_tree() -> None:
    fits = {"independent": fitted(), "joint": fitted(AutoMultivariateNormal)}
    tree = to_arviz(fits, DATA, num_samples=30, log_likelihood=True)
    assert tree["log_likelihood"]["y_seen"].dims == ("model", "chain", "draw", "y")
    for name, fit in fits.items():
        alone = to_arviz(fit, DATA, num_samples=30)["posterior"]["weights"]
        np.testing.assert_array_equal(tree["posterior"]["weights"].sel(model=name), alone)
