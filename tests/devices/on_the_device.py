"""Fits, predictions and samples on the device that `tests/devices/pretended.py` makes, each beside the same on the CPU.

`tests/devices/test_devices.py` runs this file in a process of its own. Random numbers are the same on both, so results
are, too, up to rounding.
"""

from __future__ import annotations

import copy
from typing import Any, get_args

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, metrics, models, priors
from pyrodrop.analysis.lab.programs import PROGRAMS
from pyrodrop.analysis.lab.programs import on as on_a_device
from pyrodrop.training.settings import Estimator
from tests.devices.pretended import NAME
from tests.guides.test_guides import GUIDES, PRIORS, REFUSED, REFUSED_ESTIMATORS, TYPE_A, _quiet
from tests.pyrodrop.prediction.test_module import LIKELIHOODS

ESTIMATORS = get_args(Estimator)
ENGINES = ("pyro", "traced")
X = torch.randn(20, 3, generator=torch.Generator().manual_seed(1))
Y = X[:, :1].sin()
IMAGES, LABELS = torch.randn(12, 1, 8, 8, generator=torch.Generator().manual_seed(2)), torch.arange(12) % 3
pytestmark = pytest.mark.filterwarnings("ignore")


NETWORKS: dict[str, tuple[Any, Tensor, Tensor]] = {
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)),
        IMAGES, LABELS,
    ),
    "batch norm": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)),
        IMAGES, LABELS,
    ),
}  # fmt: skip


def small(
    prior: priors.Prior | None = None, bias_prior: priors.Prior | None = None, likelihood: Any = None, outputs: int = 1
) -> models.NetworkModel:
    likelihood, prior = likelihood or likelihoods.Gaussian(4.0, learned=True), prior or priors.Gaussian()
    return models.MLP([3, 6, outputs], "tanh", prior=prior, bias_prior=bias_prior, likelihood=likelihood)


def fitted(device: str, make: Any, guide: Any, data: Any = (X, Y), **settings: Any) -> Any:
    model = make()
    usual: dict[str, Any] = {"steps": 3, "batch_size": 8, "lr": 1e-2, "progress": False, "device": device}
    train = pyrodrop.fit_replicates if "count" in settings else pyrodrop.fit
    return train(model, guide(model), data, **usual | settings)


def same(there: Tensor, here: Tensor) -> None:
    torch.testing.assert_close(there.cpu(), here, rtol=1e-4, atol=1e-4, equal_nan=True)


def both(make: Any, guide: Any, data: Any = (X, Y), **settings: Any) -> tuple[Any, Any]:
    """The fits on the device and on the CPU, whose losses, ELBOs and predictions are the same."""
    fits = tuple(fitted(device, make, guide, copy.deepcopy(data), **settings) for device in (NAME, "cpu"))
    there, here = fits
    assert {p.device.type for p in there.guide.parameters()} <= {NAME}
    assert there.settings["engine"] == here.settings["engine"]
    same(there.history, here.history)
    return there, here


def evaluated(there: Any, here: Any, x: Tensor) -> None:
    assert there.elbo(2).value == pytest.approx(here.elbo(2).value, rel=1e-4, abs=1e-3)
    got, other = (fit.predict(x, 3) for fit in (there, here))
    same(got.mean, other.mean)
    assert there.predict(x.to(NAME), 3).mean.device.type == NAME


def prior_of(guide: str) -> priors.Prior:
    return _quiet(priors.LogUniform) if guide in TYPE_A else priors.Gaussian()


@pytest.mark.few(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("guide", GUIDES)
def test_every_posterior(guide: str, engine: str) -> None:
    there, here = both(lambda: small(prior_of(guide)), GUIDES[guide], engine=engine)
    if engine == "traced":
        evaluated(there, here, X)


@pytest.mark.few(2)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("guide", GUIDES)
def test_every_estimator(guide: str, estimator: str) -> None:
    """A trace is compared with Pyro's handlers before the first step, so this is the test of both."""
    if (guide, estimator) in REFUSED_ESTIMATORS:
        pytest.skip("refused")
    both(lambda: small(prior_of(guide)), GUIDES[guide], engine="traced", estimator=estimator, steps=2)


@pytest.mark.few(2)
@pytest.mark.parametrize("guide", ["BernoulliDropout(theta)", "MeanField", "SparseDropout", "from_noise"])
@pytest.mark.parametrize("prior", PRIORS)
def test_every_prior(prior: str, guide: str) -> None:
    if (guide, prior) in REFUSED:
        pytest.skip("refused")
    there, here = both(lambda: small(PRIORS[prior], PRIORS[prior]), GUIDES[guide], engine="traced")
    assert there.elbo(2).value == pytest.approx(here.elbo(2).value, rel=1e-4, abs=1e-3)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_every_likelihood(name: str) -> None:
    likelihood, outputs, summaries = LIKELIHOODS[name]
    y = (1 + X.sum(1, keepdim=True).abs()).round()
    y = torch.arange(20) % 3 if "probabilities" in summaries else y
    y = (y[:, None] > 1).float() if name == "bernoulli" else y
    there, here = both(
        lambda: small(likelihood=copy.deepcopy(likelihood), outputs=outputs), guides.MeanField, (X, y), engine="traced"
    )
    evaluated(there, here, X)
    got, other = (fit.predict(x, 5) for fit, x in ((there, X.to(NAME)), (here, X)))
    for what in summaries:
        if what in ("mean", "sd"):
            same(getattr(got, what), getattr(other, what))
        if what == "quantiles":
            same(got.quantile([0.3, 0.6]), other.quantile([0.3, 0.6]))
    score = metrics.classification_scores if "probabilities" in summaries else metrics.regression_scores
    if not name.startswith("missing"):
        scores, others = score(got, y.to(NAME)), score(other, y)
        assert scores == pytest.approx(others, rel=1e-3, abs=1e-3, nan_ok=True)


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("network", NETWORKS)
def test_networks(network: str, engine: str) -> None:
    net, x, y = NETWORKS[network]
    likelihood = likelihoods.Categorical() if y is LABELS else likelihoods.Gaussian(4.0)

    def make() -> Any:
        torch.manual_seed(0)
        return models.from_module(net(), prior=priors.Gaussian(), likelihood=likelihood)

    for guide in (lambda m: guides.BernoulliDropout(m, 0.3), guides.MeanField):
        there, here = both(make, guide, (x, y), engine=engine)
        if engine == "traced":
            evaluated(there, here, x)


@pytest.mark.few(1)
@pytest.mark.parametrize("guide", ["Point", "MeanField", "ConcreteDropout", "LowRank"])
def test_replicates(guide: str) -> None:
    """Without masks, which a stack on a GPU compares with other numbers than one on a CPU."""
    there, here = (fitted(device, small, GUIDES[guide], count=3, engine="traced") for device in (NAME, "cpu"))
    for of_device, other in zip(there, here, strict=True):
        same(of_device.history, other.history)
        same(of_device.predict(X, 2).mean, other.predict(X, 2).mean)


@pytest.mark.more
def test_samples() -> None:
    model = models.MLP([3, 2, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0))
    options: dict[str, Any] = {
        "chains": 4,
        "draws": 4,
        "tune": 100,
        "max_steps": 10,
        "engine": "traced",
        "progress": False,
    }
    got, other = (pyrodrop.sample(model, (X, Y), device=device, **options) for device in (NAME, "cpu"))
    for name, values in other.samples.items():
        assert got.samples[name].shape == values.shape
        same(got.samples[name][0, 0], values[0, 0])
    assert torch.isfinite(got.predict(X, 4).mean).all()


@pytest.mark.few(2)
@pytest.mark.parametrize("moved", [True, False], ids=["moved", "not moved"])
@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in ("markov", "network")])
def test_every_program(name: str, moved: bool) -> None:
    """Also one whose modules the user has not moved. The first one left out has gates, the other tensors in its prior."""
    program, histories = PROGRAMS[name], []
    for device in (NAME, "cpu"):
        pyro.clear_param_store()
        model, guide, data = on_a_device(program.make(torch.float32), device if moved else "cpu")
        loss = program.loss()
        run = pyrodrop.fit(model, guide, data, steps=4, objective=loss, lr=0.01, engine="traced", device=device)
        assert run.settings["engine"] == "traced"
        histories.append(run.history)
    same(*histories)


def test_a_tensor_that_is_made_elsewhere_raises() -> None:
    """The mistakes that this file looks for: factories without a device, in the draws and the regulariser of a posterior."""
    good = {"draw": lambda loc, e: loc * e, "regularizer": lambda loc: loc.square().sum()}

    def noise(loc: Tensor) -> Any:
        return dist.Normal(loc.new_ones(()), 0.1).expand(loc.shape).to_event(loc.dim())

    for bad in (
        {"draw": lambda loc, e: loc * e + torch.zeros(loc.shape)},
        {"regularizer": lambda loc: (loc - torch.zeros(loc.shape)).square().sum()},
    ):
        parts = good | bad
        both(small, guides.from_noise(good["draw"], noise, regularizer=good["regularizer"]))
        fitted("cpu", small, guides.from_noise(parts["draw"], noise, regularizer=parts["regularizer"]))
        with pytest.raises(Exception, match=r"two devices"):
            fitted(NAME, small, guides.from_noise(parts["draw"], noise, regularizer=parts["regularizer"]))
