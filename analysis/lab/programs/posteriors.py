"""Programs for samplers of posteriors, each for Pyro and NumPyro at once, with real data where they are short.

Schools, radon, garch, ar, dogs and kidscore have data and priors of posteriordb (``posteriordb.json``), but flat priors
are wide normal ones; the logistic regression is of the same radon, above the 4 pCi/l at which the EPA advises to act. Other
data are simulated, as `data` says.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyro
import torch

from pyrodrop.data import foong2020

ROWS: Any = json.loads(Path(__file__).with_name("posteriordb.json").read_text(encoding="utf-8"))
Y = [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]
SIGMA = [15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]


class Language(NamedTuple):
    """What programs are written in: Pyro or NumPyro, their distributions, and the arrays of these."""

    pyro: Any
    dist: Any
    arrays: Any
    array: Callable[[Any], Any]
    scan: Callable[..., Any]


def _loop(step: Callable[..., Any], carry: Any, values: Any) -> Any:
    results = []
    for value in values:
        carry, result = step(carry, value)
        results.append(result)
    return carry, torch.stack(results)


PYRO = Language(pyro, pyro.distributions, torch, torch.as_tensor, _loop)


def numpyro() -> Language:
    """NumPyro, which must be installed."""
    import jax
    import numpyro

    return Language(numpyro, numpyro.distributions, jax.numpy, jax.numpy.asarray, jax.lax.scan)


def schools(to: Language, y: Any, sigma: Any, centred: bool) -> None:
    """Rubin (1981)."""
    mean = to.pyro.sample("mean", to.dist.Normal(0.0, 5.0))
    scale = to.pyro.sample("scale", to.dist.HalfCauchy(5.0))
    with to.pyro.plate("schools", len(y)):
        effect = to.pyro.sample("effect", to.dist.Normal(mean, scale) if centred else to.dist.Normal(0.0, 1.0))
        to.pyro.sample("y", to.dist.Normal(effect if centred else mean + scale * effect, sigma), obs=y)


def radon(to: Language, county: Any, floor: Any, y: Any, binary: bool) -> None:
    """Intercepts by county; with `binary`, a hierarchical logistic regression."""
    mean, slope = (to.pyro.sample(name, to.dist.Normal(0.0, 10.0)) for name in ("mean", "slope"))
    scale = to.pyro.sample("scale", to.dist.HalfNormal(1.0))
    with to.pyro.plate("counties", 85):
        offset = to.pyro.sample("offset", to.dist.Normal(0.0, 1.0))
    f = mean + scale * offset[county] + slope * floor
    noise = None if binary else to.pyro.sample("noise", to.dist.HalfNormal(1.0))
    with to.pyro.plate("rows", len(y)):
        to.pyro.sample("y", to.dist.Bernoulli(logits=f) if noise is None else to.dist.Normal(f, noise), obs=y)


def garch(to: Language, y: Any) -> None:
    """Volatility that depends on the last return and volatility."""
    mu, alpha0 = to.pyro.sample("mu", to.dist.Normal(0.0, 100.0)), to.pyro.sample("alpha0", to.dist.HalfNormal(100.0))
    alpha = to.pyro.sample("alpha", to.dist.Beta(1.0, 2.0))  # alpha and beta are uniform on a triangle
    share = to.pyro.sample("share", to.dist.Uniform(0.0, 1.0))  # beta = (1 - alpha) share

    def step(variance: Any, previous: Any) -> Any:
        return (alpha0 + alpha * (previous - mu) ** 2 + (1 - alpha) * share * variance,) * 2

    first = to.array(0.25)
    variances = to.arrays.concatenate([first[None], to.scan(step, first, y[:-1])[1]])
    to.pyro.sample("y", to.dist.Normal(mu, to.arrays.sqrt(variances)).to_event(1), obs=y)


def ar(to: Language, y: Any, lags: int = 5) -> None:
    """An autoregression."""
    alpha = to.pyro.sample("alpha", to.dist.Normal(0.0, 10.0))
    beta = to.pyro.sample("beta", to.dist.Normal(0.0, 10.0).expand([lags]).to_event(1))
    sigma = to.pyro.sample("sigma", to.dist.HalfCauchy(2.5))
    past = to.arrays.stack([y[lags - lag : len(y) - lag] for lag in range(1, lags + 1)], 1)
    to.pyro.sample("y", to.dist.Normal(alpha + past @ beta, sigma).to_event(1), obs=y[lags:])


def dogs(to: Language, y: Any) -> None:
    """Shocks in a shuttle box; Gelman & Hill (2007), ch. 24."""
    beta = to.pyro.sample("beta", to.dist.Normal(0.0, 100.0).expand([3]).to_event(1))
    shocks = to.arrays.cumsum(y, 1) - y  # before each trial
    avoided = to.arrays.arange(y.shape[1]) - shocks
    to.pyro.sample("y", to.dist.Bernoulli(logits=beta[0] + beta[1] * avoided + beta[2] * shocks).to_event(2), obs=y)


def kidscore(to: Language, mom_iq: Any, mom_hs: Any, y: Any) -> None:
    """Gelman & Hill (2007), ch. 3, with an interaction."""
    beta = to.pyro.sample("beta", to.dist.Normal(0.0, 1000.0).expand([4]).to_event(1))
    sigma = to.pyro.sample("sigma", to.dist.HalfCauchy(2.5))
    x = to.arrays.stack([to.arrays.ones_like(y), mom_hs, mom_iq, mom_hs * mom_iq], 1)
    to.pyro.sample("y", to.dist.Normal(x @ beta, sigma).to_event(1), obs=y)


def saas(to: Language, x: Any, y: Any) -> None:
    """A Gaussian process with sparse axes; Eriksson & Jankowiak (2021)."""
    tau, noise = to.pyro.sample("tau", to.dist.HalfCauchy(0.1)), to.pyro.sample("noise", to.dist.Gamma(0.9, 10.0))
    variance = to.pyro.sample("variance", to.dist.Gamma(2.0, 0.15))
    rho = to.pyro.sample("rho", to.dist.HalfCauchy(1.0).expand([x.shape[1]]).to_event(1)) * tau
    square = ((x[:, None] - x[None]) ** 2 * rho).sum(-1)
    covariance = variance * to.arrays.exp(-0.5 * square) + (noise + 1e-4) * to.arrays.eye(len(x))
    to.pyro.sample("y", to.dist.MultivariateNormal(to.arrays.zeros(len(x)), covariance), obs=y)


def network(to: Language, x: Any, y: Any) -> None:
    """2-50-1, w ~ N(0, 4^2 / fan-in), noise 0.1; Foong et al. (2020)."""
    names, shapes = ("weight0", "bias0", "weight1", "bias1"), ((50, 2), (50,), (1, 50), (1,))
    priors = [to.dist.Normal(0.0, sd).expand(shape).to_event(len(shape)) for sd, shape in zip(SDS, shapes, strict=True)]
    w = dict(zip(names, map(to.pyro.sample, names, priors), strict=True))
    to.pyro.sample("y", to.dist.Normal(function(to, w, x), 0.1).to_event(2), obs=y)


def function(to: Language, w: Any, x: Any) -> Any:
    """f at x ``[N, 2]``, ``[..., N, 1]``, of the network with weights ``[..., *shape]`` by site."""
    for layer in range(2):
        x = x @ to.arrays.swapaxes(w[f"weight{layer}"], -1, -2) + w[f"bias{layer}"][..., None, :]
        x = to.arrays.clip(x, 0) if layer == 0 else x
    return x


def of_network(w: Any, split: Any) -> dict[str, Any]:
    """f at 20 points and the log joint density up to a constant, of `network` with weights as of `function`."""
    squares = [(w[site] / sd).square() for site, sd in zip(("weight0", "bias0", "weight1", "bias1"), SDS, strict=True)]
    squares += [((function(PYRO, w, split.train.x) - split.train.y) / 0.1).square()]
    lead = w["bias1"].shape[:-1]
    return {
        "f": function(PYRO, w, split.test.x[::25]),
        "log density": -sum(square.reshape(*lead, -1).sum(-1) for square in squares) / 2,
    }


SDS = (4 / math.sqrt(2), 1.0, 4 / math.sqrt(50), 1.0)


def horseshoe(to: Language, x: Any, y: Any) -> None:
    """Carvalho, Polson & Scott (2010), not centred."""
    tau, sigma = to.pyro.sample("tau", to.dist.HalfCauchy(0.1)), to.pyro.sample("sigma", to.dist.HalfNormal(1.0))
    local = to.pyro.sample("local", to.dist.HalfCauchy(1.0).expand([x.shape[1]]).to_event(1))
    z = to.pyro.sample("z", to.dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    to.pyro.sample("y", to.dist.Normal(x @ (z * local * tau), sigma).to_event(1), obs=y)


def volatility(to: Language, y: Any) -> None:
    """Stochastic volatility as a random walk, not centred."""
    step, level = to.pyro.sample("step", to.dist.Exponential(10.0)), to.pyro.sample("level", to.dist.Normal(0.0, 1.0))
    z = to.pyro.sample("z", to.dist.Normal(0.0, 1.0).expand([len(y)]).to_event(1))
    sd = to.arrays.exp(level + step * to.arrays.cumsum(z, 0))
    to.pyro.sample("y", to.dist.StudentT(8.0, 0.0, sd).to_event(1), obs=y)


def data(name: str) -> dict[str, Any]:
    """The arguments of a program, as tensors: rows of posteriordb, or simulated."""
    random = torch.Generator().manual_seed(1)
    normal = lambda *shape: torch.randn(*shape, generator=random)  # noqa: E731
    if name in ROWS["data"]:
        rows = {key: torch.tensor([float(value) for value in text.split()]) for key, text in ROWS["data"][name].items()}
        if name == "radon":
            rows["county"], rows["y"] = rows["county"].long(), rows.pop("activity").log()
        return rows | ({"y": rows["y"].reshape(30, 25)} if name == "dogs" else {})
    if name == "logistic":
        return (rows := data("radon")) | {"y": (rows["y"] > math.log(4)).float()}
    if name == "network":
        return {"x": (train := foong2020().train).x, "y": train.y}
    x, z = normal(60, 12), 0.5 * normal(60)
    by_name: dict[str, dict[str, Any]] = {
        "schools": {"y": torch.tensor(Y), "sigma": torch.tensor(SIGMA)},
        "saas": {"x": x[:20, :5], "y": (3 * x[:20, 0]).sin() + 0.2 * z[:20]},
        "horseshoe": {"x": x, "y": x[:, :2] @ torch.tensor([2.0, -1.0]) + z},
        "volatility": {"y": 0.5 * (0.1 * normal(50).cumsum(0)).exp() * normal(50)},
    }
    return by_name[name]


class Posterior(NamedTuple):
    """A program, the name of its data, and its other arguments."""

    program: Callable[..., None]
    data: str
    plain: tuple[tuple[str, bool], ...] = ()

    def to(self, language: Language) -> tuple[Callable[..., None], dict[str, Any]]:
        """The program and its data in a language."""
        rows = data(self.data)
        rows = rows if language is PYRO else {name: language.array(value.numpy()) for name, value in rows.items()}
        return partial(self.program, language, **dict(self.plain)), rows


POSTERIORS: dict[str, Posterior] = {
    "schools, not centred": Posterior(schools, "schools", (("centred", False),)),
    "schools, centred": Posterior(schools, "schools", (("centred", True),)),
    "radon": Posterior(radon, "radon", (("binary", False),)),
    "logistic, hierarchical": Posterior(radon, "logistic", (("binary", True),)),
    "garch": Posterior(garch, "garch"),
    "ar": Posterior(ar, "ar"),
    "dogs": Posterior(dogs, "dogs"),
    "kidscore": Posterior(kidscore, "kidscore"),
    "saas": Posterior(saas, "saas"),
    "network, 2-50-1": Posterior(network, "network"),
    "horseshoe": Posterior(horseshoe, "horseshoe"),
    "volatility": Posterior(volatility, "volatility"),
}
