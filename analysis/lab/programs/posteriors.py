"""Programs like those of posteriordb, with simulated data except for the schools, for samplers of posteriors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

Posterior = Callable[[], tuple[Callable[..., Any], dict[str, Any]]]
"""Makes a program and its arguments."""
Y = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SIGMA = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def schools(y: Tensor, sigma: Tensor, centred: bool = False) -> None:
    """Rubin (1981), centred or not."""
    mean, scale = pyro.sample("mean", dist.Normal(0.0, 5.0)), pyro.sample("scale", dist.HalfCauchy(5.0))
    with pyro.plate("schools", len(y)):
        effect = pyro.sample("effect", dist.Normal(mean, scale) if centred else dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(effect if centred else mean + scale * effect, sigma), obs=y)


def radon(county: Tensor, floor: Tensor, y: Tensor, counties: int, binary: bool = False) -> None:
    """Intercepts by county; with `binary`, a hierarchical logistic regression."""
    mean, slope = pyro.sample("mean", dist.Normal(0.0, 5.0)), pyro.sample("slope", dist.Normal(0.0, 5.0))
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    with pyro.plate("counties", counties):
        offset = pyro.sample("offset", dist.Normal(0.0, 1.0))
    f = mean + scale * offset[county] + slope * floor
    noise = None if binary else pyro.sample("noise", dist.HalfNormal(1.0))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Bernoulli(logits=f) if noise is None else dist.Normal(f, noise), obs=y)


def garch(y: Tensor) -> None:
    """Volatility that depends on the last return and volatility."""
    mu, alpha0 = pyro.sample("mu", dist.Normal(0.0, 5.0)), pyro.sample("alpha0", dist.HalfNormal(5.0))
    alpha = pyro.sample("alpha", dist.Uniform(0.0, 1.0))
    share = pyro.sample("share", dist.Uniform(0.0, 1.0))  # beta = (1 - alpha) share
    sds = [torch.tensor(0.5)]
    for previous in y[:-1]:
        square = alpha0 + alpha * (previous - mu) ** 2 + (1 - alpha) * share * sds[-1] ** 2
        sds.append(square.sqrt())
    pyro.sample("y", dist.Normal(mu, torch.stack(sds)).to_event(1), obs=y)


def ar(y: Tensor, lags: int = 5) -> None:
    """An autoregression."""
    alpha, sigma = pyro.sample("alpha", dist.Normal(0.0, 10.0)), pyro.sample("sigma", dist.HalfCauchy(2.5))
    beta = pyro.sample("beta", dist.Normal(0.0, 10.0).expand([lags]).to_event(1))
    past = y.unfold(0, lags, 1)[:-1]
    pyro.sample("y", dist.Normal(alpha + past @ beta, sigma).to_event(1), obs=y[lags:])


def dogs(y: Tensor) -> None:
    """Avoided shocks in a shuttle box; Gelman & Hill (2007), ch. 24."""
    beta = pyro.sample("beta", dist.Normal(0.0, 10.0).expand([3]).to_event(1))
    before = torch.cat([torch.zeros(len(y), 1), y[:, :-1].cumsum(1)], 1)  # shocks
    avoided = torch.arange(y.shape[1]) - before
    pyro.sample("y", dist.Bernoulli(logits=beta[0] + beta[1] * avoided + beta[2] * before).to_event(2), obs=y)


def kidscore(mom_iq: Tensor, mom_hs: Tensor, y: Tensor) -> None:
    """Gelman & Hill (2007), ch. 3, with an interaction."""
    beta = pyro.sample("beta", dist.Normal(0.0, 100.0).expand([4]).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfCauchy(2.5))
    x = torch.stack([torch.ones_like(y), mom_hs, mom_iq, mom_hs * mom_iq], 1)
    pyro.sample("y", dist.Normal(x @ beta, sigma).to_event(1), obs=y)


def saas(x: Tensor, y: Tensor) -> None:
    """A Gaussian process with sparse axes; Eriksson & Jankowiak (2021)."""
    tau, variance = pyro.sample("tau", dist.HalfCauchy(0.1)), pyro.sample("variance", dist.Gamma(2.0, 0.15))
    noise = pyro.sample("noise", dist.Gamma(0.9, 10.0))
    rho = pyro.sample("rho", dist.HalfCauchy(1.0).expand([x.shape[1]]).to_event(1)) * tau
    square = ((x[:, None] - x[None]) ** 2 * rho).sum(-1)
    covariance = variance * (-0.5 * square).exp() + (noise + 1e-4) * torch.eye(len(x))
    pyro.sample("y", dist.MultivariateNormal(torch.zeros(len(x)), covariance), obs=y)


def horseshoe(x: Tensor, y: Tensor) -> None:
    """Carvalho, Polson & Scott (2010), not centred."""
    tau, sigma = pyro.sample("tau", dist.HalfCauchy(0.1)), pyro.sample("sigma", dist.HalfNormal(1.0))
    local = pyro.sample("local", dist.HalfCauchy(1.0).expand([x.shape[1]]).to_event(1))
    z = pyro.sample("z", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    pyro.sample("y", dist.Normal(x @ (z * local * tau), sigma).to_event(1), obs=y)


def volatility(y: Tensor) -> None:
    """Stochastic volatility as a random walk, not centred."""
    step, level = pyro.sample("step", dist.Exponential(10.0)), pyro.sample("level", dist.Normal(0.0, 1.0))
    z = pyro.sample("z", dist.Normal(0.0, 1.0).expand([len(y)]).to_event(1))
    pyro.sample("y", dist.StudentT(8.0, 0.0, (level + step * z.cumsum(0)).exp()).to_event(1), obs=y)


def data(name: str) -> dict[str, Any]:
    """The arguments of a program, simulated unless they are short."""
    random = torch.Generator().manual_seed(1)
    normal = lambda *shape: torch.randn(*shape, generator=random)  # noqa: E731
    county, floor = torch.randint(40, (300,), generator=random), (normal(300) > 0.8).float()
    f = 1.5 + 0.3 * normal(40)[county] - 0.7 * floor
    x, series = normal(60, 12), [torch.zeros(()) for _ in range(5)]
    for _ in range(145):
        series.append(0.1 + 0.5 * series[-1] - 0.2 * series[-2] + 0.3 * normal(()))
    mom_iq, mom_hs = 100 + 15 * normal(120), (normal(120) > -0.8).float()
    y = torch.stack(series[5:])
    of_kids = 26 + 6 * mom_hs + 0.56 * mom_iq + 18 * normal(120)
    by_name: dict[str, dict[str, Any]] = {
        "schools": {"y": Y, "sigma": SIGMA},
        "radon": {"county": county, "floor": floor, "y": f + 0.7 * normal(300), "counties": 40},
        "logistic": {"county": county, "floor": floor, "y": (f - 1 + normal(300) > 0).float(), "counties": 40},
        "garch": {"y": 0.5 + normal(80) * (0.4 + 0.3 * normal(80).abs())},
        "ar": {"y": y},
        "dogs": {"y": (torch.rand(20, 15, generator=random) < 0.9 ** torch.arange(1, 16)).float()},
        "kidscore": {"mom_iq": mom_iq, "mom_hs": mom_hs, "y": of_kids},
        "saas": {"x": x[:20, :5], "y": (3 * x[:20, 0]).sin() + 0.1 * normal(20)},
        "horseshoe": {"x": x, "y": x[:, :2] @ torch.tensor([2.0, -1.0]) + 0.5 * normal(60)},
        "volatility": {"y": 0.5 * (0.1 * normal(50).cumsum(0)).exp() * normal(50)},
    }
    return by_name[name]


POSTERIORS: dict[str, Posterior] = {
    "schools, not centred": lambda: (schools, data("schools")),
    "schools, centred": lambda: (schools, {**data("schools"), "centred": True}),
    "radon": lambda: (radon, data("radon")),
    "logistic, hierarchical": lambda: (radon, {**data("logistic"), "binary": True}),
    "garch": lambda: (garch, data("garch")),
    "ar": lambda: (ar, data("ar")),
    "dogs": lambda: (dogs, data("dogs")),
    "kidscore": lambda: (kidscore, data("kidscore")),
    "saas": lambda: (saas, data("saas")),
    "horseshoe": lambda: (horseshoe, data("horseshoe")),
    "volatility": lambda: (volatility, data("volatility")),
}
