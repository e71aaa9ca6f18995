"""`Prediction.of_draws` against SciPy and NumPy, and against predictions of fits."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch

import pyrodrop
from pyrodrop import Prediction, guides, likelihoods, metrics, models, priors
from pyrodrop.scaling import Standardize

S, N = 7, 5
RANDOM = np.random.default_rng(0)
F = RANDOM.normal(3.0, 2.0, (S, N, 1))
R = RANDOM.normal(0.0, 0.5, (S, N, 1))
Y = RANDOM.normal(3.0, 2.0, (N, 1))


def test_gaussian_draws_have_scipys_density_and_moments():
    prediction = Prediction.of_draws(F, likelihoods.Gaussian(precision=4.0))
    each = scipy.stats.norm(F[..., 0], 0.5)
    np.testing.assert_allclose(prediction.log_density(Y), np.log(each.pdf(Y[:, 0]).mean(0)), rtol=1e-6)
    np.testing.assert_allclose(prediction.variance[:, 0], 0.25 + F[..., 0].var(0), rtol=1e-6)
    np.testing.assert_allclose(prediction.f, F)
    rmse = metrics.regression_scores(prediction, Y)["rmse"]
    np.testing.assert_allclose(rmse, np.sqrt(((F.mean(0) - Y) ** 2).mean()), rtol=1e-6)


def test_logits_have_scipys_probabilities():
    logits, labels = RANDOM.normal(size=(S, N, 3)), np.array([0, 1, 2, 0, 1])
    prediction = Prediction.of_draws(logits, likelihoods.Categorical())
    probabilities = scipy.special.softmax(logits, -1).mean(0)
    np.testing.assert_allclose(prediction.mean, probabilities, rtol=1e-6)
    np.testing.assert_allclose(prediction.log_density(labels), np.log(probabilities[range(N), labels]), rtol=1e-6)


@pytest.mark.parametrize(("loc", "scale"), [(0.0, 1.0), (10.0, 3.0)])
def test_noise_of_every_draw_has_scipys_density_in_any_units(loc, scale):
    targets = Standardize(loc, scale)
    outputs = np.concatenate([F, R], -1)
    prediction = Prediction.of_draws(outputs, likelihoods.HeteroscedasticGaussian(), targets=targets)
    each = scipy.stats.norm(loc + scale * F[..., 0], scale * np.exp(-R[..., 0] / 2))
    np.testing.assert_allclose(prediction.log_density(Y), np.log(each.pdf(Y[:, 0]).mean(0)), rtol=1e-6)
    np.testing.assert_allclose(prediction.f, loc + scale * F)


@pytest.mark.parametrize("likelihood", [likelihoods.Gaussian(2.0), likelihoods.HeteroscedasticGaussian()])
def test_draws_of_a_fit_give_its_prediction(likelihood):
    """Scores and distances of the outputs of our own network are those of `predict`."""
    torch.manual_seed(0)
    x = torch.randn(20, 2)
    data = pyrodrop.data.Dataset(x, 5 + 3 * x.sum(1, keepdim=True)).standardized()
    model = models.MLP([2, 4, likelihood.outputs(1)], prior=priors.Gaussian(), likelihood=likelihood)
    fit = pyrodrop.fit(model, guides.MeanField(model), data, steps=3, engine="pyro", progress=False)
    want = fit.predict(data.x, 6, seed=1)
    outputs = (want.f - data.targets.loc) / data.targets.scale
    if likelihood.outputs(1) == 2:
        noise = -2 * (want.distribution.stddev / data.targets.scale).log()
        outputs = torch.cat([outputs, noise], -1)
    got = Prediction.of_draws(outputs, likelihood, targets=data.targets)
    torch.testing.assert_close(got.f, want.f)
    torch.testing.assert_close(got.log_density(data.y), want.log_density(data.y), rtol=1e-4, atol=1e-4)


def test_what_arrives_is_neither_changed_nor_needed_later():
    f, likelihood = torch.tensor(F).requires_grad_(), likelihoods.Gaussian(precision=4.0)
    before = copy.deepcopy(f.detach())
    prediction = Prediction.of_draws(f, likelihood, targets=Standardize(1.0, 2.0), joint=False)
    likelihood.precision.fill_(1.0)
    assert torch.equal(f, before)
    assert not prediction.f.requires_grad
    assert not prediction.joint
    assert float(prediction.distribution.stddev[0, 0, 0]) == 0.5


@pytest.mark.parametrize(
    ("likelihood", "name", "y"),
    [
        (likelihoods.Gaussian(), "precision", [[1.0], [9.0]]),
        (likelihoods.Missing(likelihoods.Gaussian()), "precision", [[1.0], [9.0]]),
        (likelihoods.NegativeBinomial(), "dispersion", [[1.0], [9.0]]),
    ],
)
def test_noise_that_only_training_gives_is_refused_until_it_is_known(likelihood, name, y):
    with pytest.raises(ValueError, match=f"likelihood must have a known {name}"):
        Prediction.of_draws(F, likelihood)
    likelihood.start(torch.tensor(y))
    assert likelihood.unknown == ""
    assert Prediction.of_draws(F, likelihood).f.shape == (S, N, 1)
