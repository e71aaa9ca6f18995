"""Moments of a prediction whose draws are not kept."""

from __future__ import annotations

import subprocess
import sys

import pyro.distributions as dist
import pytest
import torch

from pyrodrop.prediction.moments import RunningMoments

pytestmark = pytest.mark.usefixtures("float64")


def test_chunks_merge_to_the_moments_of_all() -> None:
    """Uneven chunks of draws and points, about an offset at which raw squares lose every digit."""
    draws = torch.randn(50, 7, 2) * torch.tensor([1e-3, 1.0]) + 1e8
    running = RunningMoments(7)
    for a, b in ((0, 1), (1, 20), (20, 50)):
        for c, d in ((0, 4), (4, 7)):
            running.add(c, dist.Normal(draws[a:b, c:d], 0.0, validate_args=False).to_event(1), draws[a:b, c:d])
    got = running.result(draws)
    torch.testing.assert_close(got.mean, draws.mean(0), rtol=1e-14, atol=0)
    for variance in (got.variance, got.spread**2):
        torch.testing.assert_close(variance, draws.var(0, correction=0), rtol=1e-4, atol=0)  # draws have 8 digits
    raw = (draws**2).mean(0) - draws.mean(0) ** 2
    assert not torch.allclose(raw, got.variance, rtol=0.5)


def test_a_function_that_is_not_the_mean_has_a_spread_of_its_own() -> None:
    """f and E[y | f] agree in one tile and differ in the next: each keeps its own."""
    running, f = RunningMoments(2), torch.randn(6, 2, 1)
    mean = torch.cat([f[:3], f[3:] * 2])
    for rows in (slice(0, 3), slice(3, 6)):
        running.add(0, dist.Normal(mean[rows], 1.0).to_event(1), f[rows])
    got = running.result(f)
    torch.testing.assert_close(got.spread, f.std(0, correction=0))
    torch.testing.assert_close(got.variance, mean.var(0, correction=0) + 1)


MEMORY = """
import re, sys, torch, pyrodrop
from pathlib import Path
from pyrodrop import guides, likelihoods, models, priors
torch.set_num_threads(1)
def peak():  # since the process began: ru_maxrss would begin with that of the process that started it
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
model = models.MLP([13, 50, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))
fit = pyrodrop.Fit(model, guides.BernoulliDropout(model, 0.5, mask_input=False), None, torch.zeros(1, 3), {})
x = torch.randn(int(sys.argv[1]), 13)
fit.predict(x[:100], 10, keep="moments")
before = peak()
fit.predict(x, int(sys.argv[2]), keep="moments")
print(peak() - before)
"""


@pytest.mark.more
@pytest.mark.parametrize(
    ("points", "draws", "limit"),
    [
        (200_000, 200, 1e8),  # the draws alone would be 1.6e8 bytes
        pytest.param(1_000_000, 1_000, 1e9, marks=pytest.mark.slow),  # and here 4e9
    ],
)
def test_moments_take_memory_of_the_points_alone(points: int, draws: int, limit: float) -> None:
    """Peak resident memory of a process of its own, in bytes above what it had before."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", MEMORY, str(points), str(draws)], capture_output=True, text=True, check=True
    )
    assert 0 <= float(done.stdout) < limit
