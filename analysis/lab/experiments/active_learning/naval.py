"""Foong, Burt, Li & Turner (2020), section 5: the row of largest variance, one at a time, on the UCI set `naval`.

    f = W_2 relu(W_1 x + b_1) + b_2     14-50-1,  w ~ N(0, 2 / fan-in),  b ~ N(0, 1)
    y ~ N(f, 0.01^2)                    x and y standardised

5 labelled rows, then one at a time to 55, and a split for every seed, as in the paper, https://arxiv.org/abs/1909.00719; its
trainings have 20,000 steps at a learning rate of 10^-3, and all unlabelled rows are candidates. Dropout has rate 0.05, of
hidden units. The Gaussian process is the network's limit of infinite width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.gp import GaussianProcess, from_model
from pyrodrop.analysis.lab.experiments.active_learning.loop import RANDOM, Task
from pyrodrop.data import Dataset, uci
from pyrodrop.guides import Guide

START, HIDDEN, NOISE, DRAWS = 5, 50, 0.01, 100
PROCESS = "Gaussian process"
POSTERIORS: Mapping[str, Callable[[Any], Guide] | None] = {
    "MC dropout": lambda model: guides.BernoulliDropout(model, 0.05, mask_input=False),
    "mean field": guides.MeanField,
    PROCESS: None,
}


class Naval(Task):
    """One of `POSTERIORS`; the score is the RMSE in standardised units."""

    acquisitions = (RANDOM, "variance")
    size, candidates = 1, 2000

    def data(self, seed: int) -> tuple[Dataset, Dataset]:
        return _data(seed)

    def start(self, seed: int) -> Tensor:
        return torch.randperm(len(_data(seed)[0]), generator=torch.Generator().manual_seed(seed))[:START]

    def train(self, parts: Sequence[Dataset], seeds: Sequence[int]) -> Sequence[Any]:
        networks = [network(data, seed) for data, seed in zip(parts, seeds, strict=True)]
        guide = POSTERIORS[self.posterior]
        if guide is not None:
            return self.fits(networks, guide, parts, lr=1e-2, seed=seeds[0])
        pairs = zip(parts, networks, strict=True)
        return [GaussianProcess(data, from_model(net), learn=False, progress=False) for data, net in pairs]

    def score(self, run: Any, test: Dataset, seed: int) -> float:
        error = _predicted(run, test.x, seed).mean - test.y
        return float(error.double().square().mean().sqrt()) / _scale(_data(seed)[0])

    def best(self, run: Any, acquisition: str, x: Tensor, seed: int) -> Tensor:
        return _predicted(run, x, seed).spread[:, 0].topk(self.size).indices  # type: ignore[no-any-return]


def network(data: Dataset, seed: int) -> models.MLP:
    """The network, with initial weights of this seed."""
    widths = [data.x.shape[1], HIDDEN, 1]
    return models.MLP(
        widths,
        prior={f"layers.{layer}.*": priors.Gaussian(math.sqrt(2 / widths[layer])) for layer in range(2)},
        bias_prior=priors.Gaussian(),
        likelihood=likelihoods.Gaussian((NOISE * _scale(data)) ** -2),
        seed=seed,
    )


@cache
def _data(seed: int) -> tuple[Dataset, Dataset]:
    """A split without the two constant columns, standardised by its training rows."""
    splits = uci("naval")
    split = splits[seed % len(splits)]
    varies = split.train.x.std(0) > 0
    return Dataset(split.train.x[:, varies], split.train.y).standardized(), Dataset(
        split.test.x[:, varies], split.test.y
    )


def _scale(data: Dataset) -> float:
    assert data.targets is not None
    return float(data.targets.scale)


def _predicted(run: Any, x: Tensor, seed: int) -> Any:
    if isinstance(run, GaussianProcess):
        return run.predict(x, 1, joint=False)  # its mean and variance are exact
    return run.predict(x, DRAWS, seed=seed)
