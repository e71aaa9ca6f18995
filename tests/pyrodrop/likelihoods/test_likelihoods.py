"""Every likelihood against SciPy: densities, moments, cumulative distribution functions, quantiles; and its y and starts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from scipy.special import expit
from torch import Tensor

import pyrodrop
from pyrodrop import guides, likelihoods, metrics, models, priors
from pyrodrop.data import Dataset
from pyrodrop.likelihoods import Likelihood
from pyrodrop.scaling import Standardize

N = 9
UNITS = Standardize(loc=3.0, scale=2.0)  # of y that are standardised


class Case(NamedTuple):
    """A likelihood, SciPy's distribution at the outputs z and its parameter, values of y, and one that y cannot have."""

    make: Callable[..., Likelihood]
    scipy: Callable[[Any, Any], Any]
    y: Callable[[Any], Any]
    wrong: float


def mean(z: Any) -> Any:
    """exp(z) in the units of y: those of its mean."""
    return 3.0 * np.exp(z)


CASES = {
    "Bernoulli": Case(likelihoods.Bernoulli, lambda z, _: stats.bernoulli(expit(z)), lambda d: d.ppf(0.6), 0.5),
    "Poisson": Case(likelihoods.Poisson, lambda z, _: stats.poisson(mean(z)), lambda d: d.ppf(0.6), 1.5),
    "NegativeBinomial": Case(
        likelihoods.NegativeBinomial, lambda z, a: stats.nbinom(1 / a, 1 / (1 + a * mean(z))), lambda d: d.ppf(0.6), -1.0
    ),
    "StudentT": Case(
        lambda *args, **more: likelihoods.StudentT(5.0, *args, **more),
        lambda z, s: stats.t(5.0, 3 + 2 * z, s), lambda d: d.ppf(0.6), math.nan,
    ),
}  # fmt: skip
DISPERSED = [name for name in CASES if name not in ("Bernoulli", "Poisson")]


def outputs() -> Tensor:
    return torch.linspace(-1.5, 1.5, N, dtype=torch.float64)[:, None]


@pytest.fixture(params=CASES)
def pair(request: pytest.FixtureRequest) -> tuple[Any, Any, Tensor]:
    """Our distribution [1, N], SciPy's, and observations."""
    case, z = CASES[request.param], outputs()
    likelihood = (case.make(0.7) if request.param in DISPERSED else case.make()).double()
    theirs = case.scipy(z.numpy(), 0.7)
    return likelihood(z[None], UNITS), theirs, torch.as_tensor(case.y(theirs))


def test_densities_and_moments_are_scipys(pair: Any) -> None:
    ours, theirs, y = pair
    log_prob = theirs.logpmf if hasattr(theirs.dist, "logpmf") and hasattr(theirs, "logpmf") else theirs.logpdf
    np.testing.assert_allclose(ours.log_prob(y)[0], log_prob(y.numpy())[:, 0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(ours.mean[0], theirs.mean(), rtol=1e-6)
    np.testing.assert_allclose(ours.variance[0], theirs.var(), rtol=1e-6)


def test_probabilities_and_quantiles_are_scipys(pair: Any) -> None:
    """For one component; for an equal mixture of two, the cumulative distribution function at the quantile is q."""
    ours, theirs, y = pair
    prediction = pyrodrop.Prediction(outputs()[None], ours)
    np.testing.assert_allclose(prediction.cdf(y), theirs.cdf(y.numpy()), rtol=1e-6, atol=1e-12)
    for q in (0.05, 0.5, 0.93):
        np.testing.assert_allclose(prediction.quantile(q).double(), theirs.ppf(q), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["NegativeBinomial"])
def test_the_network_gives_the_parameter(name: str) -> None:
    """The second half of the outputs is the logarithm of the parameter, also with several columns of y."""
    case, z = CASES[name], torch.randn(2, 1, N, 4, dtype=torch.float64)[0]
    likelihood = case.make("network").double()
    assert likelihood.outputs(2) == 4
    theirs = case.scipy(z[0, :, :2].numpy(), np.exp(z[0, :, 2:].numpy()))
    y = torch.as_tensor(case.y(theirs))
    np.testing.assert_allclose(likelihood(z, UNITS).log_prob(y)[0], theirs.logpmf(y.numpy()).sum(1), rtol=1e-6)
    np.testing.assert_allclose(likelihood.location(z, UNITS)[0], theirs.mean(), rtol=1e-6)
    with pytest.raises(ValueError, match=r"output must have 2 D columns under a .*got shape \[9, 3\]"):
        likelihood(torch.zeros(N, 3), UNITS)


@pytest.mark.parametrize("name", DISPERSED)
def test_a_learned_parameter_starts_from_the_data(name: str) -> None:
    """The initial value is that of the distribution of y: 4,000 draws, so within six standard errors of about 5 %."""
    case = CASES[name]
    theirs = case.scipy(np.zeros(1), 0.5)
    y = torch.as_tensor(theirs.rvs((4000, 1), random_state=1)).float()
    likelihood: Any = case.make(None)
    likelihood.start(y)
    assert float(getattr(likelihood, likelihood.parameter)) == pytest.approx(0.5, rel=0.3)
    assert "learned" in likelihood.describe()
    started = float(getattr(likelihood, likelihood.parameter))
    likelihood.start(7 * y)
    assert float(getattr(likelihood, likelihood.parameter)) == started
    fixed: Any = case.make(0.3)
    fixed.start(y)
    assert float(getattr(fixed, fixed.parameter)) == pytest.approx(0.3)
    assert not list(fixed.parameters())


def fitted(likelihood: Likelihood, data: Any, **more: Any) -> Any:
    model = models.MLP([2, 8, likelihood.outputs(1)], prior=priors.Gaussian(), likelihood=likelihood)
    settings = {"steps": 5, "seed": 0, "progress": False, **more}
    return pyrodrop.fit(model, guides.BernoulliDropout(model, 0.1), data, **settings)


@pytest.mark.parametrize("name", CASES)
def test_y_that_cannot_be_are_refused_by_name(name: str) -> None:
    case = CASES[name]
    y = torch.as_tensor(case.y(case.scipy(np.zeros((N, 1)), 0.7))).float()
    y[4] = case.wrong
    kind = type(case.make()).__name__
    with pytest.raises(
        ValueError, match="NaN" if math.isnan(case.wrong) else f"values of y must .*{kind}.*got {case.wrong:g}"
    ):
        fitted(case.make(), (torch.randn(N, 2), y))


@pytest.mark.few(3)
@pytest.mark.parametrize("engine", ["traced", pytest.param("compiled", marks=pytest.mark.more)])
@pytest.mark.parametrize("name", CASES)
def test_every_engine_trains_alike(name: str, engine: str) -> None:
    """The losses equal those of Pyro's own step, with learned parameters."""
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    y = torch.as_tensor(CASES[name].y(CASES[name].scipy(x[:, :1].numpy(), 0.7))).float()
    pyro, other = (fitted(CASES[name].make(), Dataset(x, y, targets=UNITS), engine=each) for each in ("pyro", engine))
    torch.testing.assert_close(other.history, pyro.history, rtol=1e-4, atol=1e-3)
    assert bool(pyro.history.isfinite().all())


@pytest.mark.parametrize("name", ["Bernoulli", "Poisson", "NegativeBinomial"])
def test_the_probability_transform_of_counts_is_uniform(name: str) -> None:
    """It lies between P(Y < y) and P(Y <= y); its mean and deciles over 20,000 counts are within five standard errors."""
    case, size = CASES[name], 20_000
    z = torch.linspace(-1, 1, size, dtype=torch.float64)[:, None]
    likelihood = (case.make(0.7) if name in DISPERSED else case.make()).double()
    theirs = case.scipy(z.numpy(), 0.7)
    y = torch.as_tensor(theirs.rvs(random_state=1)).double()
    u = metrics.pit(pyrodrop.Prediction(z[None], likelihood(z[None], UNITS)), y)
    low, high = theirs.cdf(y.numpy() - 1), theirs.cdf(y.numpy())
    assert bool(((u >= torch.as_tensor(low) - 1e-9) & (u <= torch.as_tensor(high) + 1e-9)).all())
    assert abs(float(u.mean()) - 0.5) < 5 / math.sqrt(12 * size)
    shares = torch.histc(u, 10, 0, 1) / size
    assert float((shares - 0.1).abs().max()) < 5 * math.sqrt(0.09 / size)


def test_scores_of_yes_and_no_are_those_of_two_classes() -> None:
    """For labels [N, 1] of any dtype."""
    f = torch.randn(30, 50, 1, generator=torch.Generator().manual_seed(0))
    y = (torch.arange(50) % 3 == 0)[:, None]
    ours = metrics.classification_scores(pyrodrop.Prediction(f, likelihoods.Bernoulli()(f, Standardize())), y.float())
    two = torch.cat([torch.zeros_like(f), f], -1)
    categorical = pyrodrop.Prediction(two, likelihoods.Categorical()(two, Standardize()))
    theirs = metrics.classification_scores(categorical, y[:, 0].long())
    assert ours == pytest.approx(theirs, rel=1e-5)
    flat = pyrodrop.Prediction(f, dist.Bernoulli(logits=f[..., 0]))
    assert metrics.classification_scores(flat, y[:, 0]) == pytest.approx(theirs, rel=1e-5), "of batch shape [T, N]"
    several = torch.cat([f, f], -1)
    with pytest.raises(TypeError, match=r"one label per example; .*shape \[50, 2\]"):
        metrics.classification_scores(pyrodrop.Prediction(several, likelihoods.Bernoulli()(several, Standardize())), y)


@pytest.mark.parametrize(
    ("likelihood", "theirs", "y"),
    [
        (lambda: likelihoods.NegativeBinomial(1e-8), stats.nbinom(1e8, 1 / (1 + 3e-8)), 5.0),
        (lambda: likelihoods.NegativeBinomial(0.5), stats.nbinom(2, 1 / (1 + 1.5)), 7.0),
        (lambda: likelihoods.Poisson(), stats.poisson(3), 5.0),
        (lambda: likelihoods.StudentT(1000.0, 2.0), stats.t(1000.0, 3.0, 2.0), 4.0),
    ],
    ids=["little dispersion", "negative binomial", "poisson", "student"],
)
def test_single_precision_keeps_the_digits(likelihood: Any, theirs: Any, y: float) -> None:
    """Differences of ln Gamma of large numbers lose no digits; parameters are rounded to float32 before."""
    got = likelihood()(torch.zeros(1, 1), UNITS).log_prob(torch.tensor([[y]]))
    want = theirs.logpmf(y) if theirs.dist.name in ("nbinom", "poisson") else theirs.logpdf(y)
    assert got.dtype == torch.float32
    assert float(got) == pytest.approx(want, abs=2e-3)


@pytest.mark.parametrize("name", [*CASES, "network"])
def test_outputs_far_out_give_finite_losses_and_gradients(name: str) -> None:
    for far in (-200.0, 200.0):
        if name == "network":
            z = torch.tensor([[far, far], [far, -far]], requires_grad=True)
            likelihood = likelihoods.NegativeBinomial("network")
        else:
            z = torch.tensor([[far], [-far]], requires_grad=True)
            likelihood = CASES[name].make(0.7) if name in DISPERSED else CASES[name].make()
        log_prob = likelihood(z, UNITS).log_prob(torch.ones(2, 1)).sum()
        (slope,) = torch.autograd.grad(log_prob, z)
        assert bool(log_prob.isfinite()), (likelihood.describe(), far)
        assert bool(slope.isfinite().all()), (likelihood.describe(), far)


def test_every_column_has_a_start_of_its_own() -> None:
    """Initial values are in the units of the column, also for other degrees of freedom than 4. Images have one, the mean."""
    y = torch.cat([torch.randn(2000, 1), 1000 + 50 * torch.randn(2000, 1)], 1)
    for df, want in ((4.0, 0.91), (1.0, 0.674)):
        student: Any = likelihoods.StudentT(df)
        student.start(y)
        torch.testing.assert_close(student.scale.detach(), want * torch.tensor([1.0, 50.0]), rtol=0.1, atol=0)
    normal: Any = likelihoods.Gaussian()
    normal.start(torch.cat([y, torch.full((2000, 1), 0.1)], 1))  # the last has no variance, and the mean of the others
    variances = [*y.double().numpy().var(0), y.double().numpy().var(0).mean()]
    np.testing.assert_allclose(1 / normal.precision.detach(), variances, rtol=1e-5)
    assert normal.describe() == f"Gaussian(precision=[{', '.join(f'{1 / v:g}' for v in variances)}], learned)"
    images: Any = likelihoods.Gaussian()
    images.start(y.reshape(2000, 1, 1, 2))
    assert float(1 / images.precision.detach()) == pytest.approx(y.double().numpy().var(0).mean())
    tiny: Any = likelihoods.StudentT()
    tiny.start(1e-6 * y[:, :1])
    assert float(tiny.scale) == pytest.approx(0.91e-6, rel=0.1)
    constant: Any = likelihoods.StudentT()
    constant.start(torch.ones(5, 1))
    assert float(constant.scale) == 1.0


@pytest.mark.parametrize("r", [-1000.0, -81.0, -80.0, 3.0, 80.0, 1000.0])
def test_a_noise_beyond_float32_counts_as_the_nearest(r: float) -> None:
    """Some draws of a deep network have such outputs: means over draws and ELBOs do not raise an error of torch."""
    output, targets, likelihood = torch.tensor([[0.0, r]]), Standardize(0.0, 2.0), likelihoods.HeteroscedasticGaussian()
    sd = 2.0 * math.exp(-min(max(r, -80.0), 80.0) / 2)
    assert float(likelihood(output, targets).stddev) == pytest.approx(sd, rel=1e-5)
    density = likelihood(output, targets).log_prob(torch.tensor([[1.5 * sd]]))
    assert float(density) == pytest.approx(-1.125 - math.log(sd) - 0.5 * math.log(2 * math.pi), abs=1e-4)


@pytest.mark.parametrize("unit", [1e-18, 1e-14, 1.0, 1e14, 1e17])
def test_a_precision_has_a_gradient_in_any_unit_of_y(unit: float) -> None:
    """d log p / d log precision = (1 - precision (y - f)^2) / 2, of a y with standard deviations of 1 and 3 units."""
    likelihood = likelihoods.Gaussian([unit**-2, (3 * unit) ** -2], learned=True)
    distribution = likelihood(torch.zeros(1, 2), Standardize(0.0, unit))
    distribution.log_prob(torch.full((1, 2), 2 * unit)).sum().backward()
    torch.testing.assert_close(likelihood.precision_unconstrained.grad, (1 - torch.tensor([4.0, 4 / 9])) / 2)


@pytest.mark.parametrize("name", DISPERSED)
def test_a_list_has_a_number_for_every_column(name: str) -> None:
    case, z, numbers = CASES[name], torch.cat([outputs(), outputs().flip(0)], 1), [0.7, 0.3]
    theirs = case.scipy(z.numpy(), np.array(numbers))
    y = torch.as_tensor(case.y(theirs))
    log_prob = theirs.logpmf if name == "NegativeBinomial" else theirs.logpdf
    ours = case.make(numbers).double()(z, UNITS).log_prob(y)
    np.testing.assert_allclose(ours, log_prob(y.numpy()).sum(1), rtol=1e-6)
    with pytest.raises(ValueError, match="one value for each of 3 outputs; got 2 values"):
        case.make(numbers)(torch.zeros(4, 3), Standardize())


@pytest.mark.parametrize("link", ["exp", "softplus"])
def test_a_log_normal_whose_noise_the_network_predicts_is_that_of_scipy(link: Any) -> None:
    """ln y has the mean and the standard deviation of the training data where the outputs are 0 and the variance is 1."""
    y = torch.tensor([[1.0], [2.0], [7.0], [0.5]]).double()
    likelihood = likelihoods.HeteroscedasticLogNormal(link).double()
    likelihood.start(y)
    likelihood.factor = torch.tensor([1.7], dtype=torch.float64)
    output = torch.tensor([[0.3, -0.2], [-1.0, 0.8], [0.0, 0.0], [2.0, -3.0]], dtype=torch.float64)
    log = np.log(y.numpy())
    r = output[:, 1].numpy()
    variance = 1.7 * (np.exp(-r) if link == "exp" else np.logaddexp(r, 0) + 1e-6)
    median = np.exp(log.mean() + log.std() * output[:, 0].numpy())
    want = stats.lognorm(log.std() * np.sqrt(variance), scale=median)
    got = likelihood(output, Standardize(5.0, 3.0))  # the standardisation of y is not that of its logarithm
    np.testing.assert_allclose(got.log_prob(y).numpy(), want.logpdf(y[:, 0].numpy()), rtol=1e-9)
    np.testing.assert_allclose(got.mean[:, 0].numpy(), want.mean(), rtol=1e-9)
    np.testing.assert_allclose(likelihood.location(output, Standardize())[:, 0].numpy(), median, rtol=1e-9)
