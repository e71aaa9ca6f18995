"""Training by Pyro is the definition, and needs nothing of the accelerator."""

from __future__ import annotations

import subprocess
import sys

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
fit.predict(x, 5), fit.elbo(5)
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
