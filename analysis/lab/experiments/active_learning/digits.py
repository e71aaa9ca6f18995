"""MNIST: 2 labelled images of every class, then batches of 10.

    h = max over 7 x 7 pixels of relu(filters * x)      16 filters of 5 x 5, ~ N(0, 1), centred, of norm 1: never trained
    f = W_2 relu(W_1 h)                                 256-128-10,  W ~ N(0, 1),  biases are point estimates

First rows and batches are those of Kirsch, van Amersfoort & Gal (2019), https://arxiv.org/abs/1906.08158, as are the
convolutions of `Trained`, with half as many filters:

    h = pool relu(F_2 * pool relu(F_1 * x))             16 and 32 filters of 5 x 5, the largest of 2 x 2 pixels
    f = W_2 relu(W_1 h)                                 512-128-10,  all weights ~ N(0, 10^2)

Drop rates are .25 of h and .5 of the hidden units, as in Gal, Islam & Ghahramani (2017), https://arxiv.org/abs/1703.02910;
filters are point estimates. Those of `Frozen` stay at their initial values, so that h is computed once; in `Equal`, h of all
images has one norm. EPIG asks about the first `TARGETS` candidates (Smith et al., 2023, https://arxiv.org/abs/2304.08151).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis import acquire
from pyrodrop.analysis.lab.experiments.active_learning.loop import RANDOM, Task
from pyrodrop.data import Dataset, mnist
from pyrodrop.guides import Guide
from pyrodrop.metrics import accuracy
from pyrodrop.models import NetworkModel
from pyrodrop.networks.sites import starting_from
from pyrodrop.training.replicates import Replicates

PER_CLASS, HIDDEN, MEMBERS = 2, 128, 5
DRAWS, TEST_DRAWS, CONFIGURATIONS = 50, 20, 300
ENSEMBLE = "ensemble"
POSTERIORS: Mapping[str, Callable[[Any], Guide]] = {
    "MC dropout": lambda model: guides.BernoulliDropout(model, 0.5, mask_input=False),
    "mean field": guides.MeanField,
    ENSEMBLE: guides.Point,
}
TRAINED, FROZEN = "MC dropout, trained filters", "MC dropout, frozen filters"
EQUAL = f"{FROZEN}, equal norms"
FILTERS, TARGETS = 7, 200


class Digits(Task):
    """One of `POSTERIORS`; the score is the accuracy. An ensemble has `MEMBERS`, which are its draws."""

    acquisitions: ClassVar[tuple[str, ...]] = (RANDOM, "entropy", "BALD", "BatchBALD")
    size, candidates = 10, 1000

    def data(self, seed: int) -> tuple[Dataset, Dataset]:
        return _data()

    def start(self, seed: int) -> Tensor:
        y = self.data(seed)[0].y
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
        return torch.cat([order[y[order] == digit][:PER_CLASS] for digit in range(10)])

    def train(self, parts: Sequence[Dataset], seeds: Sequence[int]) -> list[Replicates]:
        members = MEMBERS if self.posterior == ENSEMBLE else 1
        networks = [self.network(MEMBERS * seed + number) for seed in seeds for number in range(members)]
        data_of_members = [data for data in parts for _ in range(members)]
        many = self.fits(networks, self.guide, data_of_members, batch_size=10 * PER_CLASS, lr=3e-3, seed=seeds[0])
        return [Replicates(many.fits[first : first + members]) for first in range(0, len(many), members)]

    def network(self, seed: int) -> NetworkModel:
        """With initial weights of this seed."""
        return models.MLP(
            [_data()[0].x.shape[1], HIDDEN, 10],
            prior=priors.Gaussian(),
            likelihood=likelihoods.Categorical(),
            seed=seed,
        )

    def guide(self, model: NetworkModel) -> Guide:
        return POSTERIORS[self.posterior](model)

    def score(self, run: Replicates, test: Dataset, seed: int) -> float:
        return accuracy(run.predict(test.x, MEMBERS if len(run) > 1 else TEST_DRAWS, seed=seed), test.y)

    def best(self, run: Replicates, acquisition: str, x: Tensor, seed: int) -> Tensor:
        prediction = run.predict(x, MEMBERS if len(run) > 1 else DRAWS, seed=seed)
        if acquisition == "BatchBALD":
            return acquire.batch(prediction, self.size, configurations=CONFIGURATIONS, seed=seed).rows
        if acquisition == "EPIG":
            return acquire.epig(prediction, range(min(TARGETS, len(x)))).topk(self.size).indices
        score = acquire.entropy if acquisition == "entropy" else acquire.bald
        return score(prediction).topk(self.size).indices


class Trained(Digits):
    """The filters are trained, too; the score is the accuracy on every third test image."""

    acquisitions = (*Digits.acquisitions, "EPIG")
    first: ClassVar[int] = 0  # layer of what is trained

    def data(self, seed: int) -> tuple[Dataset, Dataset]:
        return _images()

    def network(self, seed: int) -> NetworkModel:
        return models.from_module(_layers(seed)[self.first :], priors.Gaussian(10.0), likelihoods.Categorical())

    def guide(self, model: NetworkModel) -> Guide:
        return guides.BernoulliDropout(model, {"7.*": 0.25, "9.*": 0.5, "*": 0.0})


class Frozen(Trained):
    """The filters stay those with which `Trained` starts; h has the scale 1."""

    acquisitions = (RANDOM, "entropy", "BALD")
    first = FILTERS

    def data(self, seed: int) -> tuple[Dataset, Dataset]:
        return _filtered(MEMBERS * seed, equal=False)


class Equal(Frozen):
    """The same with h of every image at the scale 1."""

    def data(self, seed: int) -> tuple[Dataset, Dataset]:
        return _filtered(MEMBERS * seed, equal=True)


def _layers(seed: int) -> nn.Sequential:
    """`FILTERS` layers that compute h, and the dense ones."""
    with starting_from(seed):
        return nn.Sequential(
            nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(512, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10),
        )  # fmt: skip


@cache
def _data() -> tuple[Dataset, Dataset]:
    """h, less its mean and over one scale, and the digits."""
    split = mnist(flat=False, progress=False)
    train, test = (features(data.x) for data in (split.train, split.test))
    mean, scale = train.mean(0), train.std()
    return Dataset((train - mean) / scale, split.train.y), Dataset((test - mean) / scale, split.test.y)


@cache
def _images() -> tuple[Dataset, Dataset]:
    """Images, less their mean and over one scale, and the digits."""
    split = mnist(flat=False, progress=False)
    mean, scale, test = split.train.x.mean(), split.train.x.std(), split.test.rows(slice(None, None, 3))
    return Dataset((split.train.x - mean) / scale, split.train.y), Dataset((test.x - mean) / scale, test.y)


@cache
def _filtered(seed: int, *, equal: bool) -> tuple[Dataset, Dataset]:
    """h of `Frozen`, and the digits."""
    filters, parts = _layers(seed)[:FILTERS], _images()
    with torch.no_grad():
        train, test = (torch.cat([filters(images) for images in part.x.split(1000)]) for part in parts)
    scales = [h.square().mean(1, keepdim=True).sqrt() if equal else train.square().mean().sqrt() for h in (train, test)]
    return Dataset(train / scales[0], parts[0].y), Dataset(test / scales[1], parts[1].y)


def ink(rows: Sequence[Sequence[Sequence[int]]]) -> list[list[float]]:
    """The mean pixel of rows of images, over that of all, by round and seed."""
    x = mnist(flat=False, progress=False).train.x.flatten(1)
    return (x[torch.tensor(rows)].mean((2, 3)) / x.mean()).tolist()  # type: ignore[no-any-return]


def features(x: Tensor) -> Tensor:
    """h of images ``[N, 1, 28, 28]``, ``[N, 256]``."""
    filters = torch.randn(16, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    filters -= filters.mean((2, 3), keepdim=True)
    filters /= filters.square().sum((2, 3), keepdim=True).sqrt()
    return torch.cat(
        [F.max_pool2d(F.conv2d(images, filters, padding=2).relu(), 7).flatten(1) for images in x.split(1000)]
    )
