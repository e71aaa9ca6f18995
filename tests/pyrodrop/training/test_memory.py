"""What a fit needs beside its data."""

from __future__ import annotations

import os
import platform
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


FAULTS = """
import resource
import torch
from pyrodrop.devices import keep_heap

torch.set_num_threads(1)
KEEP
for _ in range(3):
    [torch.ones(2**20) for _ in range(8)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    [torch.ones(2**20) for _ in range(8)]
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 10)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="says what glibc does")
def test_freed_memory_is_kept_for_the_next_step() -> None:
    """Without it a step of 32 MiB waits for thousands of page faults, one every 4 KiB, in two processes of three.

    In the others the heap happens to end in a piece that is in use, and cannot shrink.
    """
    assert all(_faults("keep_heap()") < 100 for _ in range(3))
    assert any(_faults("") > 2000 for _ in range(12))


def _faults(call: str) -> float:
    return float(_output(FAULTS.replace("KEEP", call)))


def _output(program: str) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    return subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True, env=environment
    ).stdout


DRAWS = (
    PEAK
    + """
import torch
import pyrodrop
from pyrodrop import guides, likelihoods, models, priors

torch.set_num_threads(1)
x = torch.rand(50_000, 1)
model = models.MLP([1, 8, 2], prior=priors.Gaussian(), likelihood=likelihoods.LIKELIHOOD())
guide = guides.BernoulliDropout(model, 0.1)
y = torch.rand(50_000, 2 // likelihoods.LIKELIHOOD().outputs(1))
fit = pyrodrop.fit(model, guide, pyrodrop.data.Dataset(x, y).standardized(), steps=1, engine="pyro", progress=False)
fit.predict(x, 60)  # what the machinery itself takes
before = peak()
prediction = fit.predict(x, 600)
print((peak() - before) / (2 * 4 * 600 * 50_000))
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ["Gaussian", "HeteroscedasticGaussian"])
def test_draws_take_little_more_than_their_outputs(likelihood: str) -> None:
    program = DRAWS.replace("LIKELIHOOD", likelihood)
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1.6
