"""Posteriors as columns of the UCI table: how to build each for a training split and a grid point.

Network, initial values and the priors of the two penalties are those of `pyrodrop.zoo.networks`. Gaussian processes have
no grid and no validation; their hyperparameters and noise maximise the evidence of each split, which is exact for up to
10,000 rows, with inducing points above:

    gp      squared exponential, one length scale per input
    nngp    the infinitely wide network with one hidden layer of ReLU units, including biases
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch

from pyrodrop import guides, likelihoods, models, priors, schedules
from pyrodrop.analysis.comparison.predicts import Predicts
from pyrodrop.analysis.gp import GaussianProcess, Start, from_model
from pyrodrop.analysis.lab.experiments.uci.protocol import Point, Protocol
from pyrodrop.checks import EngineName
from pyrodrop.data import Dataset
from pyrodrop.devices import seeded
from pyrodrop.guides import Guide
from pyrodrop.models import NetworkModel
from pyrodrop.priors import Prior
from pyrodrop.training.replicates import Replicates, fit_replicates
from pyrodrop.zoo.networks import keras_start, released_prior

_STEPS = 8_000_000  # most steps of all replicates of one fit: about ten minutes of a core, then scores are stored
_START = 10.0  # learned precisions start at this over the variance of y


Penalty = Literal["released", "paper"]
Noise = Literal["grid", "learned", "heteroscedastic"]
Precision = Literal["auto", "grid", "learned", "heteroscedastic"]


class Part(NamedTuple):
    """One training of the table: rows, and the point of the grid."""

    train: Dataset
    point: Point


@dataclass(frozen=True)
class Plan:
    """Common settings of all trainings of a cell."""

    epochs: int
    batch: int
    hidden: tuple[int, ...]
    precision: Noise
    penalty: Penalty
    seed: int
    device: torch.device
    engine: EngineName = "auto"


@dataclass(frozen=True)
class Column:
    """A posterior of the table.

    Attributes:
        guide: makes the posterior from a model and a drop rate.
        prior: makes the weights' prior from the training rows, the grid point and the penalty.
        noises: supported kinds of noise, the default first.
        with_rate: whether the posterior has a drop rate to set.
        lr: learning rate; ten times as large for a learned precision.
        decays: whether the learning rate falls to 0 along a cosine, as learned variances need; the published code has none.
        members: number of networks of an ensemble.
    """

    guide: Callable[[NetworkModel, float | None], Guide]
    prior: Callable[[Dataset, Point, Penalty], Prior]
    noises: tuple[Noise, ...] = ("learned", "grid", "heteroscedastic")
    with_rate: bool = False
    lr: float = 5e-3
    decays: bool = True
    members: int = 1

    def draws(self, protocol: Protocol) -> int:
        """The number of samples of the protocol, or the number of members of an ensemble."""
        return self.members if self.members > 1 else protocol.draws

    def predictors(self, parts: Sequence[Part], plan: Plan, first: int, progress: bool | None) -> list[Predicts | None]:
        """Train all parts in one replicated fit; None for one whose loss was not finite.

        Part i has the seed ``plan.seed + first + i``, also of its initial weights; an ensemble of m has the m seeds from
        ``plan.seed + (first + i) m``.
        """
        repeated = [part for part in parts for _ in range(self.members)]
        seed = plan.seed + first * self.members
        built = [self.build(part.train, plan, part.point, seed + number) for number, part in enumerate(repeated)]
        steps = plan.epochs * -(-len(parts[0].train) // plan.batch)
        falling = schedules.cosine(steps) if self.decays else None
        many = fit_replicates(
            [model for model, _ in built], [guide for _, guide in built], [part.train for part in repeated],
            count=len(repeated), steps=steps, batch_size=plan.batch, lr=self.rate_of, lr_schedule=falling, estimator="local",
            engine=plan.engine, device=plan.device, seed=seed, progress=progress,
        )  # fmt: skip
        predictors: list[Predicts | None] = []
        for begin in range(0, len(repeated), self.members):
            numbers = range(begin, begin + self.members)
            broken = any(number in many.failed for number in numbers)
            members = [many[number] for number in numbers]
            predictors.append(None if broken else members[0] if self.members == 1 else Replicates(members))
        return predictors

    def at_once(self, rows: int, plan: Plan) -> int:
        """The number of parts that can be trained in about ten minutes."""
        return max(1, _STEPS // (plan.epochs * -(-rows // plan.batch) * self.members))

    def rate_of(self, name: str) -> float:
        """Learning rate of a parameter."""
        return 10 * self.lr if name.endswith("precision") else self.lr

    def build(self, data: Dataset, plan: Plan, point: Point, seed: int) -> tuple[NetworkModel, Guide]:
        """Model and guide, with the initial weights that `seed` draws."""
        width, outputs = data.x.shape[1], 2 if plan.precision == "heteroscedastic" else 1
        with seeded(seed, torch.device("cpu")):
            network = keras_start([width, *plan.hidden, outputs], _keep(point))
        prior, likelihood = self.prior(data, point, plan.penalty), _likelihood(data, point, plan.precision)
        model = NetworkModel(network, prior=prior, likelihood=likelihood, bias_prior=None, in_features=width)
        return model, self.guide(model, point.drop_rate)


def _gal(data: Dataset, point: Point, penalty: Penalty) -> Prior:
    """The prior of either penalty; see the docstring of `pyrodrop.zoo.networks`."""
    if penalty == "paper":
        return priors.Gaussian(length_scale=point.length_scale)
    return released_prior(data, point.length_scale, _keep(point))


def _keep(point: Point) -> float:
    return 1 - (point.drop_rate or 0.0)


def _likelihood(data: Dataset, point: Point, precision: str) -> likelihoods.Likelihood:
    assert data.targets is not None
    if precision == "heteroscedastic":
        return likelihoods.HeteroscedasticGaussian()
    if precision == "learned":
        return likelihoods.Gaussian(_START / float(data.targets.scale) ** 2, learned=True)
    assert point.precision is not None
    return likelihoods.Gaussian(point.precision)


def _standard(data: Dataset, point: Point, penalty: Penalty) -> Prior:
    return priors.Gaussian(1.0)


def _log_uniform(data: Dataset, point: Point, penalty: Penalty) -> Prior:
    return priors.LogUniform()


GAL: Mapping[str, Any] = {"noises": ("grid", "learned", "heteroscedastic"), "lr": 1e-3, "decays": False}
COLUMNS = {
    "bernoulli": Column(
        lambda model, rate: guides.BernoulliDropout(model, rate or 0.0, mask_input=True), _gal, with_rate=True, **GAL
    ),
    "none": Column(lambda model, _: guides.Point(model), _gal, **GAL),  # that of MC dropout without dropout
    "mean-field": Column(lambda model, _: guides.MeanField(model, 0.05), _standard),
    "variational-a": Column(lambda model, _: guides.VariationalDropout(model, "A", "input"), _log_uniform),
    "variational-b": Column(lambda model, _: guides.VariationalDropout(model, "B", "weight"), _log_uniform),
    "sparse": Column(lambda model, _: guides.SparseDropout(model), _log_uniform),
    "ard": Column(lambda model, _: guides.ARDDropout(model), lambda *_: priors.ARD()),
    "concrete": Column(lambda model, _: guides.ConcreteDropout(model, mask_input=True), _standard),
    "ensemble": Column(lambda model, _: guides.Point(model), _standard, members=5),  # of maximum a posteriori
}


@dataclass(frozen=True)
class Process:
    """A Gaussian process, with the kernel that a function makes from the training rows and the plan."""

    kernel: Callable[[Dataset, Plan], str | Start]
    noises: tuple[Noise, ...] = ("learned",)
    with_rate: bool = False

    def draws(self, protocol: Protocol) -> int:
        """1, since the distribution of y is known in closed form."""
        return 1

    def at_once(self, rows: int, plan: Plan) -> int:
        """One after the other."""
        return 1

    def predictors(self, parts: Sequence[Part], plan: Plan, first: int, progress: bool | None) -> list[GaussianProcess]:
        """A process for every part."""
        return [
            GaussianProcess(train, self.kernel(train, plan), seed=plan.seed + first + number, progress=progress)
            for number, (train, _) in enumerate(parts)
        ]


def _network(data: Dataset, plan: Plan) -> Start:
    """The kernel of the table's network; the search starts at weight variances of one over the fan-in."""
    widths = [data.x.shape[1], *plan.hidden, 1]
    assert data.targets is not None
    model = models.MLP(
        widths,
        prior={f"layers.{n}.weight": priors.Gaussian(1 / math.sqrt(width)) for n, width in enumerate(widths[:-1])},
        bias_prior=priors.Gaussian(1.0),
        likelihood=likelihoods.Gaussian(10 / float(data.targets.scale) ** 2),
    )
    model.standardize(data)
    return from_model(model)


POSTERIORS: Mapping[str, Column | Process] = {
    **COLUMNS, "gp": Process(lambda *_: "squared-exponential"), "nngp": Process(_network)
}  # fmt: skip
