"""Certificates of bands: what is drawn, what is counted, and what the factors do."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import pyrodrop
from pyrodrop import data, guides, likelihoods, models, priors
from pyrodrop.analysis.calibration import certify
from pyrodrop.files import Record
from pyrodrop.training import certificate

DRAWS = 4000


def _problem(rows=60, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.linspace(-2, 2, rows)[:, None]
    return x, 2 * torch.sin(4 * x) + x**2 + 0.5 * torch.randn(rows, 1, generator=g)


def _fit(guide=lambda model: guides.BernoulliDropout(model, 0.02), steps=200):
    x, y = _problem()
    model = models.MLP([1, 20, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian())
    return pyrodrop.fit(model, guide(model), data.Dataset(x, y).standardized(), steps=steps, lr=0.02)


def _dense(kernel, a, b):
    """1 + a b' or 1 + exp(-d^2 / 2 l^2) in NumPy."""
    a, b = ((np.asarray(rows, float) - kernel.middle.numpy()) / kernel.scale.numpy() for rows in (a, b))
    if kernel.length is None:
        return 1 + a @ b.T
    return 1 + np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / (2 * kernel.length**2))


def _close(sample, mean, sd):
    """Whether draws ``[R, ...]`` have these moments, within 5 standard errors."""
    assert (np.abs(sample.mean(0) - mean) < 5 * sd / math.sqrt(len(sample)) + 1e-6).all()
    assert (np.abs(sample.std(0) / sd - 1) < 5 / math.sqrt(2 * len(sample)) + 0.01).all()


def test_functions_of_the_process_are_those_of_gaussian_process_regression():
    torch.manual_seed(0)
    x, y = _problem()
    process = certify.OfNumbers(x, y)
    points = torch.tensor([[-0.33], [1.9], [3.0]])
    drawn = process.simulated(data.Dataset(x, y), points, DRAWS)
    s = (process.size**2).item() * process.unit.item() ** 2
    noise = (process.noise * process.unit).item() ** 2
    a = s * _dense(process.kernel, x, x) + noise * np.eye(len(x))
    across = s * _dense(process.kernel, points, x)
    target = y[:, 0].double().numpy() - y.double().mean().item()
    mean = across @ np.linalg.solve(a, target) + y.double().mean().item()
    variance = np.diag(s * _dense(process.kernel, points, points) - across @ np.linalg.solve(a, across.T))
    _close(drawn.f[..., 0].numpy(), mean, np.sqrt(variance))
    assert torch.var(drawn.y - drawn.again).item() == pytest.approx(2 * noise, rel=0.02)
    inverse = np.linalg.inv(a)  # leave-one-out, eq. 5.10 to 5.12
    off, precision = inverse @ target / np.diag(inverse), np.diag(inverse)
    left_out = (-0.5 * np.log(2 * np.pi / precision) - 0.5 * precision * off**2).mean()
    assert process.density == pytest.approx(left_out, abs=1e-6)


@pytest.mark.parametrize("classes", [2, 3])
def test_functions_of_labels_are_those_of_the_laplace_approximation(classes):
    torch.manual_seed(1)
    x = torch.linspace(-2, 2, 40)[:, None]
    logits = torch.cat([torch.zeros(40, 1), *(3 * torch.sin(k * x) for k in range(1, classes))], 1)
    y = torch.distributions.Categorical(logits=logits).sample()
    process = certify.OfLabels(x, y, classes)
    points = torch.tensor([[-1.05], [0.3], [2.8]])
    drawn = process.simulated(data.Dataset(x, y), points, DRAWS)
    prior = process.size**2 * _dense(process.kernel, x, x) + 1e-6 * np.eye(40)
    mode = process.mode.f.numpy()
    p = np.exp(mode - np.logaddexp.reduce(mode, 1, keepdims=True))
    w = np.zeros((classes * 40, classes * 40))  # minus the Hessian of the log likelihood, class by class
    for a in range(classes):
        for b in range(classes):
            block = (p[:, a] if a == b else 0) - p[:, a] * p[:, b]
            w[a * 40 : a * 40 + 40, b * 40 : b * 40 + 40] = np.diag(np.broadcast_to(block, 40))
    k = np.kron(np.eye(classes), prior)
    across = np.kron(np.eye(classes), process.size**2 * _dense(process.kernel, points, x))
    there = np.kron(np.eye(classes), process.size**2 * _dense(process.kernel, points, points))
    covariance = there - across @ np.linalg.solve(np.eye(len(k)) + w @ k, w @ across.T)
    mean = across @ np.linalg.solve(k, mode.T.reshape(-1))
    _close(drawn.f.mT.reshape(DRAWS, -1).numpy(), mean, np.sqrt(np.diag(covariance)))
    assert drawn.y.dtype == y.dtype
    assert int(drawn.y.max()) < classes


def test_a_band_is_counted_and_its_factor_is_that_of_the_far_end():
    draws = torch.linspace(-1, 1, 2001).double()[:, None, None].expand(-1, 3, 1)
    truth = torch.tensor([[0.0], [0.949], [-1.9]]).double()
    inside, factor, error = certify._bands(draws, truth, 0.95, of_labels=False)
    assert inside.flatten().tolist() == [True, True, False]
    assert factor.flatten() == pytest.approx([0.0, 0.949 / 0.95, 2.0], abs=1e-3)
    assert error.flatten() == pytest.approx([0.0, 0.949, -1.9], abs=1e-6)


def test_bands_of_labels_are_those_of_probabilities():
    torch.manual_seed(2)
    draws, truth = torch.randn(500, 4, 3).double(), torch.randn(4, 3).double()
    inside, _, _ = certify._bands(draws, truth, 0.8, of_labels=True)
    low, high = draws.softmax(-1).quantile(torch.tensor([0.1, 0.9]).double(), dim=0)
    p = truth.softmax(-1)
    assert inside.equal((p >= low) & (p <= high))
    assert inside.any()
    assert not inside.all()


def test_a_fit_that_is_too_smooth_is_not_certified_by_its_own_functions(monkeypatch):
    fit = _fit()
    found = fit.certify(refits=8)
    assert found.by == "Gaussian process"
    assert found.held["inside"].coverage < 0.6
    assert found.held["inside"].factor > 1.5
    assert "wrong place" in found.finding or "too narrow" in found.finding
    monkeypatch.setattr(certify, "best_predictor", lambda fit, likelihood, rows, seed: certify.OfFit(fit, seed, 0.5))
    assert certify.of_fit(fit, 8, 0.95, 0).held["inside"].coverage > found.held["inside"].coverage + 0.1


def test_the_default_fit_has_a_certificate():
    x, y = _problem()
    model = models.MLP([1, 10, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian())
    found = pyrodrop.fit(model, (x, y), steps=30).certify(refits=2)
    assert found.refits == 2
    assert set(found.held) == set(certificate.REGIONS)


def test_certified_draws_are_moved_from_their_mean_by_the_factor_of_their_region():
    fit = _fit(steps=50)
    fit.certify(refits=3)
    x = torch.tensor([[0.1], [2.0], [9.0]])
    assert fit.certificate.regions(x).tolist() == [0, 1, 2]
    plain, moved = fit.predict(x, 40), fit.predict(x, 40, certified=True)
    for row, name in enumerate(certificate.REGIONS):
        off = plain.f[:, row] - plain.f[:, row].mean(0)
        assert (moved.f[:, row] - plain.f[:, row].mean(0)).numpy() == pytest.approx(
            (fit.certificate.held[name].factor * off).numpy(), rel=1e-4, abs=1e-5
        )
    assert torch.equal(moved.distribution.mean, moved.f)


def test_a_certificate_is_saved_with_its_fit(tmp_path):
    fit = _fit(steps=50)
    fit.certify(refits=3)
    loaded = pyrodrop.Fit.load(fit.save(tmp_path / "fit.safetensors"))
    x = torch.tensor([[0.1], [2.0], [9.0]])
    assert str(loaded.certificate) == str(fit.certificate)
    assert torch.equal(loaded.predict(x, 20, certified=True).f, fit.predict(x, 20, certified=True).f)
    tensors, plain = fit.certificate.stored()
    for name, wrong in (
        ("scale", math.nan * tensors["scale"]),
        ("rows", tensors["rows"][0]),
        ("held", -tensors["held"]),
    ):
        with pytest.raises(ValueError, match="finite tensors, with factors of at least 0"):
            certificate.Certificate.of_file(Record("a file", plain), tensors | {name: wrong})


def test_the_same_call_finds_the_same_and_the_fit_stays_as_it_was():
    fit = _fit(steps=50)
    before = {name: value.clone() for name, value in fit.guide.state_dict().items()}
    state = torch.get_rng_state()
    first, second = fit.certify(refits=3), fit.certify(refits=3)
    assert first.held == second.held
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in fit.guide.state_dict().items())


def test_labels_and_other_likelihoods_have_certificates():
    g = torch.Generator().manual_seed(0)
    x = torch.linspace(-2, 2, 50)[:, None]
    labels = (torch.sin(2 * x[:, 0]) + 0.3 * torch.randn(50, generator=g) > 0).long()
    model = models.MLP([1, 10, 2], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Categorical())
    found = pyrodrop.fit(model, guides.MeanField(model), (x, labels), steps=100, lr=0.02).certify(refits=3)
    assert math.isnan(found.held["inside"].of_y)
    assert 0 <= found.held["inside"].coverage <= 1
    model = models.MLP([1, 10, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Poisson())
    counts = torch.poisson((1 + x).exp(), generator=g)
    found = pyrodrop.fit(model, guides.MeanField(model), (x, counts), steps=100, lr=0.02).certify(refits=3)
    assert found.by == "fit"


def test_a_refit_starts_from_the_noise_of_its_own_data():
    fit = _fit()
    assert not torch.isclose(fit.model.likelihood.precision, 1 / fit.data.y.var(correction=0), rtol=0.2)
    sets = [fit.data.with_values(y=size * fit.data.y) for size in (1.0, 3.0)]
    fit.options, fit.history = replace(fit.options, lr=1e-9), fit.history[:1]
    for each, rows in zip(certify._refitted(fit, sets, 0), sets, strict=True):
        assert float(each.model.likelihood.precision) == pytest.approx(1 / float(rows.y.var(correction=0)), rel=1e-3)


def test_what_cannot_be_certified_is_refused():
    fit = _fit(steps=20)
    with pytest.raises(ValueError, match="before certify"):
        fit.predict(torch.zeros(1, 1), 5, certified=True)
    fit.data = None
    with pytest.raises(ValueError, match="training data and settings"):
        fit.certify()
