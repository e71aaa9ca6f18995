"""Data trees: what is in them, in which units, that nothing is made up, and that ArviZ's own functions take them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import arviz_plots
import arviz_stats
import numpy as np
import pyro.distributions as dist
import pytest
import torch
import xarray as xr

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.gp import GaussianProcess, GaussianProcessClassifier
from tests.small import Heavy

pytestmark = pytest.mark.filterwarnings("ignore::pyrodrop.priors.ImproperPrior")
GROUPS = {
    "posterior", "posterior_predictive", "log_likelihood", "observed_data", "constant_data", "predictions",
    "predictions_constant_data",
}  # fmt: skip
ATTRS = {
    "library",
    "version",
    "guide",
    "prior",
    "estimator",
    "elbo",
    "elbo_se",
    "elbo_convention",
    "khat",
    "seed",
    "steps",
}


def test_a_regression_tree_is_complete_and_in_the_units_of_the_data(small: Any) -> None:
    train, test = small.waves(), small.waves(25, seed=1)
    fit = small.fitted(guides.MeanField)
    tree = pyrodrop.to_arviz(fit, train, test, num_samples=300, log_likelihood=True)
    assert set(tree.children) == GROUPS | {"sample_stats", "log_prior"}
    assert set(tree.attrs) >= ATTRS
    assert tree.attrs["elbo_convention"] == "exact"
    assert tree.attrs["elbo"] == pytest.approx(fit.elbo(100).value)
    dims = ("chain", "draw", "obs_id")
    for group, name, want, size in (
        ("posterior", "f", dims, (1, 300, 40)),
        ("posterior", "noise_sd", dims[:2], (1, 300)),
        ("posterior_predictive", "y", dims, (1, 300, 40)),
        ("log_likelihood", "y", dims, (1, 300, 40)),
        ("sample_stats", "lp", dims[:2], (1, 300)),
        ("sample_stats", "log_q", dims[:2], (1, 300)),
        ("observed_data", "y", ("obs_id",), (40,)),
        ("constant_data", "x", ("obs_id",), (40,)),
        ("predictions", "f", ("chain", "draw", "pred_id"), (1, 300, 25)),
        ("predictions", "y", ("chain", "draw", "pred_id"), (1, 300, 25)),
        ("predictions_constant_data", "x", ("pred_id",), (25,)),
        ("predictions_constant_data", "y_observed", ("pred_id",), (25,)),
    ):
        variable = tree[group][name]
        assert (variable.dims, variable.shape) == (want, size), (group, name)
        assert all(dim in variable.coords for dim in want)
    np.testing.assert_array_equal(tree["observed_data"]["y"], train.y[:, 0])
    np.testing.assert_array_equal(tree["constant_data"]["x"], train.x[:, 0])
    f, sd = tree["posterior"]["f"], tree["posterior"]["noise_sd"]
    want_ll = -0.5 * ((tree["observed_data"]["y"] - f) / sd) ** 2 - np.log(sd) - 0.5 * math.log(2 * math.pi)
    np.testing.assert_allclose(tree["log_likelihood"]["y"], want_ll.transpose(*dims), rtol=2e-3, atol=2e-3)
    far = fit.predict(test.x, 4000, seed=9)
    se = far.spread[:, 0] / math.sqrt(300)
    assert float((torch.as_tensor(tree["predictions"]["f"].values[0]).mean(0) - far.mean[:, 0]).abs().div(se).max()) < 5


def test_the_two_densities_are_those_of_the_draws(small: Any) -> None:
    """lp and log_q of a mean field, by scipy-like sums over the weights that the tree holds."""
    fit, _ = small.conjugate(0.7)
    tree = pyrodrop.to_arviz(fit, fit.data, num_samples=50, weights=True)
    w = tree["posterior"]["weight"].values[0, :, 0]
    loc, scale = (
        fit.guide.loc["weight"][0].detach().numpy(),
        fit.guide.log_variance["weight"][0].div(2).exp().detach().numpy(),
    )
    log_q = (-0.5 * ((w - loc) / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi)).sum(1)
    x, y = fit.data.x.numpy(), fit.data.y[:, 0].numpy()
    residual = y - w @ x.T
    lp = (-0.5 * w**2 - 0.5 * np.log(2 * np.pi)).sum(1) + (-0.5 * residual**2 - 0.5 * np.log(2 * np.pi)).sum(1)
    np.testing.assert_allclose(tree["sample_stats"]["log_q"][0], log_q, rtol=1e-10)
    np.testing.assert_allclose(tree["sample_stats"]["lp"][0], lp, rtol=1e-10)
    np.testing.assert_allclose(tree["posterior"]["f"][0], w @ x.T, rtol=1e-8, atol=1e-10)


def unit(m: torch.Tensor) -> Any:
    return dist.Normal(0 * m, 1).to_event(m.dim())


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("make", "prior", "said"),
    [
        (lambda m: guides.BernoulliDropout(m, 0.1), priors.Gaussian(), "theta -> 0"),
        (guides.Point, priors.Gaussian(), "theta -> 0"),
        (lambda m: guides.ConcreteDropout(m, mask_input=True), priors.Gaussian(), "relaxation"),
        (lambda m: guides.Ensemble(m, guides.Point, 2), priors.Gaussian(), "theta -> 0"),
        (guides.SparseDropout, "log-uniform", "improper"),
        (lambda m: guides.VariationalDropout(m, "A"), "log-uniform", "improper"),
        (guides.ARDDropout, priors.ARD(), "ARD without a hyperprior has no density"),
        (guides.from_noise(lambda m, e: m + e, unit, regularizer=torch.sum), priors.Gaussian(), "regulariser"),
    ],
    ids=["theta=0", "point", "concrete", "ensemble of points", "improper", "type A", "empirical Bayes", "own regulariser"],
)  # fmt: skip
def test_no_density_is_made_up(small: Any, make: Any, prior: Any, said: str) -> None:
    """No sample_stats, k-hat NaN, and the reason beside it."""
    prior = priors.LogUniform() if prior == "log-uniform" else prior
    model = models.MLP([1, 4, 1], prior=prior, likelihood=likelihoods.Gaussian(1.0))
    tree = pyrodrop.to_arviz(small.fitted(make, model, steps=2), small.waves(), num_samples=10)
    assert "sample_stats" not in tree.children
    assert math.isnan(tree.attrs["khat"])
    assert said in tree.attrs["khat_missing"]
    assert "log_likelihood" not in tree.children
    assert said in tree.attrs["log_likelihood_missing"]
    assert "log_prior" not in tree.children
    assert not [name for group in tree.children.values() for name in group.data_vars if "hat" in str(name)]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("make", "prior"),
    [
        (lambda m: guides.BernoulliDropout(m, 0.1, theta=0.1), priors.Gaussian()),
        (lambda m: guides.LowRank(m, 2), Heavy()),
        (guides.MeanField, priors.ARD("weight", dist.HalfCauchy(1.0))),
        (guides.ARDDropout, priors.ARD("input", dist.InverseGamma(1.0, 0.1))),
        (lambda m: guides.Ensemble(m, guides.MeanField, 3), priors.Gaussian()),
    ],
    ids=["theta>0", "low rank", "heavy tails", "ARD with hyperprior", "ensemble"],
)
def test_both_densities_where_they_exist(small: Any, make: Any, prior: Any) -> None:
    """The ELBO is the mean of lp - log_q, where it is no bound on it (as of an ensemble)."""
    model = models.MLP([1, 4, 1], prior=prior, likelihood=likelihoods.Gaussian(0.1))
    fit = small.fitted(make, model, steps=20)
    tree = pyrodrop.to_arviz(fit, small.waves(), num_samples=3000, weights=True)
    stats = tree["sample_stats"]
    values = (stats["lp"] - stats["log_q"]).values[0]
    elbo = fit.elbo(400)
    se = math.hypot(values.std() / math.sqrt(len(values)), elbo.se)
    if isinstance(fit.guide, guides.Ensemble):
        assert values.mean() > elbo.value - 4 * se
    else:
        assert abs(values.mean() - elbo.value) < 4 * se
    assert set(fit.model.weight_sites()) <= set(tree["posterior"].data_vars)
    assert "khat_missing" not in tree.attrs


def test_an_ensembles_density_is_the_mixtures(small: Any) -> None:
    fit = small.fitted(lambda m: guides.Ensemble(m, guides.MeanField, 3), steps=30)
    tree = pyrodrop.to_arviz(fit, small.waves(), num_samples=6, weights=True)
    densities = []
    for member in fit.guide.members:
        total = torch.zeros(6)
        for site in fit.model.weight_sites():
            loc, scale = member.loc[site], torch.exp(member.log_variance[site] / 2)
            value = torch.as_tensor(tree["posterior"][site].values[0])
            total = total + torch.distributions.Normal(loc, scale).log_prob(value).flatten(1).sum(1)
        densities.append(total)
    want = torch.logsumexp(torch.stack(densities), 0) - math.log(3)
    np.testing.assert_allclose(tree["sample_stats"]["log_q"][0], want.detach(), rtol=1e-4, atol=1e-3)


@pytest.mark.more
def test_restarts_are_chains_and_other_replicates_are_not(small: Any) -> None:
    model = small.regressor()
    many = small.fitted(small.dropout, model, count=3)
    tree = pyrodrop.to_arviz(many, small.waves(), num_samples=100)
    assert tree["posterior"].sizes["chain"] == 3
    noise = tree["posterior"]["noise_sd"].values
    assert len(np.unique(noise[:, 0])) == 3
    np.testing.assert_allclose(
        noise[:, 0], [float(f.model.likelihood.precision.detach()) ** -0.5 for f in many], rtol=1e-6
    )
    assert tree.attrs["elbo"].shape == (3,)
    assert list(tree.attrs["training_seed"]) == [0, 1, 2]
    assert float(tree["constant_data"]["drop_rate"].sel(layer="layers.1.weight")) == pytest.approx(0.1)
    sets = [small.waves(seed=s) for s in range(2)]
    other = pyrodrop.fit_replicates(model, small.dropout(model), sets, count=2, steps=2, progress=False)
    with pytest.raises(ValueError, match="replicate 1 was trained on other data"):
        pyrodrop.to_arviz(other, sets[0], num_samples=10)
    rates = [guides.BernoulliDropout(model, rate) for rate in (0.1, 0.2)]
    mixed = pyrodrop.fit_replicates([model] * 2, rates, small.waves(), count=2, steps=2, progress=False)
    with pytest.raises(ValueError, match="chains must be restarts of one model and guide"):
        pyrodrop.to_arviz(mixed, small.waves(), num_samples=10)


def test_learned_rates_are_in_the_posterior_and_given_ones_are_constants(small: Any) -> None:
    learned = pyrodrop.to_arviz(small.fitted(guides.ConcreteDropout, steps=5), small.waves(), num_samples=10)
    assert learned["posterior"]["drop_rate"].dims == ("chain", "draw", "layer")
    assert "drop_rate" not in learned["constant_data"]
    model = small.regressor(likelihoods.Gaussian(4.0))
    given = pyrodrop.to_arviz(
        small.fitted(lambda m: guides.GaussianDropout(m, alpha=0.3), model, steps=2), small.waves(), num_samples=10
    )
    assert float(given["constant_data"]["noise_sd"]) == 0.5
    np.testing.assert_allclose(given["constant_data"]["alpha"], [0.3, 0.3])
    assert set(given["posterior"].data_vars) == {"f"}
    assert given.attrs["khat_missing"] == "10 draws, fewer than 25"


def test_a_classification_tree(small: Any) -> None:
    train = small.classes()
    fit = small.fitted(guides.MeanField, small.classifier(), train)
    tree = pyrodrop.to_arviz(fit, train, train.x[:5], num_samples=200, log_likelihood=True)
    assert tree["posterior"]["f"].dims == ("chain", "draw", "obs_id", "output")
    assert tree["posterior_predictive"]["y"].dims == ("chain", "draw", "obs_id")
    assert tree["constant_data"]["x"].dims == ("obs_id", "feature")
    assert tree["observed_data"]["y"].dtype.kind == "i"
    assert "y_observed" not in tree["predictions_constant_data"]
    f = torch.as_tensor(tree["posterior"]["f"].values)
    want = f.log_softmax(-1)[0, :, torch.arange(45), train.y]
    np.testing.assert_allclose(tree["log_likelihood"]["y"][0], want, rtol=1e-4, atol=1e-5)
    frequency = (tree["posterior_predictive"]["y"][0] == 1).mean("draw").values
    assert np.abs(frequency - f.softmax(-1)[0, :, :, 1].mean(0).numpy()).max() < 4 * 0.5 / math.sqrt(200)


def test_gaussian_processes_have_trees_too(small: Any) -> None:
    train, test = small.waves(), small.waves(10, seed=1)
    process = GaussianProcess(train, "matern-5/2")
    tree = pyrodrop.to_arviz(process, train, test, num_samples=400)
    assert set(tree.children) == GROUPS  # no densities of weights: it has none
    assert tree.attrs["log_evidence_kind"] == "exact"
    assert not {"elbo", "khat", "estimator"} & set(tree.attrs)
    scatter = (tree["posterior_predictive"]["y"] - tree["posterior"]["f"]).std(("chain", "draw")).mean()
    assert float(scatter) == pytest.approx(process.noise_sd, rel=0.05)
    exact = process.predict(test.x)
    off = (tree["predictions"]["f"].mean(("chain", "draw")).values - exact.mean[:, 0].numpy()) / exact.spread[
        :, 0
    ].numpy()
    assert np.abs(off).max() < 4.5 / math.sqrt(400)
    labels = small.classes()
    classifier = GaussianProcessClassifier(labels, "squared-exponential")
    other = pyrodrop.to_arviz(classifier, labels, labels, num_samples=50, log_likelihood=True)
    assert other["posterior"]["f"].shape == (1, 50, 45, 3)
    assert float(other["log_likelihood"]["y"].max()) <= 0
    unasked = pyrodrop.to_arviz(classifier, labels, num_samples=50)
    assert "an approximation without k-hat" in unasked.attrs["log_likelihood_missing"]
    with pytest.raises(ValueError, match="has no weights"):
        pyrodrop.to_arviz(process, train, weights=True)


def test_draws_of_the_exact_posterior_are_its_chains(small: Any, tmp_path: Path) -> None:
    train, test = small.waves(), small.waves(25, seed=1)
    model = models.MLP(
        [1, 2, 1], prior=priors.Gaussian(), bias_prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0)
    )
    sampled = pyrodrop.sample(model, train, chains=4, draws=12, tune=100, max_steps=8, engine="traced", progress=False)
    tree = pyrodrop.to_arviz(sampled, train, test, weights=True)
    assert set(tree.children) == GROUPS | {"sample_stats", "log_prior"}
    for group, name in (("posterior", "f"), ("log_likelihood", "y"), ("sample_stats", "energy"), ("predictions", "y")):
        assert tree[group][name].shape[:2] == (4, 12)
    f = sampled.predict(train.x, 48).f.reshape(4, 12, -1)
    np.testing.assert_allclose(tree["posterior"]["f"], f, rtol=1e-5)
    np.testing.assert_allclose(tree["posterior"]["layers.0.weight"], sampled.samples["layers.0.weight"])
    np.testing.assert_allclose(tree["log_likelihood"]["y"], sampled.log_likelihood(), rtol=1e-4)
    assert set(tree["sample_stats"]) == {"lp", "energy", "acceptance_rate", "diverging", "n_steps"}
    np.testing.assert_array_equal(tree["sample_stats"]["diverging"], sampled.stats["diverging"])
    assert "Markov chain" in tree.attrs["draws"]
    assert tree.attrs["sampler_tune"] == 100
    tree.to_netcdf(tmp_path / "draws.nc", engine="h5netcdf")
    total = tree["log_likelihood"]["y"].sum("obs_id") + sum(tree["log_prior"][name] for name in sampled.samples)
    np.testing.assert_allclose(total, tree["sample_stats"]["lp"], rtol=1e-3)
    weights = tree["posterior"]["layers.0.weight"].values.reshape(4, 12, -1)
    want = (-0.5 * weights**2 - 0.5 * np.log(2 * np.pi)).sum(-1)
    np.testing.assert_allclose(tree["log_prior"]["layers.0.weight"], want, rtol=1e-4)
    few = pyrodrop.to_arviz(sampled, train, num_samples=4)
    assert few["log_prior"].sizes == {"chain": 4, "draw": 4}
    np.testing.assert_allclose(few["posterior"]["f"], f[:, [2, 5, 8, 11]], rtol=1e-5)
    with pytest.raises(ValueError, match="to_arviz needs the data that the draws were made for"):
        pyrodrop.to_arviz(sampled, test)


def test_a_tree_survives_its_file(small: Any, tmp_path: Path) -> None:
    many = small.fitted(guides.ConcreteDropout, count=2, steps=5)
    tree = pyrodrop.to_arviz(many, small.waves(), small.waves(9, seed=1), num_samples=20, weights=True)
    tree.to_netcdf(tmp_path / "fit.nc", engine="h5netcdf")
    with xr.open_datatree(tmp_path / "fit.nc", engine="h5netcdf") as back:
        xr.testing.assert_equal(tree, back.load())
        assert back["posterior"]["drop_rate"].attrs == tree["posterior"]["drop_rate"].attrs
        assert set(back.attrs) == set(tree.attrs)
        np.testing.assert_array_equal(back.attrs["elbo"], tree.attrs["elbo"])
        assert back.attrs["guide"] == tree.attrs["guide"]


@pytest.mark.few(1)
@pytest.mark.parametrize("chains", [1, 3])
def test_arvizs_own_functions_take_the_tree(small: Any, chains: int) -> None:
    train = small.waves()
    fit = small.fitted(guides.MeanField, **({} if chains == 1 else {"count": chains}))
    tree = pyrodrop.to_arviz(fit, train, small.waves(9, seed=1), num_samples=400, log_likelihood=True)
    assert math.isfinite(arviz_stats.loo(tree).elpd)
    summary = arviz_stats.summary(tree, var_names=["noise_sd", "f"], kind="stats")
    assert len(summary) == 41
    table = arviz_stats.compare({"one": tree, "two": tree})
    assert set(table.index) == {"one", "two"}
    for draw in (arviz_plots.plot_ppc_dist, arviz_plots.plot_ppc_pit, arviz_plots.plot_loo_pit, arviz_plots.plot_lm):
        figure = draw(tree, backend="matplotlib").viz["figure"].item()
        figure.canvas.draw()
    arviz_plots.plot_lm(tree, group="predictions", backend="matplotlib")


def test_log_likelihoods_are_left_out_where_loo_would_be_wrong(small: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Mean field of a network: k-hat is far above .7, ArviZ's own k of every observation is good, and its elpd is wrong."""
    train = small.waves()
    fit = small.fitted(guides.MeanField)
    tree = pyrodrop.to_arviz(fit, train, num_samples=400)
    assert "log_likelihood" not in tree.children
    assert tree.attrs["khat"] > 0.7
    said = f"k-hat of p / q is {tree.attrs['khat']:.2f}, above 0.7"
    assert tree.attrs["log_likelihood_missing"] == said
    assert [said in message for message in caplog.messages] == [True]
    with pytest.raises(TypeError, match="log likelihood not found"):
        arviz_stats.loo(tree)
    asked = pyrodrop.to_arviz(fit, train, num_samples=400, log_likelihood=True)
    assert float(arviz_stats.loo(asked, pointwise=True).pareto_k.max()) < 0.7 < asked.attrs["khat"]
    assert "log_likelihood_missing" not in asked.attrs
    assert len(caplog.messages) == 1


def test_log_likelihoods_stay_where_the_draws_are_the_posteriors(small: Any, caplog: pytest.LogCaptureFixture) -> None:
    """q is the posterior of a conjugate regression, so k-hat is low; of several chains the worst counts.

    A q with a tenth of the variances in 20 dimensions has k-hat 2 with 2,000 draws, and a tail of 3 sqrt(2,000) = 134:
    5 standard errors (1 + k) / sqrt(134) above 0.7.
    """
    fit, _ = small.conjugate(1.0, d=20)
    tree = pyrodrop.to_arviz(fit, fit.data, num_samples=200)
    assert "log_likelihood" in tree.children
    assert tree.attrs["khat"] <= 0.7
    assert not caplog.messages
    assert "log_likelihood" not in pyrodrop.to_arviz(fit, fit.data, num_samples=200, log_likelihood=False).children
    assert not caplog.messages
    few = pyrodrop.to_arviz(fit, fit.data, num_samples=24)
    assert few.attrs["log_likelihood_missing"] == "there is no k-hat of p / q, 24 draws, fewer than 25"
    off, _ = small.conjugate(0.1, d=20)
    both = pyrodrop.Replicates([fit, off])
    assert "log_likelihood" not in pyrodrop.to_arviz(both, fit.data, num_samples=2000).children


def test_the_training_data_are_those_that_the_fit_has(small: Any, tmp_path: Path) -> None:
    """Of a fit, restarts and a Gaussian process; after loading there are none, and they are asked for."""
    train = small.waves()
    model = small.regressor()
    fits = {
        "fit": small.fitted(guides.MeanField, steps=2),
        "restarts": pyrodrop.fit_replicates(model, guides.Point(model), train, count=2, steps=2, starts="new"),
        "process": GaussianProcess(train, "matern-5/2", learn=False),
    }
    for fit in fits.values():
        tree = pyrodrop.to_arviz(fit, num_samples=5)
        xr.testing.assert_identical(
            tree["observed_data"], pyrodrop.to_arviz(fit, train, num_samples=5)["observed_data"]
        )
        np.testing.assert_array_equal(tree["observed_data"]["y"], train.y[:, 0])
    loaded = pyrodrop.Fit.load(fits["fit"].save(tmp_path / "fit"))
    with pytest.raises(TypeError, match=r"train must be the training data that this fit does not hold, .*; got None"):
        pyrodrop.to_arviz(loaded)
