"""What a fit needs beside its data."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource
import torch
import pyrodrop
from pyrodrop import guides, likelihoods, models, priors

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if __import__("sys").platform == "darwin" else 1024)

torch.set_num_threads(1)

def fit(rows, steps):
    x = torch.rand(rows, 90)
    model = models.MLP([90, 20, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian())
    guide = guides.BernoulliDropout(model, 0.1)
    before = peak()
    pyrodrop.fit(model, guide, (x, x[:, :1]), steps=steps, batch_size=100, engine="traced", progress=False)
    return before, peak(), x.nbytes

fit(1000, 5)  # what the machinery itself takes
before, after, data = fit(ROWS, 20)
print((after - before) / data)
"""


@pytest.mark.parametrize("rows", [400_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_a_fit_holds_its_data_once(rows: int) -> None:
    """The growth of resident memory during a fit stays under half of the data, which the caller holds."""
    pytest.importorskip("resource")
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM.replace("ROWS", str(rows))], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 0.5
