"""Distances between predictions, against closed forms, scipy's integrals and optimal assignments."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import linear_sum_assignment
from scipy.stats import laplace, norm

from pyrodrop.analysis.comparison import total_variation as tv
from pyrodrop.analysis.comparison.between_points import correlation_distance, covariance_distance
from pyrodrop.analysis.comparison.spreads import spread, spread_ratio
from pyrodrop.analysis.comparison.wasserstein import wasserstein
from pyrodrop.prediction.prediction import Prediction


def gaussians(loc: torch.Tensor, scale: Any, family: Any = dist.Normal) -> Prediction:
    """A prediction with components of these locations ``[T, N]`` and scales."""
    loc = loc.double()[..., None]
    scale = torch.as_tensor(scale, dtype=torch.float64)
    scale = (scale[..., None] if scale.dim() > 1 else scale).expand_as(loc)
    return Prediction(f=loc, distribution=family(loc, scale).to_event(1))


def labels(probabilities: list[Any]) -> Prediction:
    p = torch.tensor(probabilities)
    return Prediction(f=p.log(), distribution=dist.Categorical(p))


def mixture(prediction: Prediction, point: int, family: Any) -> Any:
    loc, scale = (
        part[:, point, 0].numpy()
        for part in (prediction.distribution.base_dist.loc, prediction.distribution.base_dist.scale)
    )
    return lambda y: family.pdf(y, loc, scale).mean()


def integral(one: Prediction, other: Prediction, point: int, families: tuple[Any, Any] = (norm, norm)) -> float:
    """1/2 int |p - q| by scipy, piece by piece."""
    p, q = mixture(one, point, families[0]), mixture(other, point, families[1])
    locs = [x.distribution.base_dist.loc[:, point, 0] for x in (one, other)]
    scales = [x.distribution.base_dist.scale[:, point, 0].max() for x in (one, other)]
    reach = 12 * float(max(scales))
    ends = np.linspace(float(min(x.min() for x in locs)) - reach, float(max(x.max() for x in locs)) + reach, 60)
    pieces = [quad(lambda y: abs(p(y) - q(y)), a, b, limit=60, epsabs=1e-7)[0] for a, b in pairwise(ends)]
    return sum(pieces) / 2


def test_total_variation_of_two_gaussians_is_its_closed_form() -> None:
    d = torch.linspace(0, 12, 61)
    for scale, origin in ((1.0, 0.0), (0.03, 2000.0)):
        found = tv.total_variation(
            gaussians(torch.full((1, 61), origin), scale), gaussians(origin + scale * d.double()[None], scale)
        )[:, 0]
        want = torch.tensor(2 * norm.cdf(d.double() / 2) - 1)
        assert float((found - want).max()) < 1e-9  # a lower bound
        assert float((want - found).max()) < 1e-3
    one, other = (gaussians(torch.tensor([[0.0, m]]), 1.0, dist.Laplace) for m in (0.0, 1.5))
    assert tv.total_variation(one, other)[1, 0] == pytest.approx(1 - math.exp(-0.75), abs=1e-3)


@pytest.mark.more
@pytest.mark.parametrize(
    "families", [(dist.Normal, dist.Normal), (dist.Laplace, dist.Laplace), (dist.Normal, dist.Laplace)]
)
def test_total_variation_of_mixtures_is_scipys_integral(families: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of mixtures with different numbers of components and scales, at points of different widths."""
    torch.manual_seed(0)
    width = torch.tensor([0.01, 1.0, 3.0, 0.5])
    one = gaussians(300 + width * torch.randn(7, 4), 0.2 + torch.rand(7, 4), families[0])
    other = gaussians(300.3 + width * torch.randn(5, 4) ** 2, 0.2 + torch.rand(5, 4), families[1])
    scipys = tuple({dist.Normal: norm, dist.Laplace: laplace}[family] for family in families)
    want = [integral(one, other, point, scipys) for point in range(4)]
    found = tv.total_variation(one, other)[:, 0]
    np.testing.assert_allclose(found.numpy(), want, atol=2e-3)
    monkeypatch.setattr(tv, "_NUMBERS", 1000)  # one point, and some components, at a time
    np.testing.assert_allclose(tv.total_variation(one, other)[:, 0].numpy(), want, atol=2e-3)
    assert float(tv.total_variation(one, one).max()) < 1e-12


def test_total_variation_of_a_narrow_component_beside_a_wide_one() -> None:
    """Half of each mixture is N(0, 1), which both have; the other halves are two Gaussians with the scale 0.02."""
    scales = torch.tensor([[1.0], [0.02]])
    one, other = (gaussians(torch.tensor([[0.0], [at]]), scales) for at in (0.3, 0.33))
    for pair in ((one, other), (other, one)):
        assert float(tv.total_variation(*pair)) == pytest.approx((2 * norm.cdf(0.75) - 1) / 2, abs=1e-3)
    wide = gaussians(torch.zeros(1, 1), 1.0)
    crossing = norm.cdf(-0.02 * math.sqrt(2 * math.log(50)))  # of N(0, 1) left of where it meets N(0, 0.02^2)
    want = 2 * norm.cdf(math.sqrt(2 * math.log(50))) - 1 - (1 - 2 * crossing)
    narrow = gaussians(torch.zeros(1, 1), 0.02)
    assert float(tv.total_variation(wide, narrow)) == pytest.approx(want, abs=1e-3)
    for pair in ((one, wide), (wide, one)):  # only one of the two has a narrow component
        y = np.linspace(-6, 6, 2_000_001)
        halves = norm.pdf(y, 0, 1) - norm.pdf(y, 0.3, 0.02)
        assert float(tv.total_variation(*pair)) == pytest.approx(np.trapezoid(abs(halves), y) / 4, abs=1e-3)


def test_total_variation_of_narrow_noise_is_a_lower_bound_that_says_so() -> None:
    torch.manual_seed(0)
    wide = torch.rand(20, 2) * torch.tensor([1e4, 1.0])
    one, other = gaussians(wide, 0.1), gaussians(wide + 0.1, 0.1)
    assert tv.coarse_points(one, other) == 1
    assert tv.coarse_points(labels([[[0.5, 0.5]]]), labels([[[0.5, 0.5]]])) == 0
    assert 0 <= float(tv.total_variation(one, other)[0, 0]) <= 2 * norm.cdf(0.5) - 1 + 1e-9


def test_total_variation_of_classes_by_hand() -> None:
    one = labels([[[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]], [[0.3, 0.3, 0.4], [1.0, 0.0, 0.0]]])
    other = labels([[[0.1, 0.3, 0.6], [0.0, 0.5, 0.5]]])
    torch.testing.assert_close(tv.total_variation(one, other), torch.tensor([0.3, 1.0], dtype=torch.float64))
    yes, no = (Prediction(torch.zeros(2, 3), dist.Bernoulli(torch.full((2, 3), p))) for p in (0.9, 0.25))
    torch.testing.assert_close(tv.total_variation(yes, no), torch.full((3,), 0.65, dtype=torch.float64))


def test_total_variation_of_every_output_by_itself() -> None:
    loc = torch.zeros(1, 2, 3)
    shifted = loc + torch.tensor([0.0, 1.0, 2.0])
    one, other = (Prediction(f, dist.Normal(f, 1.0).to_event(1)) for f in (loc, shifted))
    want = torch.tensor(2 * norm.cdf([0.0, 0.5, 1.0]) - 1).expand(2, 3)
    torch.testing.assert_close(tv.total_variation(one, other), want, atol=1e-3, rtol=0)


def test_total_variation_refuses_what_it_cannot_integrate() -> None:
    with pytest.raises(ValueError, match=r"same kind of y.*Normal of shape \[2, 1\] and Normal of shape \[3, 1\]"):
        tv.total_variation(gaussians(torch.zeros(1, 2), 1.0), gaussians(torch.zeros(1, 3), 1.0))
    with pytest.raises(ValueError, match=r"same kind of y.*Categorical of shape \[1\] and Normal of shape \[1, 1\]"):
        tv.total_variation(labels([[[0.5, 0.5]]]), gaussians(torch.zeros(1, 1), 1.0))


@pytest.mark.parametrize(("ours", "theirs"), [(12, 12), (12, 8), (5, 9), (1, 6)])
def test_wasserstein_is_the_best_assignment(ours: int, theirs: int) -> None:
    """Of the samples, each repeated so that both sets have as many; scipy's solver knows nothing of sorting."""
    torch.manual_seed(ours)
    f, g = torch.randn(ours, 3, 2), 1 + 2 * torch.randn(theirs, 3, 2)
    found = wasserstein(f, g)
    assert found.shape == (3, 2)
    many = math.lcm(ours, theirs)
    for n in range(3):
        for d in range(2):
            a = np.repeat(f[:, n, d].double().numpy(), many // ours)
            b = np.repeat(g[:, n, d].double().numpy(), many // theirs)
            costs = (a[:, None] - b[None]) ** 2
            assert float(found[n, d]) == pytest.approx(math.sqrt(costs[linear_sum_assignment(costs)].mean()))


@pytest.mark.parametrize(("samples", "others", "points"), [(50, 40, 6), (5, 7, 20), (7, 5, 20), (2, 2, 2)])
def test_covariance_and_correlation_are_numpys(samples: int, others: int, points: int) -> None:
    """With more samples than points, and with fewer, where no matrix over the points is formed."""
    rng = np.random.default_rng(samples)
    f, g = (rng.normal(size=(s, points, 2)) @ rng.normal(size=(2, 2)) + 100 for s in (samples, others))
    covariances, correlations = [], []
    for d in range(2):
        a, b = np.cov(f[..., d].T), np.cov(g[..., d].T)
        covariances.append(np.linalg.norm(a - b) / np.linalg.norm(b))
        differences = np.corrcoef(f[..., d].T) - np.corrcoef(g[..., d].T)
        off = ~np.eye(points, dtype=bool)
        correlations.append(math.sqrt((differences[off] ** 2).mean()))
    assert covariance_distance(torch.tensor(f), torch.tensor(g)) == pytest.approx(np.mean(covariances))
    assert correlation_distance(torch.tensor(f), torch.tensor(g)) == pytest.approx(np.mean(correlations), abs=1e-7)


def test_covariance_of_a_function_that_does_not_vary() -> None:
    torch.manual_seed(0)
    g, point = torch.randn(9, 4), torch.randn(1, 4).expand(9, 4)
    assert covariance_distance(point, g) == pytest.approx(1)
    assert correlation_distance(point, g) is None
    assert covariance_distance(g, point) is None
    some = g.clone()
    some[:, 2] = 0.1
    assert correlation_distance(g, some) is None
    assert correlation_distance(g[:, :1], g[:, 1:2]) is None


@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 3), (4, 2, 3)])
def test_the_ratio_of_spreads_is_numpys(shape: tuple[int, ...]) -> None:
    """Root of the mean variance over the outputs, whatever the mean and the number of samples."""
    rng = np.random.default_rng(0)
    f, g = (rng.normal(size=(s, *shape)) * rng.uniform(0.1, 9, size=shape) + 50 for s in (40, 25))
    variances = [np.var(x, axis=0, ddof=1).reshape(4, -1).mean(1) for x in (f, g)]
    found = spread_ratio(torch.tensor(f), torch.tensor(g))
    np.testing.assert_allclose(found.numpy(), np.sqrt(variances[0] / variances[1]), rtol=1e-10)


def test_there_is_no_ratio_to_a_reference_that_does_not_vary() -> None:
    """Also where samples are equal and their mean is rounded; a function without spread has the ratio 0."""
    g = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    same = torch.full((1000, 3), 0.1, dtype=torch.float64)
    assert spread_ratio(g, same).isnan().all()
    assert spread_ratio(same, same).isnan().all()
    assert spread_ratio(same, g).tolist() == [0, 0, 0]
    assert spread(g[:1]).isnan().all()
    assert spread(g[:1]).shape == (3,)
