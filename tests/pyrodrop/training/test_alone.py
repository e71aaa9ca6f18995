"""A fit in a process of its own: training by Pyro needs nothing of the accelerator, and holds its data once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = """
import sys
sys.modules["pyrodrop.compiled"] = None  # as if the folder were deleted
import pyro, torch, pyrodrop
import pyro.distributions as dist
from torch.utils.data import DataLoader, TensorDataset
from pyrodrop import guides, likelihoods, models, priors

x = torch.linspace(-1, 1, 24)[:, None]
data = (x, x**2)
model = models.MLP([1, 8, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(10.0))
options = {"engine": "pyro", "device": "cpu", "progress": False}
for guide in (guides.BernoulliDropout(model, 0.1), guides.MeanField(model), guides.GaussianDropout(model, alpha=0.1)):
    for more in ({"batch_size": 7}, {"estimator": "local", "checkpoint": f"{sys.argv[1]}/{type(guide).__name__}"}):
        fit = pyrodrop.fit(model, guide, data, steps=4, **options, **more)
        assert fit.settings["engine"] == "pyro" and fit.losses.isfinite().all()
fit = pyrodrop.fit(model, guide, DataLoader(TensorDataset(*data), 8), steps=10, **options)
fit.predict(x, 5), fit.elbo(5, data)
pyrodrop.Training(model, guide, data, engine="pyro", device="cpu").advance(5)

def program(y):
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(pyro.sample("mean", dist.Normal(0.0, 1.0)), 1.0), obs=y)

options["objective"] = pyro.infer.Trace_ELBO()
fit = pyrodrop.fit(program, pyro.infer.autoguide.AutoNormal(program), {"y": torch.ones(9)}, steps=10, **options)
fit.predict(num_samples=5)
try:
    pyrodrop.fit(model, guide, data, steps=10, engine="traced", device="cpu")
except ImportError:
    print("alone")
"""


def test_every_fit_by_pyro_runs_without_the_accelerator(tmp_path: object) -> None:
    done = subprocess.run([sys.executable, "-P", "-c", WITHOUT, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout == "alone\n", done.stderr


# The peak of a process since it began: ru_maxrss would begin with that of the process that started it.
PEAK = """
import re
from pathlib import Path

def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""

FIT = (
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
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is read from /proc")
@pytest.mark.parametrize("rows", [400_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_a_fit_holds_its_data_once(rows: int) -> None:
    """Memory grows by the copy of a `Dataset`, which is independent of the caller's tensors, and by less than half of it."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", FIT.replace("ROWS", str(rows))], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 1.5
