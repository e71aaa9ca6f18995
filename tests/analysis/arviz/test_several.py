"""One tree of several fits: every model has the variables of its tree, the data are there once, and nothing is filled in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import arviz_plots
import arviz_stats
import numpy as np
import pytest
import xarray as xr

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.gp import GaussianProcess


def test_every_model_has_its_own_variables(small: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train, test = small.waves(), small.waves(9, seed=1)
    fits = {"a/b": small.fitted(guides.MeanField), "rates": small.fitted(guides.ConcreteDropout, steps=5)}
    tree = pyrodrop.to_arviz(fits, train, test, num_samples=30)
    assert len(caplog.messages) == 1
    assert all(f"{name}: " in caplog.messages[0] for name in fits)
    for name, fit in fits.items():
        alone, one = pyrodrop.to_arviz(fit, train, test, num_samples=30), tree.sel(model=name, drop=True)
        for group, variables in {
            "posterior": ("f", "noise_sd"), "posterior_predictive": ("y",), "predictions": ("f", "y"),
            "observed_data": ("y",), "constant_data": ("x",), "predictions_constant_data": ("x", "y_observed"),
        }.items():  # fmt: skip
            assert set(one[group].data_vars) == set(variables), group
            for variable in variables:
                xr.testing.assert_equal(one[group][variable], alone[group][variable])
        assert tree.attrs[f"elbo ({name})"] == alone.attrs["elbo"]
        assert alone.attrs["log_likelihood_missing"] in tree.attrs["log_likelihood_missing"]
    assert "model" not in tree["observed_data"].dims
    assert (tree.attrs["seed"], tree.attrs["prior"]) == (0, "Gaussian(scale=1)")
    assert "posterior of rates: drop_rate" in tree.attrs["left_out"]
    assert "sample_stats of a/b: lp, log_q" in tree.attrs["left_out"]
    tree.to_netcdf(tmp_path / "fits.nc", engine="h5netcdf")
    with xr.open_datatree(tmp_path / "fits.nc", engine="h5netcdf") as back:
        xr.testing.assert_equal(tree, back.load())
        assert set(back.attrs) == set(tree.attrs)
    assert len(arviz_stats.summary(tree, var_names=["noise_sd"], kind="stats")) == 2
    arviz_plots.plot_forest(tree, var_names=["noise_sd"], backend="matplotlib")
    arviz_plots.plot_ppc_dist(tree.sel(model="rates", drop=True), backend="matplotlib", num_samples=20)


def test_chains_and_draws_of_other_numbers_are_thinned(small: Any) -> None:
    """Four chains of 12 draws beside 20 draws of a process: draws 2, 4, 7, ... 48 of the chains one after the other."""
    train = small.waves()
    model = models.MLP([1, 2, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))
    sampled = pyrodrop.sample(model, train, chains=4, draws=12, tune=100, max_steps=8, engine="traced", progress=False)
    tree = pyrodrop.to_arviz({"process": GaussianProcess(train, "matern-5/2"), "exact": sampled}, num_samples=20)
    assert tree["posterior"]["f"].sizes == {"model": 2, "chain": 1, "draw": 20, "obs_id": 40}
    all_draws = pyrodrop.to_arviz(sampled)["posterior"]["f"].values.reshape(48, 40)
    chosen = [int(np.floor(k * 48 / 20)) - 1 for k in range(1, 21)]
    np.testing.assert_array_equal(tree["posterior"]["f"].sel(model="exact")[0], all_draws[chosen])
    assert "log_likelihood" in tree.children  # both draw from exact posteriors


def test_networks_of_other_widths_share_no_weights(small: Any) -> None:
    wide = models.MLP([1, 4, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0, learned=True))
    fits = {"16": small.fitted(guides.MeanField, steps=2), "4": small.fitted(guides.MeanField, wide, steps=2)}
    tree = pyrodrop.to_arviz(fits, small.waves(), num_samples=5, weights=True)
    assert set(tree["posterior"].data_vars) == {"f", "noise_sd"}
    assert "posterior of 16, 4: layers.0.weight" in tree.attrs["left_out"]


def test_other_data_are_refused(small: Any) -> None:
    fits = {
        "a": small.fitted(guides.MeanField, steps=2),
        "b": small.fitted(guides.MeanField, data=small.waves(seed=3), steps=2),
    }
    with pytest.raises(ValueError, match="fits of one tree must have the same data; got different y of a, b"):
        pyrodrop.to_arviz(fits, num_samples=5)
    with pytest.raises(ValueError, match="train"):
        pyrodrop.to_arviz(fits, small.waves(), num_samples=5)
    with pytest.raises(ValueError, match="at least one fit"):
        pyrodrop.to_arviz({})
