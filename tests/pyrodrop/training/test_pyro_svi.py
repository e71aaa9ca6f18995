"""Models and guides in Pyro's own inference: optimisers by name, saved optimiser states, and what is refused."""

from __future__ import annotations

import copy
import gc
from pathlib import Path
from typing import Any

import pyro
import pyro.optim
import pytest
import torch
from pyro.infer import SVI, JitTrace_ELBO, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.infer.mcmc.util import initialize_model
from torch import Tensor

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors

pytestmark = pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.*deprecated")
X = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)
GUIDES: dict[str, Any] = {
    "point": guides.Point,
    "bernoulli": lambda m: guides.BernoulliDropout(m, 0.3, mask_input=False),
    "mean field": guides.MeanField,
    "type A": lambda m: guides.GaussianDropout(m, alpha=0.2),
    "low rank": lambda m: guides.LowRank(m, 2),
    "autonormal": AutoNormal,
}


def model_of(seed: int = 0, **settings: Any) -> models.NetworkModel:
    torch.manual_seed(seed)
    return models.MLP([3, 4, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(10.0), **settings)


@pytest.mark.parametrize("name", ["mean field", "autonormal"])
def test_what_torch_jit_would_trace_is_refused(name: str) -> None:
    """A jitted ELBO in SVI and in fit, and a jitted potential, with what does the same."""
    model = model_of()
    guide, loss = GUIDES[name](model), JitTrace_ELBO(ignore_jit_warnings=True)
    calls = (
        lambda: SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), loss).step(X, Y),
        lambda: pyrodrop.fit(model, guide, (X, Y), objective=loss, steps=1),
        lambda: initialize_model(model, (X, Y), jit_compile=True)[1](model.weight_sites()),
    )
    for call in calls:
        with pytest.raises((NotImplementedError, ValueError), match=r"torch\.jit cannot trace .* compile_svi"):
            call()
    assert SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO()).step(X, Y) > 0


@pytest.mark.parametrize("name", ["mean field", "autonormal"])
def test_a_saved_optimiser_goes_on_where_it_was(name: str, tmp_path: Path) -> None:
    model = model_of()
    guide = GUIDES[name](model)
    first: Any = pyro.optim.Adam({"lr": 0.01})
    svi = SVI(model, guide, first, Trace_ELBO())
    for _ in range(5):
        svi.step(X, Y)
    first.save(str(tmp_path / "optimiser"))
    assert None not in first.get_state()
    kept = copy.deepcopy([p.detach() for p in (*guide.parameters(), *model.parameters())])

    def go_on(optimiser: Any) -> list[Tensor]:
        with torch.no_grad():
            for parameter, value in zip((*guide.parameters(), *model.parameters()), kept, strict=True):
                parameter.copy_(value)
        torch.manual_seed(7)
        again = SVI(model, guide, optimiser, Trace_ELBO())
        for _ in range(3):
            again.step(X, Y)
        return [p.detach().clone() for p in (*guide.parameters(), *model.parameters())]

    loaded: Any = pyro.optim.Adam({"lr": 0.01})
    loaded.load(str(tmp_path / "optimiser"))
    resumed = go_on(loaded)
    for one, two in zip(resumed, go_on(first), strict=True):
        assert torch.equal(one, two)


def test_names_keep_no_parameter_alive() -> None:
    model = model_of()
    guide = guides.MeanField(model)
    SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO()).step(X, Y)
    names: Any = pyro.get_param_store()._param_to_name
    assert len(names) == len([*guide.parameters(), *model.parameters()])
    del model, guide
    gc.collect()
    assert not names
    assert len(pyro.get_param_store()) == 0


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
@pytest.mark.parametrize(
    ("prior", "make"),
    [(priors.LogUniform, lambda m: guides.GaussianDropout(m, kind="A", alpha=0.2)), (priors.ARD, guides.ARDDropout)],
)
@pytest.mark.filterwarnings("ignore:.*improper")
def test_what_has_no_density_is_trained_by_fit_as_the_error_says(prior: Any, make: Any, elbo: Any) -> None:
    model = models.MLP([3, 5, 1], prior=prior(), likelihood=likelihoods.Gaussian(4.0))
    svi = SVI(model, make(model), pyro.optim.Adam({"lr": 1e-3}), elbo())
    with pytest.raises(
        NotImplementedError, match=r"train with\s+pyrodrop\.fit, which needs no density as Pyro's ELBOs do"
    ):
        svi.step(X, Y)
    assert pyrodrop.fit(model, make(model), (X, Y), steps=3, engine="pyro", progress=False).history.isfinite().all()
