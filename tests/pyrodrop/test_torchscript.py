"""Where PyTorch no longer has TorchScript, Pyro is imported and fits are made, if pyrodrop is imported before Pyro."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from pyrodrop.networks.sites import parameters_of
from pyrodrop.torchscript import stand_in

# PyTorch's own functions call is_scripting, which stays, and where a network is called those of `own`, which come back.
HIDDEN = """
import sys, torch
own = {name: getattr(torch.jit, name) for name in ("is_tracing", "ScriptModule", "ScriptFunction")}
gone = "script trace script_if_tracing TracerWarning script_method trace_module optimized_execution CompilationUnit"
for name in (*gone.split(), *own):
    delattr(torch.jit, name)
del torch._C._get_tracing_state
"""
FITS = """
import pyro, pyrodrop, pyro.contrib.gp
import pyro.distributions as dist
from pyro.infer import JitTrace_ELBO, SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal

def model(y):
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(y), subsample_size=5) as rows:
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y[rows])

y = torch.linspace(-1, 1, 20)
for engine in ("pyro", "traced"):
    fit = pyrodrop.fit(model, AutoNormal(model), {"y": y}, steps=20, engine=engine, objective=Trace_ELBO(), progress=False)
    print(fit.settings["engine"], bool(fit.losses.isfinite().all()), len(fit.predict(num_samples=3, sites=["mean"])["mean"]))
jitted = {"steps": 1, "objective": JitTrace_ELBO()}
svi = SVI(model, AutoNormal(model), pyro.optim.Adam({"lr": 0.1}), jitted["objective"])
for step in (lambda: svi.step(y), lambda: pyrodrop.fit(model, AutoNormal(model), {"y": y}, **jitted)):
    try:
        step()
    except NotImplementedError as error:
        print(error)
vars(torch.jit).update(own)
from pyrodrop import guides, likelihoods, models, priors
net = models.MLP([1, 4, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0))
fit = pyrodrop.fit(net, guides.MeanField(net), (y[:, None], y[:, None]), steps=20, engine="traced", progress=False)
print(fit.settings["engine"], bool(fit.losses.isfinite().all()))
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", HIDDEN + code], capture_output=True, text=True)


@pytest.mark.few(1)
@pytest.mark.parametrize("first", ["import pyrodrop", "from pyrodrop.priors import Gaussian"])
def test_fits_without_torchscript(first: str) -> None:
    done = run(f"{first}\n{FITS}")
    assert done.returncode == 0, done.stderr
    by_pyro, recorded, jitted, fitted, network = done.stdout.splitlines()
    assert by_pyro == "pyro True 3"
    assert recorded == "traced True 3"
    assert fitted == jitted
    assert jitted.startswith("PyTorch has no torch.jit.trace here, which Pyro's jitted ELBOs")
    assert network == "traced True"


@pytest.mark.more
def test_pyro_alone_is_not_imported_then() -> None:
    assert "has no attribute 'script'" in run("import pyro, pyrodrop").stderr


def test_nothing_is_replaced_where_pytorch_has_it() -> None:
    before = dict(vars(torch.jit)), torch._C._get_tracing_state
    stand_in()
    assert (dict(vars(torch.jit)), torch._C._get_tracing_state) == before


def test_a_pytorch_without_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.jit, "ScriptModule")
    assert list(parameters_of(torch.nn.Linear(1, 1)).trained) == ["weight", "bias"]
    monkeypatch.delattr(torch, "jit")
    stand_in()
    assert torch.jit.script_if_tracing(len) is len
    assert issubclass(torch.jit.TracerWarning, Warning)
