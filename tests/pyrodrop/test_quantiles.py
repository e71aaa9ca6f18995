"""Quantiles of predictive mixtures, against SciPy's root finding, NumPy's quantiles and samples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import optimize, stats
from torch import Tensor

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.prediction import quantiles
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.scaling import Standardize

LEVELS = [1e-6, 0.05, 0.5, 0.9, 0.999]


def mixture(*shape: int) -> Prediction:
    """Components that are far apart, of scales that differ a hundredfold."""
    torch.manual_seed(0)
    f = 100 + 30 * torch.randn(shape, dtype=torch.float64)
    return Prediction(
        f, dist.Normal(f, torch.logspace(-1, 1, shape[0]).reshape(-1, *(1,) * (len(shape) - 1))).to_event(1)
    )


def by_scipy(f: np.ndarray[Any, Any], sd: np.ndarray[Any, Any], q: float) -> float:
    return optimize.brentq(lambda y: stats.norm.cdf(y, f, sd).mean() - q, f.min() - 99, f.max() + 99, xtol=1e-13)  # type: ignore[no-any-return]


@pytest.mark.parametrize("at_a_time", [2**20, 20])
def test_quantiles_of_a_gaussian_mixture_are_the_roots_of_its_cdf(
    at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also point by point, where not all fit into memory."""
    monkeypatch.setattr(quantiles, "_AT_A_TIME", at_a_time)
    prediction = mixture(11, 4, 2)
    sd = prediction.law.base_dist.scale.expand(11, 4, 2).numpy()  # type: ignore[attr-defined]
    got = prediction.quantile(LEVELS)
    assert got.shape == (5, 4, 2)
    for place, q in enumerate(LEVELS):
        want = [[by_scipy(prediction.f[:, n, d].numpy(), sd[:, n, d], q) for d in range(2)] for n in range(4)]
        np.testing.assert_allclose(got[place], want, rtol=1e-9)
        assert torch.equal(prediction.quantile(q), got[place])


def test_an_interval_has_its_probability_of_the_samples() -> None:
    """In 4 standard errors of 200,000 samples, below and above."""
    prediction = mixture(7, 3, 1)
    low, high = prediction.interval(0.8)
    draws = prediction.sample_y(200_000)
    se = math.sqrt(0.1 * 0.9 / 200_000)
    for share in ((draws < low).double().mean(0), (draws > high).double().mean(0)):
        assert float((share - 0.1).abs().max()) < 4 * se
    torch.testing.assert_close(prediction.cdf(high) - prediction.cdf(low), torch.full((3, 1), 0.8).double())


def test_a_gap_between_the_components_is_no_obstacle() -> None:
    """The density is 0 there in floating point, so that Newton's step is infinite."""
    f = torch.tensor([-1e6, -1e6, -1e6, 1e6]).reshape(4, 1, 1).double()
    prediction = Prediction(f, dist.Normal(f, 1.0).to_event(1))
    np.testing.assert_allclose(prediction.quantile(0.6), -1e6 + stats.norm.ppf(0.8), rtol=1e-12)
    np.testing.assert_allclose(prediction.quantile(0.9), 1e6 + stats.norm.ppf(0.6), rtol=1e-12)
    assert -1e6 < float(prediction.quantile(0.75)) < 1e6


@pytest.mark.parametrize("q", [1e-300, 1e-30, 1e-17, 1e-15, 1e-10, 1 - 2**-40, 1 - 2**-53])
def test_quantiles_far_out_keep_their_digits(q: float) -> None:
    """Against SciPy on the log scale, in the lower tail; 1 - q is exact, so that the upper tail is its mirror image."""
    tail = min(q, 1 - q)
    for loc, scale in ([0.0], [1.0]), ([0.0, 1e-9], [1.0, 1.0]), ([-1.0, 2.0], [1.0, 1.0]), ([0.0, 3.0], [2.0, 0.5]):
        sign = 1.0 if q < 0.5 else -1.0
        f = sign * torch.tensor(loc, dtype=torch.float64)[:, None, None]
        sd = torch.tensor(scale, dtype=torch.float64)[:, None, None]

        def missing(y: float, loc: Any = loc, scale: Any = scale) -> float:
            return float(np.logaddexp.reduce(stats.norm.logcdf(y, loc, scale)) - np.log(len(loc)) - np.log(tail))

        want = sign * optimize.brentq(missing, -200, 5, xtol=1e-13)
        got = float(Prediction(f, dist.Normal(f, sd).to_event(1)).quantile(q))
        assert got == pytest.approx(want, rel=1e-10)


def test_other_continuous_likelihoods() -> None:
    f = torch.tensor([[[0.5, 1.0]], [[2.0, 1.5]]])
    laplace = Prediction(f, dist.Laplace(f, 0.3).to_event(1)).quantile(0.3)
    positive = Prediction(f, dist.LogNormal(f, 0.4).to_event(1)).quantile(0.3)
    for d in range(2):
        own = f[:, 0, d].numpy()
        want = optimize.brentq(lambda y, own=own: stats.laplace.cdf(y, own, 0.3).mean() - 0.3, -5, 5)
        assert float(laplace[0, d]) == pytest.approx(want, rel=1e-6)
        want = optimize.brentq(lambda y, own=own: stats.lognorm.cdf(y, 0.4, scale=np.exp(own)).mean() - 0.3, 1e-3, 50)
        assert float(positive[0, d]) == pytest.approx(want, rel=1e-6)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x)  # type: ignore[no-any-return]


def test_noise_that_the_network_predicts_is_part_of_the_interval() -> None:
    """In the units of y, from f and the log precision of every draw."""
    model = models.from_module(Net(), priors.Gaussian(), likelihoods.HeteroscedasticGaussian())
    x = torch.linspace(-1, 1, 12)[:, None]
    data = pyrodrop.data.Dataset(x, 500 + 30 * x, targets=Standardize(500.0, 30.0))
    run = pyrodrop.fit(model, guides.MeanField(model), data, steps=3, lr=0.1, engine="pyro")
    prediction = run.predict(x, 9)
    law: Any = prediction.law
    want = by_scipy(prediction.f[:, 5, 0].double().numpy(), law.base_dist.scale[:, 5, 0].double().numpy(), 0.95)
    assert float(prediction.quantile(0.95)[5, 0]) == pytest.approx(want, rel=1e-6)
    assert float(law.base_dist.scale.std(0).max()) > 0


def test_quantiles_of_f_are_those_of_its_draws() -> None:
    prediction = mixture(50, 3, 2)
    np.testing.assert_allclose(prediction.quantile([0.1, 0.5], of="f"), np.quantile(prediction.f, [0.1, 0.5], axis=0))
    low, high = prediction.interval(0.9, of="f")
    np.testing.assert_allclose(low, np.quantile(prediction.f, 0.05, axis=0))
    np.testing.assert_allclose(high, np.quantile(prediction.f, 0.95, axis=0))
    with pytest.raises(ValueError, match="0.01 needs 100 draws; got q=0.01 and 50 draws"):
        prediction.quantile([0.5, 0.01], of="f")


def test_a_function_with_a_known_gaussian_distribution_has_exact_quantiles() -> None:
    f = torch.zeros(2, 3, 1)
    known = Prediction(f, dist.Normal(torch.full((1, 3, 1), 5.0), 3.0).to_event(1), f_sd=torch.full((3, 1), 2.0))
    np.testing.assert_allclose(known.quantile(0.01, of="f"), np.full((3, 1), stats.norm.ppf(0.01, 5, 2)), rtol=1e-6)
    np.testing.assert_allclose(known.quantile(0.01), np.full((3, 1), stats.norm.ppf(0.01, 5, 3)), rtol=1e-6)


def test_what_has_no_quantiles_is_refused() -> None:
    labels = Prediction(torch.randn(30, 4, 3), dist.Categorical(logits=torch.randn(30, 4, 3)))
    with pytest.raises(TypeError, match="class labels, which have no order"):
        labels.interval(0.9)
    assert labels.quantile(0.5, of="f").shape == (4, 3)
    undeclared = type("Undeclared", (torch.distributions.Distribution,), {"arg_constraints": {}})
    bare = Prediction(torch.ones(2, 3), undeclared(torch.Size([2, 3]), validate_args=False))
    with pytest.raises(TypeError, match="got Undeclared: take quantiles of Prediction.sample_y instead"):
        bare.quantile(0.5)
    counts = Prediction(torch.ones(2, 3, 1), dist.Poisson(torch.ones(2, 3, 1)).to_event(1))
    with pytest.raises(TypeError, match="need continuous observations .*got Poisson"):
        counts.quantile(0.5)
    for law in (dist.StudentT(4.0, torch.ones(2, 3, 1)), dist.Gamma(torch.ones(2, 3, 1), 1.0)):
        with pytest.raises(
            TypeError, match=f"PyTorch has; got {type(law).__name__}: take quantiles of Prediction.sample_y"
        ):
            Prediction(torch.ones(2, 3, 1), law.to_event(1)).quantile(0.5)
    joint = dist.MultivariateNormal(torch.zeros(2, 3, 2), torch.eye(2))
    with pytest.raises(TypeError, match="got MultivariateNormal"):
        Prediction(torch.ones(2, 3, 2), joint).quantile(0.5)
    for q in (1e-10, 1e-20, 1 - 1e-12):
        with pytest.raises(ValueError, match="at least 1e-09 from 0 and 1 for a Gumbel"):
            Prediction(torch.ones(2, 3, 1), dist.Gumbel(torch.ones(2, 3, 1), 1.0).to_event(1)).quantile([0.5, q])
    nan = Prediction(torch.ones(2, 3, 1), dist.Normal(torch.ones(2, 3, 1), 1.0).to_event(1))
    nan.law.base_dist.loc[0, 0, 0] = math.inf  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="finite"):
        nan.quantile(0.5)


def test_moments_have_no_quantiles() -> None:
    model = models.from_module(torch.nn.Linear(1, 1), priors.Gaussian(), likelihoods.Gaussian())
    x = torch.randn(5, 1)
    run = pyrodrop.fit(model, guides.MeanField(model), (x, x), steps=1, engine="pyro")
    for refused in (run.predict(x, 2, keep="moments").quantile, run.predict(x, 2, keep="moments").interval):
        with pytest.raises(TypeError, match="predict with keep='draws'"):
            refused(0.5)


def test_the_callers_random_numbers_are_not_touched() -> None:
    torch.manual_seed(3)
    prediction, want = mixture(4, 2, 1), torch.random.get_rng_state()
    prediction.quantile(0.3)
    assert torch.equal(torch.random.get_rng_state(), want)
