"""Calibration by held-out observations, against NumPy and SciPy."""

import logging

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import optimize, special, stats
from torch import Tensor

import pyrodrop
from pyrodrop import likelihoods, metrics
from pyrodrop.metrics import Calibration, calibrate

DRAWS, ROWS = 7, 300


def classes(seed: int, rows: int = ROWS) -> tuple[pyrodrop.Prediction, Tensor]:
    """Logits that are too far apart by a factor of about 3, and labels."""
    g = torch.Generator().manual_seed(seed)
    true = torch.randn(rows, 4, generator=g, dtype=torch.float64)
    labels = torch.distributions.Categorical(logits=true).probs.multinomial(1, generator=g)[:, 0]
    f = 3 * (true + 0.3 * torch.randn(DRAWS, rows, 4, generator=g, dtype=torch.float64))
    return pyrodrop.Prediction.of_draws(f, likelihoods.Categorical()), labels


def numbers(seed: int, columns: int = 1, rows: int = ROWS) -> tuple[pyrodrop.Prediction, Tensor]:
    """Predictions whose standard deviations are too small by half, for observations with heavy tails."""
    g = torch.Generator().manual_seed(seed)
    f = torch.randn(1, rows, columns, generator=g, dtype=torch.float64)
    noise = torch.randn(4, rows, columns, generator=g, dtype=torch.float64)
    y = f[0] + noise[0] / noise[1:].square().mean(0).sqrt()
    f = f + 0.2 * torch.randn(DRAWS, rows, columns, generator=g, dtype=torch.float64)
    return pyrodrop.Prediction.of_draws(f, likelihoods.Gaussian(4.0)), y


def test_the_temperature_of_classes() -> None:
    prediction, labels = classes(0)
    f, y = prediction.f.numpy(), labels.numpy()

    def loss(t: float) -> float:
        return -float(np.log(special.softmax(f / t, 2).mean(0)[np.arange(ROWS), y]).mean())

    best = optimize.minimize_scalar(loss, bounds=(0.1, 20), method="bounded", options={"xatol": 1e-6})
    calibration = calibrate(prediction, labels)
    assert calibration.temperature == pytest.approx(best.x, rel=1e-3)
    assert 2 < calibration.temperature < 4.5
    new, there = classes(1)
    want = special.softmax(new.f.numpy() / calibration.temperature, 2).mean(0)
    np.testing.assert_allclose(calibration(new).mean, want, rtol=1e-9)
    np.testing.assert_allclose(calibration(new).f, new.f.numpy() / calibration.temperature)
    before, after = (metrics.classification_scores(p, there) for p in (new, calibration(new)))
    assert after["accuracy"] == before["accuracy"] or abs(after["accuracy"] - before["accuracy"]) < 0.02
    assert after["log_density"] > before["log_density"] + 0.1
    assert after["ece"] < before["ece"] / 2


def test_the_temperature_of_numbers() -> None:
    prediction, y = numbers(0)
    f, mean = prediction.f.numpy(), prediction.f.numpy().mean(0)

    def loss(t: float) -> float:
        each = stats.norm.logpdf(y.numpy(), mean + t * (f - mean), t / 2)[..., 0]
        return -float((special.logsumexp(each, 0) - np.log(DRAWS)).mean())

    best = optimize.minimize_scalar(loss, bounds=(0.1, 20), method="bounded", options={"xatol": 1e-6})
    calibration = calibrate(prediction, y)
    assert calibration.temperature == pytest.approx(best.x, rel=1e-3)
    wider = calibration(prediction)
    np.testing.assert_allclose(wider.sd, calibration.temperature * prediction.sd, rtol=1e-9)
    np.testing.assert_allclose(wider.spread, calibration.temperature * prediction.spread, rtol=1e-9)
    np.testing.assert_allclose(wider.mean, prediction.mean, rtol=1e-9)
    assert wider.joint
    assert float(wider.log_density(y).mean()) == pytest.approx(-best.fun, abs=1e-6)


def coverage(prediction: pyrodrop.Prediction, y: Tensor) -> float:
    low, high = prediction.interval(0.9)
    return float(((low <= y) & (y <= high)).double().mean())


@pytest.mark.few(1)
@pytest.mark.parametrize("columns", [1, 2])
def test_residuals(columns: int) -> None:
    prediction, y = numbers(0, columns)
    new, there = numbers(1, columns)
    calibrated = calibrate(prediction, y, "residuals")(new)
    mean, sd = prediction.f.numpy().mean(0), np.sqrt(0.25 + prediction.f.numpy().var(0))
    z = (y.numpy() - mean) / sd
    middle = np.subtract(*np.percentile(z, [75, 25], 0)) / 1.349
    h = 0.9 * np.minimum(z.std(0, ddof=1), middle) * ROWS**-0.2
    m, s = new.f.numpy().mean(0), np.sqrt(0.25 + new.f.numpy().var(0))
    each = stats.t.logpdf(there.numpy()[:, None], 4, m[:, None] + s[:, None] * z, s[:, None] * h).sum(2)
    np.testing.assert_allclose(calibrated.log_density(there), special.logsumexp(each, 1) - np.log(ROWS), rtol=1e-8)
    before, after = (coverage(p, there) for p in (new, calibrated))
    assert before < 0.85
    assert abs(after - 0.9) < 4 * (0.09 * 2 / ROWS) ** 0.5  # both sets of rows are random
    assert not calibrated.joint


def quantiles_of_the_mixture(z: np.ndarray, q: list[float]) -> np.ndarray:
    """Those of the kernels at z, by the distribution function of Student's t with 4 degrees of freedom on a grid."""
    h = 0.9 * min(z.std(ddof=1), np.subtract(*np.percentile(z, [75, 25])) / 1.349) * len(z) ** -0.2
    y = np.linspace(-5, 5, 401)
    t = (y[:, None] - z) / h
    s = t / np.sqrt(4 + t * t)
    below = 0.5 + (0.75 * s - 0.25 * s**3)  # P(T < t)
    return np.interp(q, below.mean(1), y)


def test_intervals_by_residuals_are_as_much_too_wide_as_the_docstring_says() -> None:
    """Coverage of Gaussian observations, exact for each set of residuals; the mean over sets by its standard error."""
    said = " ".join((calibrate.__doc__ or "").split())
    for rows, sets, percents in ((50, 200, (96, 54)), (1000, 20, (96, 52))):
        assert f"{percents[1]} % with {rows:,}" in said
        draws = np.random.default_rng(rows).normal(size=(sets, rows))
        ends = stats.norm.cdf([quantiles_of_the_mixture(z, [0.025, 0.25, 0.75, 0.975]) for z in draws])
        for level, percent, covered in zip(
            (0.95, 0.5), percents, (ends[:, 3] - ends[:, 0], ends[:, 2] - ends[:, 1]), strict=True
        ):
            assert abs(covered.mean() - percent / 100) < 0.005 + 3 * covered.std() / sets**0.5  # percents are rounded
            assert covered.mean() - 3 * covered.std() / sets**0.5 > level
        held_out, new = (
            pyrodrop.Prediction(f, dist.Normal(f, torch.ones_like(f)).to_event(1))
            for f in (torch.zeros(1, count, 1, dtype=torch.float64) for count in (rows, 1))
        )
        calibrated = calibrate(held_out, torch.tensor(draws[0][:, None]), "residuals")(new)
        ours = [float(end) for end in calibrated.interval(0.95)]
        assert ours == pytest.approx(list(quantiles_of_the_mixture(draws[0], [0.025, 0.975])), abs=1e-2)


def test_many_residuals_are_thinned_and_missing_ones_left_out() -> None:
    f = torch.zeros(1, 5000, 1, dtype=torch.float64)
    prediction = pyrodrop.Prediction(f, dist.Normal(f, 1.0).to_event(1), missing=float("nan"))
    y = torch.randn(5000, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y[::2] = float("nan")
    z = calibrate(prediction, y, "residuals").residuals
    assert z is not None
    assert len(z) == 1000
    np.testing.assert_allclose(
        z[::100, 0], np.sort(y[1::2, 0].numpy())[np.linspace(0, 2499, 1000).round().astype(int)][::100]
    )


def test_student_t_and_labels_of_several_columns() -> None:
    f = torch.zeros(2, 30, 1)
    y = torch.distributions.StudentT(3.0, 0.0, 5.0).sample((30, 1))
    prediction = pyrodrop.Prediction.of_draws(f, likelihoods.StudentT(scale=1.0, df=3.0))
    want = stats.t.fit(y.numpy().ravel(), fdf=3.0, floc=0.0)[2]
    assert calibrate(prediction, y).temperature == pytest.approx(want, rel=2e-2)
    heavy = pyrodrop.Prediction.of_draws(f, likelihoods.StudentT(scale=1.0, df=1.0))  # which has no mean
    assert calibrate(heavy, y).temperature == pytest.approx(
        stats.t.fit(y.numpy().ravel(), fdf=1.0, floc=0.0)[2], rel=2e-2
    )
    with pytest.raises(ValueError, match="prediction must have a finite standard deviation .* got (inf|nan)"):
        calibrate(heavy, y, "residuals")
    with pytest.raises(ValueError, match="prediction must have a finite standard deviation"):
        Calibration(residuals=torch.zeros(20, 1))(heavy)
    logits = 4 * torch.randn(3, 40, 2, generator=torch.Generator().manual_seed(0))
    yes = pyrodrop.Prediction.of_draws(logits, likelihoods.Bernoulli())
    labels = torch.rand(40, 2, generator=torch.Generator().manual_seed(1)) < 0.5

    def loss(t: float) -> float:
        p = special.expit(np.where(labels, 1, -1) * logits.double().numpy() / t).prod(2).mean(0)
        return -float(np.log(p).mean())

    best = optimize.minimize_scalar(loss, bounds=(1, 30), method="bounded").x
    assert calibrate(yes, labels).temperature == pytest.approx(best, rel=2e-3)
    assert best > 2
    np.testing.assert_allclose(Calibration(2.0)(yes).mean, special.expit(logits.numpy() / 2).mean(0), rtol=1e-5)


def test_logits_of_several_draws_under_one_distribution() -> None:
    f = torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(0))
    prediction = pyrodrop.Prediction(f, dist.Categorical(logits=f.mean(0, keepdim=True)))
    np.testing.assert_allclose(Calibration(2.0)(prediction).f, f / 2)
    ordered = pyrodrop.Prediction(f[..., :1], dist.Categorical(logits=f))
    assert torch.equal(Calibration(2.0)(ordered).f, f[..., :1])


def test_a_temperature_that_nothing_bounds_is_told(caplog: pytest.LogCaptureFixture) -> None:
    f = torch.tensor([[[5.0, 0.0], [0.0, 5.0]]])
    prediction = pyrodrop.Prediction.of_draws(f, likelihoods.Categorical())
    with caplog.at_level(logging.WARNING, "pyrodrop"):
        assert calibrate(prediction, torch.tensor([0, 1])).temperature < 0.03
    assert "do not bound the temperature" in caplog.text


def test_what_cannot_be_calibrated_is_refused() -> None:
    counts = pyrodrop.Prediction.of_draws(torch.zeros(2, 30, 1), likelihoods.Poisson())
    with pytest.raises(TypeError, match="prediction must be of Gaussian or Student's t .* got one of Poisson"):
        calibrate(counts, torch.ones(30, 1))
    prediction, labels = classes(0)
    with pytest.raises(TypeError, match="got one of Categorical observations"):
        calibrate(prediction, labels, "residuals")
    few, y = numbers(0, rows=10)
    with pytest.raises(ValueError, match="y must have at least 20 complete rows"):
        calibrate(few, y, "residuals")
    with pytest.raises(ValueError, match=r"of shape \[1\] at a point, as the residuals are; got \[2\]"):
        calibrate(*numbers(0), "residuals")(numbers(0, 2)[0])
