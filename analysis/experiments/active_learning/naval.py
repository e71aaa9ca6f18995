"""Foong, Burt, Li & Turner (2020), section 5: the row of largest variance, one at a time, on the UCI set `naval`.

    f = W_2 relu(W_1 x + b_1) + b_2     14-50-1,  w ~ N(0, 2 / fan-in),  b ~ N(0, 1)
    y ~ N(f, 0.01^2)                    x and y standardised

5 labelled rows, then one at a time to 55, and a split for every seed, as in the paper, https://arxiv.org/abs/1909.00719; its
trainings have 20,000 steps at a learning rate of 10^-3 and see all unlabelled rows. Dropout has rate 0.05, of hidden units.
The Gaussian process is the network's limit of infinite width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.experiments.active_learning.loop import RANDOM
from pyrodrop.analysis.gp import GaussianProcess, from_model
from pyrodrop.data import Dataset, uci
from pyrodrop.guides import Guide
from pyrodrop.training.replicates import fit_replicates

START, HIDDEN, NOISE, DRAWS = 5, 50, 0.01, 100
PROCESS = "Gaussian process"
POSTERIORS: Mapping[str, Callable[[Any], Guide] | None] = {
    "MC dropout": lambda model: guides.BernoulliDropout(model, 0.05, mask_input=False),
    "mean field": guides.MeanField,
    PROCESS: None,
}


@dataclass(frozen=True)
class Naval:
    """The task with one of `POSTERIORS`; its score is the RMSE in standardised units."""

    posterior: str
    steps: int
    device: torch.device
    acquisitions = (RANDOM, "variance")
    size, candidates = 1, 2000

    def rows(self, seed: int) -> int:
        return len(data(seed)[0])

    def start(self, seed: int) -> Tensor:
        return torch.randperm(self.rows(seed), generator=torch.Generator().manual_seed(seed))[:START]

    def train(self, labelled: Sequence[Tensor], seeds: Sequence[int]) -> Sequence[Any]:
        parts = [data(seed)[0].rows(rows) for rows, seed in zip(labelled, seeds, strict=True)]
        networks = [network(part, seed) for part, seed in zip(parts, seeds, strict=True)]
        guide = POSTERIORS[self.posterior]
        if guide is None:
            return [
                GaussianProcess(part, from_model(net), learn=False, progress=False)
                for part, net in zip(parts, networks, strict=True)
            ]
        many = fit_replicates(
            networks, [guide(net) for net in networks], parts, count=len(parts), steps=self.steps, lr=1e-2,
            estimator="local", engine="traced", seed=seeds[0], device=self.device, progress=False,
        )  # fmt: skip
        if many.failed:
            raise FloatingPointError(f"the loss of {self.posterior} stopped being finite in {sorted(many.failed)}")
        return many

    def score(self, run: Any, seed: int) -> float:
        train, test = data(seed)
        errors = _predict(run, test.x, seed).mean - test.y
        return float(errors.double().square().mean().sqrt() / _scale(train))

    def best(self, run: Any, acquisition: str, rows: Tensor, seed: int) -> Tensor:
        return _predict(run, data(seed)[0].x[rows], seed).spread[:, 0].topk(self.size).indices


@cache
def data(seed: int) -> tuple[Dataset, Dataset]:
    """The training and test rows of a split, without the two constant columns; the standardisation is of the former."""
    splits = uci("naval")
    split = splits[seed % len(splits)]
    varies = split.train.x.std(0) > 0
    train = Dataset(split.train.x[:, varies], split.train.y).standardized()
    return train, Dataset(split.test.x[:, varies], split.test.y)


def network(part: Dataset, seed: int) -> models.MLP:
    """The network, with initial weights of this seed."""
    widths = [part.x.shape[1], HIDDEN, 1]
    return models.MLP(
        widths,
        prior={f"layers.{layer}.*": priors.Gaussian(math.sqrt(2 / widths[layer])) for layer in range(2)},
        bias_prior=priors.Gaussian(),
        likelihood=likelihoods.Gaussian((NOISE * _scale(part)) ** -2),
        seed=seed,
    )


def _scale(part: Dataset) -> float:
    assert part.targets is not None
    return float(part.targets.scale)


def _predict(run: Any, x: Tensor, seed: int) -> Any:
    if isinstance(run, GaussianProcess):
        return run.predict(x, 1, joint=False)  # its moments are exact
    return run.predict(x, DRAWS, seed=seed)
