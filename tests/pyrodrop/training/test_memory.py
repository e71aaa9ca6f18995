"""What a fit needs beside its data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# The peak of a process since it began: ru_maxrss would begin with that of the process that started it.
PEAK = """
import re
from pathlib import Path

def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""
pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the peak of a process is read from /proc"
)

PROGRAM = (
    PEAK
    + """
import torch
import pyrodrop
from pyrodrop import guides, likelihoods, models, priors

torch.set_num_threads(1)

def fit(rows, steps):
    x = torch.rand(rows, 90)
    model = models.MLP([90, 20, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))
    guide = guides.BernoulliDropout(model, 0.1)
    before = peak()
    pyrodrop.fit(model, guide, (x, x[:, :1]), steps=steps, batch_size=100, engine="traced", progress=False)
    return before, peak(), x.nbytes

fit(1000, 5)  # what the machinery itself takes
before, after, data = fit(ROWS, 20)
print((after - before) / data)
"""
)


@pytest.mark.more
@pytest.mark.parametrize("rows", [400_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_a_fit_holds_its_data_once(rows: int) -> None:
    """Memory grows by the copy of a `Dataset`, which is independent of the caller's tensors, and by less than half of it."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM.replace("ROWS", str(rows))], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 1.5
