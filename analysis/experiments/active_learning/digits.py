"""MNIST: 2 labelled images of every class, then batches of 10.

    h = max over 7 x 7 pixels of relu(filters * x)      16 filters of 5 x 5, ~ N(0, 1), centred, of norm 1: never trained
    f = W_2 relu(W_1 h)                                 256-128-10,  W ~ N(0, 1),  biases are point estimates

First rows and batches are those of Kirsch, van Amersfoort & Gal (2019), https://arxiv.org/abs/1906.08158. Their network has
two trained convolutions, with dropout after each; with these filters, h is computed once for all images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis import acquire
from pyrodrop.analysis.experiments.active_learning.loop import RANDOM, Task
from pyrodrop.data import Dataset, mnist
from pyrodrop.guides import Guide
from pyrodrop.metrics import accuracy
from pyrodrop.training.replicates import Replicates

PER_CLASS, HIDDEN, MEMBERS = 2, 128, 5
DRAWS, TEST_DRAWS, CONFIGURATIONS = 50, 20, 300
ENSEMBLE = "ensemble"
POSTERIORS: Mapping[str, Callable[[Any], Guide]] = {
    "MC dropout": lambda model: guides.BernoulliDropout(model, 0.5, mask_input=False),
    "mean field": guides.MeanField,
    ENSEMBLE: guides.Point,
}


class Digits(Task):
    """One of `POSTERIORS`; the score is the accuracy. An ensemble has `MEMBERS`, which are its draws."""

    acquisitions = (RANDOM, "entropy", "BALD", "BatchBALD")
    size, candidates = 10, 1000

    def data(self, seed: int) -> tuple[Dataset, Dataset]:
        return _data()

    def start(self, seed: int) -> Tensor:
        y = _data()[0].y
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
        return torch.cat([order[y[order] == digit][:PER_CLASS] for digit in range(10)])

    def train(self, parts: Sequence[Dataset], seeds: Sequence[int]) -> list[Replicates]:
        widths, members = [parts[0].x.shape[1], HIDDEN, 10], MEMBERS if self.posterior == ENSEMBLE else 1
        networks = [
            models.MLP(widths, prior=priors.Gaussian(), likelihood=likelihoods.Categorical(), seed=MEMBERS * seed + number)
            for seed in seeds for number in range(members)
        ]  # fmt: skip
        data_of_members = [data for data in parts for _ in range(members)]
        many = self.fits(
            networks, POSTERIORS[self.posterior], data_of_members, batch_size=10 * PER_CLASS, lr=3e-3, seed=seeds[0]
        )
        return [Replicates(many.fits[first : first + members]) for first in range(0, len(many), members)]

    def score(self, run: Replicates, test: Dataset, seed: int) -> float:
        return accuracy(run.predict(test.x, MEMBERS if len(run) > 1 else TEST_DRAWS, seed=seed), test.y)

    def best(self, run: Replicates, acquisition: str, x: Tensor, seed: int) -> Tensor:
        prediction = run.predict(x, MEMBERS if len(run) > 1 else DRAWS, seed=seed)
        if acquisition == "BatchBALD":
            return acquire.batch(prediction, self.size, configurations=CONFIGURATIONS, seed=seed).rows
        score = acquire.entropy if acquisition == "entropy" else acquire.bald
        return score(prediction).topk(self.size).indices


@cache
def _data() -> tuple[Dataset, Dataset]:
    """h, less its mean and over one scale, and the digits."""
    split = mnist(flat=False, progress=False)
    train, test = (features(data.x) for data in (split.train, split.test))
    mean, scale = train.mean(0), train.std()
    return Dataset((train - mean) / scale, split.train.y), Dataset((test - mean) / scale, split.test.y)


def features(x: Tensor) -> Tensor:
    """h of images ``[N, 1, 28, 28]``, ``[N, 256]``."""
    filters = torch.randn(16, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    filters -= filters.mean((2, 3), keepdim=True)
    filters /= filters.square().sum((2, 3), keepdim=True).sqrt()
    return torch.cat(
        [F.max_pool2d(F.conv2d(images, filters, padding=2).relu(), 7).flatten(1) for images in x.split(1000)]
    )
