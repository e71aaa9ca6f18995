"""MNIST: 2 labelled images of every class, then batches of 10.

    h = max over 7 x 7 pixels of relu(filters * x)      16 filters of 5 x 5, ~ N(0, 1), centred, of norm 1: never trained
    f = W_2 relu(W_1 h)                                 256-128-10,  W ~ N(0, 1),  biases are point estimates

The first rows and batches are those of Kirsch, van Amersfoort & Gal (2019), https://arxiv.org/abs/1906.08158. Their network
has two trained convolutions, with dropout after each; with these filters, h is computed once for all images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis import acquire
from pyrodrop.analysis.experiments.active_learning.loop import RANDOM
from pyrodrop.data import Dataset, mnist
from pyrodrop.guides import Guide
from pyrodrop.metrics import accuracy
from pyrodrop.training.replicates import Replicates, fit_replicates

PER_CLASS, FILTERS, HIDDEN = 2, 16, 128
DRAWS, TEST_DRAWS, MEMBERS = 50, 20, 5
POSTERIORS: Mapping[str, Callable[[Any], Guide]] = {
    "MC dropout": lambda model: guides.BernoulliDropout(model, 0.5, mask_input=False),
    "mean field": guides.MeanField,
    "ensemble": guides.Point,
}


@dataclass(frozen=True)
class Digits:
    """The task with one of `POSTERIORS`; the ensemble has `MEMBERS`."""

    posterior: str
    steps: int
    device: torch.device
    acquisitions = (RANDOM, "entropy", "BALD", "BatchBALD")
    size, candidates = 10, 1000

    @property
    def members(self) -> int:
        return MEMBERS if self.posterior == "ensemble" else 1

    @cached_property
    def data(self) -> tuple[Dataset, Dataset]:
        """h, standardised by its mean and one scale, and digits, of the training and of the test images."""
        split = mnist(flat=False, progress=False)
        train, test = (features(part.x) for part in (split.train, split.test))
        mean, scale = train.mean(0), train.std()
        return Dataset((train - mean) / scale, split.train.y), Dataset((test - mean) / scale, split.test.y)

    def draws(self, count: int) -> int:
        """So many draws, or one of each member."""
        return MEMBERS if self.posterior == "ensemble" else count

    def rows(self, seed: int) -> int:
        return len(self.data[0])

    def start(self, seed: int) -> Tensor:
        y = self.data[0].y
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
        return torch.cat([order[y[order] == digit][:PER_CLASS] for digit in range(10)])

    def train(self, labelled: Sequence[Tensor], seeds: Sequence[int]) -> list[Replicates]:
        train, members = self.data[0], self.members
        networks = [
            models.MLP(
                [train.x.shape[1], HIDDEN, 10], prior=priors.Gaussian(), likelihood=likelihoods.Categorical(),
                seed=MEMBERS * seed + member,
            )
            for seed in seeds for member in range(members)
        ]  # fmt: skip
        many = fit_replicates(
            networks, [POSTERIORS[self.posterior](network) for network in networks],
            [train.rows(rows) for rows in labelled for _ in range(members)], count=len(networks), steps=self.steps,
            batch_size=10 * PER_CLASS, lr=3e-3, estimator="local", seed=seeds[0], device=self.device, progress=False,
            engine="traced",  # every round has another number of rows, for which a program would be compiled
        )  # fmt: skip
        if many.failed:
            raise FloatingPointError(f"the loss of {self.posterior} stopped being finite in {sorted(many.failed)}")
        return [Replicates(many.fits[first : first + members]) for first in range(0, len(many), members)]

    def score(self, run: Replicates, seed: int) -> float:
        test = self.data[1]
        return accuracy(run.predict(test.x, self.draws(TEST_DRAWS), seed=seed), test.y)

    def best(self, run: Replicates, acquisition: str, rows: Tensor, seed: int) -> Tensor:
        prediction = run.predict(self.data[0].x[rows], self.draws(DRAWS), seed=seed)
        if acquisition == "BatchBALD":
            return acquire.batch(prediction, self.size, configurations=300, seed=seed).rows
        score = acquire.entropy if acquisition == "entropy" else acquire.bald
        return score(prediction).topk(self.size).indices


def features(x: Tensor) -> Tensor:
    """h of images ``[N, 1, 28, 28]``, ``[N, 256]``."""
    filters = torch.randn(FILTERS, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    filters -= filters.mean((2, 3), keepdim=True)
    filters /= filters.square().sum((2, 3), keepdim=True).sqrt()
    parts = [F.max_pool2d(F.conv2d(part, filters, padding=2).relu(), 7).flatten(1) for part in x.split(1000)]
    return torch.cat(parts)
