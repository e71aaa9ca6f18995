"""Training and prediction on a GPU, against Pyro's own steps there and against a CPU."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.distributions.coins import coins, fill_stacked

DEVICE = "pretend" if hasattr(torch, "pretend") else "cuda"  # see tests/devices
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (torch.cuda.is_available() or DEVICE == "pretend"), reason="needs a CUDA device"),
]
X = torch.randn(96, 5, generator=torch.Generator().manual_seed(1))
Y = X[:, :1].sin()
GUIDES: dict[str, Any] = {
    "Bernoulli": lambda m: guides.BernoulliDropout(m, 0.3),
    "DropConnect": lambda m: guides.DropConnect(m, 0.3),
    "theta": lambda m: guides.BernoulliDropout(m, 0.3, theta=0.05),
    "concrete": guides.ConcreteDropout,
    "mean field": guides.MeanField,
    "low rank": lambda m: guides.LowRank(m, 2),
    "variational": guides.VariationalDropout,
    "point": guides.Point,
    "exact last layer": guides.ExactLastLayer,
}


def parts(guide: str = "Bernoulli", net: nn.Module | None = None) -> tuple[Any, Any]:
    torch.manual_seed(0)
    net = net or nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    model = models.from_module(net, prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0, learned=True))
    return model, GUIDES[guide](model)


def trained(pair: tuple[Any, Any], data: tuple[Tensor, Tensor] = (X, Y), **settings: Any) -> Any:
    usual = {"steps": 20, "batch_size": 36, "lr": 1e-2, "progress": False, "device": DEVICE}
    train = pyrodrop.fit_replicates if "count" in settings else pyrodrop.fit
    return train(*pair, data, **usual | settings)


def alike(one: Any, two: Any, tolerance: float = 1e-3) -> None:
    torch.testing.assert_close(one.history, two.history, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("guide", "estimator"),
    [
        *(("Bernoulli", estimator) for estimator in ("shared", "per_example", "local")),
        *(("mean field", estimator) for estimator in ("shared", "per_example", "local")),
    ],
)
@pytest.mark.parametrize("engine", ["traced", "compiled"])
def test_engines_make_pyros_steps(engine: str, guide: str, estimator: str) -> None:
    fits = [trained(parts(guide), engine=each, estimator=estimator) for each in ("pyro", engine)]
    assert [fit.settings["engine"] for fit in fits] == ["pyro", engine]
    alike(*fits)


@pytest.mark.parametrize("guide", GUIDES)
def test_guides_make_pyros_steps(guide: str) -> None:
    fits = [trained(parts(guide), engine=each) for each in ("pyro", "traced")]
    assert fits[1].settings["engine"] == "traced"
    alike(*fits)


@pytest.mark.parametrize("keep", [1e-3, 0.3, 0.9, 1.0])
def test_masks_have_their_rates(keep: float) -> None:
    """Counts of four million, of `coins` and of replicates' masks."""
    rate = torch.tensor(keep, device=DEVICE)
    stacked = torch.empty(4_000_000, dtype=torch.uint8, device=DEVICE)
    fill_stacked(stacked, rate)
    for mask in (coins(rate, (4_000_000,)), stacked):
        assert float(mask.double().mean()) == pytest.approx(keep, abs=6 * (keep * (1 - keep) / 4e6) ** 0.5)


@pytest.mark.parametrize("engine", ["traced", "compiled"])
def test_convolutions_and_batch_norm(engine: str) -> None:
    x, y = torch.randn(64, 1, 8, 8), torch.randint(3, (64,))
    # without a bias, whose gradient before a normalisation is rounding, by which Adam moves it as by any other
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)
    )
    model = models.from_module(net, prior=priors.Gaussian(), likelihood=likelihoods.Categorical())
    guide = guides.BernoulliDropout(model, 0.3)
    fits = [trained((model, guide), (x, y), engine=each, steps=6) for each in ("pyro", engine)]
    alike(*fits, tolerance=1e-2)
    means = [fit.model.network[1].running_mean.cpu() for fit in fits]
    torch.testing.assert_close(*means, rtol=1e-2, atol=3e-3)


@pytest.mark.parametrize("engine", ["traced", "compiled"])
def test_replicates_without_noise_are_the_fits_alone(engine: str) -> None:
    settings: dict[str, Any] = {"batch_size": None}
    many = trained(parts("point"), count=5, engine=engine, **settings)
    for one in many:
        alike(one, trained(parts("point"), engine="traced", **settings))


@pytest.mark.parametrize("engine", ["traced", "compiled"])
def test_replicates_draw_noise_of_their_own(engine: str) -> None:
    many = trained(parts(), count=5, engine=engine)
    assert len({float(one.losses[3]) for one in many}) == 5


@pytest.mark.parametrize("engine", ["pyro", "traced", "compiled"])
def test_a_run_that_was_broken_off_goes_on(engine: str, tmp_path: Path) -> None:
    whole = trained(parts(), engine=engine)
    for steps in (9, 20):
        rest = trained(parts(), engine=engine, steps=steps, checkpoint=tmp_path / "state")
    alike(rest, whole, tolerance=1e-5)


@pytest.mark.parametrize("guide", ["Bernoulli", "mean field"])
def test_predictions_are_those_of_a_cpu(guide: str) -> None:
    fit = trained(parts(guide), engine="traced")
    there = pyrodrop.Fit(fit.model, fit.guide, None, fit.history, {}, fit.device)
    draws = there.predict(X[:6], 4000)
    assert draws.f.device.type == "cpu"
    kept = there.predict(X[:6].to(DEVICE), 4000)
    assert kept.mean.device.type == torch.device(DEVICE).type
    here = pyrodrop.Fit(fit.model.cpu(), fit.guide.cpu(), None, fit.history, {}).predict(X[:6], 4000)
    error = here.f.std(0) * (2 / 4000) ** 0.5
    for mean in (draws.mean, kept.mean.cpu()):
        assert float(((mean - here.mean) / error).abs().max()) < 5


class LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(5, 6, batch_first=True), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])  # type: ignore[no-any-return]


class Embedded(nn.Module):
    """With one column: its gradient is a sum over rows that are equal."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(1, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table(x[:, 0]))  # type: ignore[no-any-return]


@pytest.mark.parametrize("engine", ["traced", "compiled"])
@pytest.mark.parametrize("network", [LSTM, Embedded])
def test_other_layers(network: Any, engine: str) -> None:
    x = X[:, None].expand(-1, 3, -1).contiguous() if network is LSTM else torch.zeros(96, 1, dtype=torch.long)
    alike(*(trained(parts("mean field", network()), (x, Y), engine=each, steps=8) for each in ("pyro", engine)))


def schools(sigma: Tensor, y: Tensor | None = None) -> None:
    mu, tau = pyro.sample("mu", dist.Normal(0.0, 5.0)), pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("groups", len(sigma)):
        theta = pyro.sample("theta", dist.Normal(mu, tau))
        pyro.sample("y", dist.Normal(theta, sigma), obs=y)


@pytest.mark.parametrize("engine", ["traced", "compiled"])
@pytest.mark.parametrize("groups", [1, 8])
def test_a_program(groups: int, engine: str) -> None:
    """A guide that does not know the device is made there by its first call."""
    data = {"sigma": torch.full((groups,), 10.0), "y": torch.arange(float(groups))}
    fits = []
    for each in ("pyro", engine):
        pyro.clear_param_store()
        settings: Any = {"steps": 60, "lr": 1e-2, "engine": each, "device": DEVICE, "progress": False}
        fits.append(pyrodrop.fit(schools, AutoNormal(schools), data, **settings))
        assert fits[-1].settings["engine"] == each
    alike(*fits)


def test_samples_are_those_of_a_cpu() -> None:
    model, _ = parts("point", nn.Linear(5, 1))
    sampled = {
        device: pyrodrop.sample(
            copy.deepcopy(model), (X, Y), chains=16, tune=300, draws=200, device=device, progress=False
        )
        for device in (DEVICE, "cpu")
    }
    f = [sampled[device].predict(X[:8], 3200).f.cpu().double() for device in (DEVICE, "cpu")]
    error = (f[0].std(0) + f[1].std(0)) / 2 / 400**0.5  # as of 400 independent draws, of 3,200
    assert float(((f[0].mean(0) - f[1].mean(0)) / error).abs().max()) < 5 * 2**0.5
    ratio = f[0].std(0) / f[1].std(0)
    assert 0.75 < float(ratio.min()) <= float(ratio.max()) < 1.33
