"""The tuning of many chains, against closed forms."""

import math

import numpy as np
import pytest
import torch

from pyrodrop.sampling.tuning import Fisher, Mass, Metric, StepSize, TrajectoryLength, chees_gradient, van_der_corput


def test_the_van_der_corput_sequence() -> None:
    assert [van_der_corput(n) for n in range(1, 8)] == [1 / 2, 1 / 4, 3 / 4, 1 / 8, 5 / 8, 3 / 8, 7 / 8]


@pytest.mark.parametrize("initial", [1e-3, 5.0])
def test_the_step_size_becomes_that_of_the_target(initial: float) -> None:
    """With the acceptance probability exp(-eps), the target 0.651 is met at eps = -ln 0.651."""
    size = StepSize(initial, 0.651)
    for _ in range(2000):
        size.learn(math.exp(-size.now))
    assert size.averaged == pytest.approx(-math.log(0.651), rel=0.02)


def test_the_step_size_stays_where_the_acceptance_falls_steeply() -> None:
    """Many chains reject all together at a multiple of eps: a = exp(-eps^8). The gain must not make ln eps oscillate."""
    size = StepSize(0.5, 0.651)
    want, seen = (-math.log(0.651)) ** (1 / 8), []
    for _ in range(50):
        size.learn(math.exp(-(size.now**8)))
        seen.append(size.now)
    assert max(abs(math.log(now / want)) for now in seen[10:]) < 0.1
    assert size.averaged == pytest.approx(want, rel=0.05)


def test_the_gradient_is_that_of_chees() -> None:
    """Trajectories of a normal target turn: q' = q cos t + p sin t. Pairs (q, p), (-q, -p) make all means 0."""
    generator = torch.Generator().manual_seed(0)
    half = torch.randn(2, 50, 3, dtype=torch.float64, generator=generator) * torch.tensor([1.0, 2.0, 3.0])
    (q, p), scale = torch.cat([half, -half], 1), torch.tensor([1.0, 4.0, 9.0], dtype=torch.float64)
    p = p / scale  # momenta of the mass matrix 1 / scale

    def ends(t: float) -> tuple[torch.Tensor, torch.Tensor]:
        return q * math.cos(t) + scale * p * math.sin(t), p * math.cos(t) - q / scale * math.sin(t)

    def chees(t: float) -> float:
        after = (ends(t)[0] ** 2 / scale).sum(1)
        return float(((after - (q**2 / scale).sum(1)) ** 2).mean()) / 4

    t, h = 0.7, 1e-5
    numerical = t * (chees(t + h) - chees(t - h)) / (2 * h)
    ours = chees_gradient(q, *ends(t), Metric(scale.sqrt()), torch.ones(100, dtype=torch.float64), t)
    assert ours == pytest.approx(numerical, rel=1e-7)


def test_a_trajectory_that_diverged_does_not_count() -> None:
    generator = torch.Generator().manual_seed(0)
    q, proposed, momentum = torch.randn(3, 9, 4, generator=generator)
    accepted = torch.rand(9, generator=generator)
    accepted[4] = 0
    wanted = chees_gradient(q, proposed, momentum, Metric(torch.ones(4)), accepted, 1.0)
    proposed[4], momentum[4] = math.nan, math.inf
    assert chees_gradient(q, proposed, momentum, Metric(torch.ones(4)), accepted, 1.0) == pytest.approx(
        wanted, rel=1e-5
    )
    assert math.isfinite(wanted)


def test_the_trajectory_length_climbs_and_stays_in_its_bounds() -> None:
    length = TrajectoryLength(1.0)
    for _ in range(300):
        length.learn(math.log(2 / length.now), 0.01, 100.0)  # largest at T = 2
    assert length.averaged == pytest.approx(2, rel=0.1)
    for _ in range(300):
        length.learn(1.0, 0.01, 3.0)
    assert length.now == pytest.approx(3)
    length.learn(math.nan, 0.01, 3.0)
    assert length.now == pytest.approx(3)
    length.rescale(0.5)
    assert length.now == pytest.approx(1.5)


@pytest.mark.parametrize("gradient", [0.0, 1e-170, 1e200, math.nan, math.inf])
def test_a_gradient_that_cannot_be_scaled_leaves_the_trajectory_length(gradient: float) -> None:
    length = TrajectoryLength(2.0)
    length.learn(gradient, 0.1, 10.0)
    assert length.now == pytest.approx(2.0)


def test_the_mass_matrix_of_networks_is_the_variance() -> None:
    generator = torch.Generator().manual_seed(0)
    scale, mass = torch.tensor([0.1, 1.0, 30.0]), Mass(torch.zeros(64, 3))
    drawn = [5 + scale * torch.randn(64, 3, generator=generator) for _ in range(400)]
    for q in drawn:
        mass.learn(q, q)
    weights = 0.98 ** np.arange(400)[::-1]
    values = torch.stack(drawn).double().numpy()
    mean = np.average(values.mean(1), axis=0, weights=weights)
    variance = np.average(((values - mean) ** 2).mean(1), axis=0, weights=weights)
    few = 5 / 1005
    want = (1 - few) * variance + few * 1e-3
    np.testing.assert_allclose(mass.metric().scale.square().numpy(), want, rtol=1e-4)


def gaussian(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A covariance with scales of three orders of magnitude and two strong correlations, and its inverse."""
    generator = torch.Generator().manual_seed(1)
    directions = torch.randn(size, 2, dtype=torch.float64, generator=generator)
    scales = torch.logspace(-1, 2, size, dtype=torch.float64)
    covariance = scales[:, None] * (torch.eye(size) + 20 * directions @ directions.T) * scales
    return covariance, torch.linalg.inv(covariance)


@pytest.mark.parametrize("spread", [1.0, 50.0])
def test_the_metric_of_a_gaussian_is_its_covariance_wherever_the_chains_are(spread: float) -> None:
    """dU/dq = C^-1 (q - m): exact up to the shrinkage, although the points have another spread and other means."""
    covariance, precision = gaussian(8)
    root = torch.linalg.cholesky(covariance)
    generator, fisher = torch.Generator().manual_seed(2), Fisher(8)
    centres = 100 * torch.randn(16, 8, dtype=torch.float64, generator=generator)
    for _ in range(400):
        q = centres + spread * torch.randn(16, 8, dtype=torch.float64, generator=generator) @ root.T
        fisher.learn(q, (q - 3.0) @ precision, torch.zeros(16))
    metric, z = fisher.metric(), torch.eye(8, dtype=torch.float64)
    eigenvalues = torch.linalg.eigvals(metric.velocity(z) @ precision).real
    assert bool((eigenvalues.log().abs() < math.log(3)).all())  # those between 1/2 and 2 stay
    bare = torch.linalg.eigvals(covariance.diagonal()[:, None] * precision).real
    assert float(eigenvalues.max() / eigenvalues.min()) < 0.02 * float(bare.max() / bare.min())


def test_the_scale_is_the_quotient_of_standard_deviations_in_the_older_window() -> None:
    """sqrt(sd(q) / sd(dU/dq)), of deviations from the mean of each chain."""
    generator, fisher = torch.Generator().manual_seed(0), Fisher(1)
    q, g = torch.randn(2, 30, 4, 3, dtype=torch.float64, generator=generator) * torch.tensor([0.1, 1.0, 30.0])
    for each in zip(q + 1000 * torch.arange(4)[:, None], g, strict=True):
        fisher.learn(*each, torch.zeros(4))
    want = (q.var(0, correction=0).mean(0) / g.var(0, correction=0).mean(0)) ** 0.25
    torch.testing.assert_close(fisher.metric(low_rank=False).scale, want)
    fisher.turn()
    torch.testing.assert_close(fisher.metric(low_rank=False).scale, want)
    for each in zip(q[:9], g[:9], strict=True):
        fisher.learn(*each, torch.zeros(4))
    fisher.turn()
    want = (q[:9].var(0, correction=0).mean(0) / g[:9].var(0, correction=0).mean(0)) ** 0.25
    torch.testing.assert_close(fisher.metric(low_rank=False).scale, want)


def test_roots_of_the_metric_belong_together() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.linalg.qr(torch.randn(5, 2, dtype=torch.float64, generator=generator)).Q
    values = torch.tensor([9.0, 0.2], dtype=torch.float64)
    metric, z = (
        Metric(torch.rand(5, dtype=torch.float64, generator=generator) + 0.5, vectors, values),
        torch.eye(5).double(),
    )
    inverse = metric.velocity(z)
    middle = torch.eye(5) + vectors @ (values - 1).diag() @ vectors.T
    torch.testing.assert_close(inverse, metric.scale[:, None] * middle * metric.scale)
    momenta = metric.root(z, -0.5) / metric.scale  # of standard normal numbers in rows
    torch.testing.assert_close(momenta.T @ momenta, torch.linalg.inv(inverse))
    torch.testing.assert_close(metric.log_size(), float(torch.logdet(inverse)) / 5)
    assert Metric(metric.scale).root(z, 0.5) is z
