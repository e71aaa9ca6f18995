"""Censored observations, against SciPy, mpmath and maximum likelihood by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from torch import Tensor

import pyrodrop
from pyrodrop import guides, likelihoods, metrics, models, priors
from pyrodrop.analysis import compare, log_density
from pyrodrop.data import Dataset
from pyrodrop.likelihoods import Censored
from pyrodrop.scaling import Standardize
from tests.small import linear

INF = math.inf
TAU = 4.0
FAR = torch.tensor([-300.0, -37.0, -6.0, -1.0, 0.0, 0.3, 2.0, 9.0, 40.0, 1e4])[:, None]  # f, with a scale of 1 / 2
ENDS = {
    "exact": (0.5, 0.5), "right": (0.5, INF), "left": (-INF, 0.5), "interval": (0.5, 2.0), "narrow": (0.5, 0.501),
    "wide": (-30.0, 50.0),
}  # fmt: skip


def survived(rows: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """x, values of which 30 % are above the limit of their row, and their ends."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 2, generator=generator, dtype=torch.float64)
    value = x @ torch.tensor([[1.0], [-0.5]]).double() + 0.5 * torch.randn(rows, 1, generator=generator).double()
    limit = 0.8 + torch.randn(rows, 1, generator=generator).double()
    return x, value, torch.cat([torch.minimum(value, limit), torch.where(value <= limit, value, INF)], 1)


def log_densities(mean: Any, y: Any, sd: float = TAU**-0.5) -> Any:
    """Log densities of values with ends y [N, 2] that are exact or right-censored, by SciPy."""
    exact = y[:, 0] == y[:, 1]
    return np.where(exact, stats.norm(mean, sd).logpdf(y[:, 0]), stats.norm(mean, sd).logsf(y[:, 0]))


def by_mpmath(loc: Any, scale: Any, lower: float, upper: float) -> Any:
    """ln P(lower < Y < upper), or the log density of an exact Y, of a Gaussian, in 60 digits."""
    a, b = ((mpmath.mpf(end) - loc) / scale for end in (lower, upper))
    if lower == upper:
        return -(a**2) / 2 - mpmath.log(scale) - mpmath.log(2 * mpmath.pi) / 2
    if a + b > 0:
        a, b = -b, -a
    return mpmath.log(mpmath.erfc(-b / mpmath.sqrt(2)) - mpmath.erfc(-a / mpmath.sqrt(2))) - mpmath.log(2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ENDS)
def test_densities_and_gradients_far_in_the_tails(kind: str, dtype: torch.dtype) -> None:
    """The value and the derivatives with respect to location and scale, which differ by 1e-6 of their size."""
    mpmath.mp.dps = 60
    loc = FAR.to(dtype).requires_grad_()
    log_scale = torch.full_like(loc, math.log(0.5)).detach().requires_grad_()
    likelihood, output = likelihoods.HeteroscedasticGaussian(), torch.cat([loc, -2 * log_scale], 1)
    lower, upper = torch.tensor(ENDS[kind], dtype=dtype).tolist()
    got = Censored(likelihood)(output, Standardize()).log_prob(torch.tensor([[lower, upper]], dtype=dtype))
    slopes = torch.autograd.grad(got.sum(), [loc, log_scale])
    for n, (place, r) in enumerate(zip(loc[:, 0].tolist(), log_scale[:, 0].tolist(), strict=True)):
        at = mpmath.mpf(place), mpmath.mpf(r)
        function = lambda a, b: by_mpmath(a, mpmath.exp(b), lower, upper)  # noqa: E731
        want = [function(*at), mpmath.diff(function, at, (1, 0)), mpmath.diff(function, at, (0, 1))]
        for value, theirs in zip([got[n], *(slope[n, 0] for slope in slopes)], want, strict=True):
            rel, least = (1e-6, 1e-15) if dtype is torch.float64 else (2e-6, 1e-8)
            assert float(value.detach()) == pytest.approx(float(theirs), rel=rel, abs=least)


@pytest.mark.parametrize("name", ["Gaussian", "LogNormal"])
def test_densities_are_scipys(name: str) -> None:
    """For two columns of y, in the units of y."""
    z = torch.linspace(-2, 2, 7, dtype=torch.float64)[:, None].repeat(1, 2)
    units = Standardize(loc=3.0, scale=2.0)
    if name == "Gaussian":
        likelihood, theirs = likelihoods.Gaussian(1 / 0.49), stats.norm(3 + 2 * z, 0.7)
    else:
        likelihood, theirs = likelihoods.LogNormal(0.7), stats.lognorm(0.7, scale=3 * z.exp())  # type: ignore[assignment]
    y = torch.tensor([[2.0, 2.0], [2.0, INF], [-INF, 2.0], [2.0, 5.0], [0.0, 2.0], [5.0, INF], [5.0, 5.0]]).double()
    each = {
        "pdf": theirs.logpdf(y[:, :1]), "sf": theirs.logsf(y[:, :1]), "cdf": theirs.logcdf(y[:, 1:]),
    }  # fmt: skip
    with np.errstate(divide="ignore"):
        each["in"] = np.log(theirs.cdf(y[:, 1:]) - theirs.cdf(y[:, :1]))
    want = [each[which][n].sum() for n, which in enumerate(["pdf", "sf", "cdf", "in", "in", "sf", "pdf"])]
    distribution = Censored(likelihood).double()(z, units)
    got = distribution.log_prob(y.repeat_interleave(2, 1))
    np.testing.assert_allclose(got, want, rtol=1e-6)
    np.testing.assert_allclose(distribution.mean, theirs.mean(), rtol=1e-6)
    assert distribution.expand([3, 7]).log_prob(y.repeat_interleave(2, 1)).shape == (3, 7)
    exact = y[:, :1].clamp(0.1).repeat(1, 2)
    np.testing.assert_allclose(distribution.log_prob(exact), theirs.logpdf(exact).sum(1), rtol=1e-6)


def test_units_of_the_network_and_starts() -> None:
    y = torch.tensor([[1.0, 1.0], [2.0, INF], [-INF, 3.0], [4.0, 6.0]])
    data = Dataset(torch.arange(4.0), y).standardized()
    assert data.targets is not None
    numbers = torch.tensor([1.0, 2.0, 3.0, 5.0])
    torch.testing.assert_close(data.targets.loc, numbers.mean().repeat(2))
    torch.testing.assert_close(data.targets.scale, numbers.std(correction=0).repeat(2))
    assert "3 open ends" not in str(data)
    assert "2 open ends" in str(data)
    for ends in (y, torch.tensor([[1.0, 1.0], [2.0, 4.0], [0.0, 3.0], [4.0, 6.0]])):
        model = models.MLP([1, 2, 1], prior=priors.Gaussian(), likelihood=Censored(likelihoods.Gaussian()))
        model.standardize(Dataset(torch.arange(4.0), ends).standardized())
        assert model.targets.loc.shape == model.targets.scale.shape == (1,)
    model.likelihood.start(y)
    likelihood = Censored(likelihoods.Gaussian())
    likelihood.start(y)
    assert likelihood.describe() == f"Censored(Gaussian(precision={1 / float(numbers.var(correction=0)):g}, learned))"
    assert Censored(likelihoods.HeteroscedasticGaussian()).outputs(4) == 4


def fitted(rows: int = 30) -> tuple[pyrodrop.Fit, Tensor, Tensor, Tensor]:
    x, value, y = survived(rows)
    model = linear(Censored(likelihoods.Gaussian(TAU)))
    run = pyrodrop.fit(model, guides.MeanField(model), (x, y), steps=200, lr=2e-2, engine="traced", progress=False)
    return run, x, value, y


def test_predictions_are_of_the_values_and_densities_of_the_intervals(tmp_path: Path) -> None:
    run, x, value, y = fitted()
    prediction = run.predict(x, 50)
    assert prediction.mean.shape == prediction.y.shape[1:] == value.shape
    plain = pyrodrop.Prediction(prediction.f, dist.Normal(prediction.f, TAU**-0.5).to_event(1))
    torch.testing.assert_close(prediction.quantile(0.9), plain.quantile(0.9))
    torch.testing.assert_close(prediction.sd, plain.sd)
    each = np.stack([log_densities(f.numpy(), y.numpy()) for f in prediction.f[..., 0]])
    want = torch.as_tensor(each).logsumexp(0) - math.log(50)
    torch.testing.assert_close(prediction.log_density(y), want)
    torch.testing.assert_close(log_density(run, (x, y), 50), want)
    assert f"{float(want.mean()):.4g}" in str(compare({"one": run, "two": run}, (x, y), num_samples=50))
    exact = y[:, 0] == y[:, 1]
    scores = metrics.regression_scores(plain, value)
    assert metrics.regression_scores(prediction, value) == scores
    assert metrics.regression_scores(prediction, value.repeat(1, 2)) == scores
    assert metrics.regression_scores(run.predict(x[exact], 50), y[exact])["rmse"] > 0
    for score in (metrics.regression_scores, metrics.pit, lambda p, y: p.cdf(y)):
        with pytest.raises(ValueError, match=rf"needs exact observations; got a y with {int((~exact).sum())} censored"):
            score(prediction, y)
    model = linear(Censored(likelihoods.Gaussian(TAU)))
    again = pyrodrop.Fit.load(run.save(tmp_path / "fit"), model, guides.MeanField(model))
    torch.testing.assert_close(again.predict(x, 50).log_density(y), want)
    assert again.elbo(50, (x, y)).nll == pytest.approx(-each.sum(1).mean(), rel=0.05)


def test_the_exact_posterior_has_their_density() -> None:
    """Differences of the energy between weights equal those of SciPy."""
    x, _, y = survived(25)
    potential = pyrodrop.potential(linear(Censored(likelihoods.Gaussian(TAU))), (x, y), engine="traced")
    points = torch.randn(3, 1, 2, dtype=torch.float64)
    got = [float(potential({"weight": w})) for w in points]
    want = [float(w.square().sum()) / 2 - log_densities((x @ w.T).numpy()[:, 0], y.numpy()).sum() for w in points]
    np.testing.assert_allclose(np.diff(got), np.diff(want), rtol=1e-9)


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ((3.0, 2.0), "the lower one not above the other.*got 3 and 2 in row 1"),
        ((-INF, INF), "one of them at most open.*got -inf and inf in row 1"),
        ((1.0, math.nan), "y must be finite; got NaN in 1 of 4 rows"),
        ((0.0, 0.0), r"support of LogNormal\(.*got 0"),
        ((-1.0, INF), r"support of LogNormal\(.*got -1"),
    ],
)
def test_ends_that_are_no_interval_are_refused(ends: tuple[float, float], message: str) -> None:
    y = torch.tensor([[1.0, 2.0], ends, [1.0, 1.0], [3.0, 4.0]])
    model = models.MLP([1, 2, 1], prior=priors.Gaussian(), likelihood=Censored(likelihoods.LogNormal()))
    with pytest.raises(ValueError, match=message):
        pyrodrop.fit(model, guides.MeanField(model), (torch.ones(4, 1), y), steps=1, progress=False)
    if not math.isnan(ends[1]):
        run = pyrodrop.fit(model, guides.MeanField(model), (torch.ones(4, 1), y[[0, 0, 2, 3]]), steps=1, engine="pyro")
        prediction = run.predict(torch.ones(4, 1), num_samples=2)
        with pytest.raises(ValueError, match=message.replace(r"LogNormal\(", "the prediction, of LogNormal")):
            prediction.log_density(y)


@pytest.mark.parametrize("y", [torch.ones(4), torch.ones(4, 1), torch.ones(4, 4), torch.ones(4, 2).long()])
def test_a_y_of_another_shape_is_refused(y: Tensor) -> None:
    model = models.MLP([1, 2, 1], prior=priors.Gaussian(), likelihood=Censored(likelihoods.Gaussian()))
    with pytest.raises(
        ValueError, match=r"y must be real numbers of shape \[4, 2\] under Censored.*the lower and then"
    ):
        pyrodrop.fit(model, guides.MeanField(model), (torch.ones(4, 1), y), steps=1, progress=False)
    two = models.MLP([1, 2, 2], prior=priors.Gaussian(), likelihood=Censored(likelihoods.Gaussian()))
    with pytest.raises(ValueError, match=r"of shape \[4, 4\] under Censored.*got torch.float32 of shape \[4, 2\]"):
        pyrodrop.fit(two, guides.MeanField(two), (torch.ones(4, 1), torch.ones(4, 2)), steps=1, progress=False)


@pytest.mark.parametrize(("likelihood", "outputs"), [(likelihoods.Categorical(), 3), (likelihoods.Beta(), 1)])
def test_other_distributions_are_refused(likelihood: Any, outputs: int) -> None:
    model = models.MLP([1, 2, outputs], prior=priors.Gaussian(), likelihood=Censored(likelihood))
    with pytest.raises(ValueError, match="need independent numbers .* with a Gaussian or log-normal distribution"):
        pyrodrop.fit(
            model, guides.MeanField(model), (torch.ones(2, 1), torch.tensor([[0.2, 0.4], [0.3, INF]])), steps=1
        )


def test_open_ends_are_refused_by_other_likelihoods() -> None:
    x, y = torch.ones(2, 1), torch.tensor([[0.2, 0.4], [0.3, INF]])
    model = models.MLP([1, 2, 2], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian())
    run = pyrodrop.fit(model, guides.MeanField(model), (x, y.clamp(max=9)), steps=1, engine="pyro", progress=False)
    for call in (
        lambda: pyrodrop.fit(model, guides.MeanField(model), (x, y), steps=1),
        lambda: run.elbo(2, (x, y)),
        lambda: pyrodrop.to_arviz(run, (x, y)),
        lambda: run.predict(x, 2).log_density(y),
        lambda: compare({"a": run}, (x, y)),
    ):
        with pytest.raises(ValueError, match="y must be finite"):
            call()
