"""Osband (2016): the spread of dropout with a fixed rate does not shrink with data.

The panel has one weight in closed form (`one_weight`) and networks at growing N. N observations with precision tau have the
same log likelihood, up to a constant, as k copies of each with precision tau / k. Copies give all data sets the same shape,
so that all networks of one posterior are trained together as replicates.

The remedies are ensembles of randomised point estimates: by a bootstrap of the rows, or by anchors with noise added to y.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.gp import GaussianProcess, from_model
from pyrodrop.analysis.lab.experiments.critiques import one_weight
from pyrodrop.analysis.lab.experiments.critiques.panel import Panel, Size, fitted, learning_rate, sized
from pyrodrop.data import Dataset
from pyrodrop.guides import Guide, Point

RATE, UNITS, MEMBERS = 0.1, 50, 10
COUNTS = (1, 10, 100, 1000)
NOISE = 0.2
POINTS = torch.linspace(-1, 1, 50)[:, None]
DRAWS = 300
SIZES: dict[Size, tuple[tuple[int, ...], int, int]] = {  # numbers of observations, steps, data sets
    "default": ((25, 100, 250, 1000), 4000, 4),
    "quick": ((20, 80), 60, 2),
}
GUIDES: Mapping[str, Callable[[Any], Guide]] = {
    "fixed rate .1": lambda model: guides.BernoulliDropout(model, RATE, mask_input=False),
    "learned rates (concrete)": lambda model: guides.ConcreteDropout(model, "input", drop_rate=RATE, mask_input=False),
    "learned noise (variational)": lambda model: guides.VariationalDropout(
        model, "B", "weight", max_alpha=math.inf, drop_rate=0.01
    ),
    "mean field": guides.MeanField,
}
WIDE = "Gaussian process (wide limit)"
SCALES = {"0": 2.0, "1": 2 / math.sqrt(UNITS)}  # of the weights of a layer


class Anchored(priors.Gaussian):
    """N(a, scale^2), where the anchors a ~ N(0, scale^2) are the initial weights: Pearce et al. (2020), arXiv:1810.05546."""

    def __init__(self, scale: float) -> None:
        super().__init__(scale, drawn=True)

    def for_site(self, name: str, like: Tensor, units: Any = None) -> TorchDistribution:
        """The prior around the initial weight."""
        return dist.Normal(like, self.numbers()["scale"].to(like).expand_as(like)).to_event(like.dim())


def members_of(data: Dataset, seed: int, *, rows: bool = False) -> list[Dataset]:
    """The data sets of the members: rows drawn with replacement, or noise added to y."""
    g = torch.Generator().manual_seed(1_000_003 * (seed + 1))  # whose numbers are not those of anchors
    if rows:
        return [data.rows(torch.randint(len(data), (len(data),), generator=g)) for _ in range(MEMBERS)]
    return [data.with_values(y=data.y + NOISE * torch.randn(data.y.shape, generator=g)) for _ in range(MEMBERS)]


Randomised = tuple[Callable[[int], models.NetworkModel], Callable[[Dataset, int], list[Dataset]]]
ENSEMBLES: Mapping[str, Randomised] = {  # the model for a number of copies, and the data sets of the members
    "ensemble of points": (lambda copies: network(copies), lambda data, seed: [data] * MEMBERS),
    "ensemble, bootstrap": (lambda copies: network(copies), lambda data, seed: members_of(data, seed, rows=True)),
    "ensemble, anchors and noise": (
        lambda copies: network(copies, Anchored),
        lambda data, seed: members_of(data, seed),
    ),
}


def panel(size: Size, seed: int) -> Panel:
    """Standard deviations of one weight after N observations, and mean spreads of f over [-1, 1] of networks by N."""
    counts, steps, sets = sized(SIZES, size)
    weight = weight_table()
    spreads = {name: network_spreads(name, counts, steps, sets, seed) for name in GUIDES}
    spreads |= {name: ensemble_spreads(name, counts, steps, sets, seed) for name in ENSEMBLES}
    spreads[WIDE] = [process_spread(n, sets, seed) for n in counts]
    networks = {
        name: {f"N = {n}": value for n, value in zip(counts, values, strict=True)}
        | {"power of N": slope(counts, values)}
        for name, values in spreads.items()
    }
    return {"one weight": weight, "networks 1-50-1": networks}


def weight_table() -> dict[str, dict[str, float]]:
    """Standard deviations of one weight by posterior and N; see `one_weight`."""
    alpha = RATE / (1 - RATE)
    columns: dict[str, Callable[[int], float]] = {
        "exact": one_weight.exact_sd,
        "dropout, rate .1, weight decay": lambda n: one_weight.dropout(n, RATE, "decay")[1],
        "dropout, rate .1, ELBO": lambda n: one_weight.dropout(n, RATE, "elbo")[1],
        "Gaussian noise, alpha 1/9": lambda n: one_weight.gaussian_noise(n, alpha)[1],
        "dropout, learned rate": lambda n: one_weight.dropout(n, one_weight.learned_rate(n), "elbo")[1],
        "Gaussian noise, learned alpha": one_weight.exact_sd,
    }
    return {name: {f"N = {n}": sd(n) for n in COUNTS} for name, sd in columns.items()}


def sample(n: int, seed: int) -> Dataset:
    """n observations of a smooth function with noise of standard deviation `NOISE`."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, 1, generator=generator) - 1
    return Dataset(x, torch.sin(3 * x) + NOISE * torch.randn(n, 1, generator=generator))


def repeated(data: Dataset, copies: int) -> Dataset:
    """Every observation `copies` times."""
    return Dataset(data.x.repeat(copies, 1), data.y.repeat(copies, 1))


def network(copies: int = 1, prior: Callable[[float], priors.Prior] = priors.Gaussian) -> models.MLP:
    """1-50-1 with the prior scales of a wide network, for data with `copies` of every observation."""
    return models.MLP(
        [1, UNITS, 1],
        prior={"layers.0.*": prior(SCALES["0"]), "*": prior(SCALES["1"])},
        likelihood=likelihoods.Gaussian(NOISE**-2 / copies),
        bias_prior=prior(1.0),
    )


def _trained(several: Any, guide: Any, data: Any, rows: int, steps: int, seed: int) -> Any:
    """A fit of each model to its data, all together."""
    return fitted(
        several,
        [guide(model) for model in several],
        data,
        count=len(several),
        steps=steps,
        batch_size=min(rows, 100),
        lr=learning_rate,
        seed=seed,
    )


def network_spreads(name: str, counts: tuple[int, ...], steps: int, sets: int, seed: int) -> list[float]:
    """Spread of f by N, averaged over x and over data sets of N observations."""
    torch.manual_seed(seed)
    copies = [max(counts) // n for n in counts for _ in range(sets)]
    data = [repeated(sample(n, seed + s), max(counts) // n) for n in counts for s in range(sets)]
    several = [network(k) for k in copies]
    fits = _trained(several, GUIDES[name], data, max(counts), steps, seed)
    spreads = [fit.predict(POINTS, DRAWS, seed=seed).spread for fit in fits]
    return [_mean(spreads[i * sets : (i + 1) * sets]) for i in range(len(counts))]


def ensemble_spreads(name: str, counts: tuple[int, ...], steps: int, sets: int, seed: int) -> list[float]:
    """Spread of f by N for ensembles of `MEMBERS` point estimates, the root of the unbiased variance of their functions."""
    make, randomised = ENSEMBLES[name]
    torch.manual_seed(seed)
    data, several = [], []
    for place, n in enumerate(counts):
        for s in range(sets):
            copies = max(counts) // n
            randomised_sets = randomised(sample(n, seed + s), MEMBERS * (sets * place + s) + 1000 * seed)
            data += [repeated(dataset, copies) for dataset in randomised_sets]
            several += [make(copies) for _ in randomised_sets]
    fits = _trained(several, Point, data, max(counts), steps, seed)
    f = torch.cat([fit.predict(POINTS, 1, seed=seed).f for fit in fits]).unflatten(0, (len(counts), sets, MEMBERS))
    return [float(of_count.double().std(1).mean()) for of_count in f]


def process_spread(n: int, sets: int, seed: int) -> float:
    """Spread of f for N = `n`, for exact inference under the prior of the infinitely wide network."""
    processes = [
        GaussianProcess(sample(n, seed + s), from_model(network()), learn=False, progress=False) for s in range(sets)
    ]
    return _mean([process.predict(POINTS, 2).spread for process in processes])


def slope(counts: tuple[int, ...], values: list[float]) -> float:
    """Least-squares slope of the logarithm of the spread over that of N: -1/2 for a regular posterior of fixed size."""
    return float(np.polyfit(np.log(counts), np.log(values), 1)[0])


def _mean(spreads: list[Tensor]) -> float:
    return float(torch.stack([spread.double() for spread in spreads]).mean())
