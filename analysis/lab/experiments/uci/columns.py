"""Posteriors as columns of the UCI table: how to build each for a training split and a grid point.

Network, initial values and the priors of the two penalties are those of `pyrodrop.zoo.uci`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from pyrodrop import guides, likelihoods, priors, schedules
from pyrodrop.analysis.lab.experiments.uci.plan import Noise, Part, Penalty, Plan
from pyrodrop.analysis.lab.experiments.uci.protocol import Point, Protocol
from pyrodrop.data import Dataset
from pyrodrop.devices import seeded
from pyrodrop.guides import Guide
from pyrodrop.models import NetworkModel
from pyrodrop.prediction.prediction import Predicts
from pyrodrop.priors import Prior
from pyrodrop.training.replicates import Replicates, fit_replicates
from pyrodrop.zoo.uci import LR, keras_start, released_prior

_STEPS = 8_000_000  # most steps of all replicates of one fit: about ten minutes of a core, then scores are stored
_START = 10.0  # learned precisions start at this over the variance of y


@dataclass(frozen=True)
class Column:
    """A posterior of the table.

    Attributes:
        summary: one-line description.
        guide: makes the posterior from a model and a drop rate.
        prior: makes the weights' prior from the training rows, the grid point and the penalty.
        noises: supported kinds of noise, the default first.
        with_rate: whether the posterior has a drop rate to set.
        lr: learning rate; ten times as large for a learned precision.
        decays: whether the learning rate falls to 0 along a cosine, as learned variances need; the published code has none.
        members: number of networks of an ensemble.
    """

    summary: str
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
        """Train all parts in one replicated fit. The seeds also determine the initial weights."""
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
    """The prior of either penalty; see the docstring of `pyrodrop.zoo.uci`."""
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


COLUMNS = {
    "bernoulli": Column(
        "MC dropout (Gal & Ghahramani 2016)",
        lambda model, rate: guides.BernoulliDropout(model, rate or 0.0, mask_input=True),
        _gal,
        noises=("grid", "learned", "heteroscedastic"),
        with_rate=True,
        lr=LR,
        decays=False,
    ),
    "none": Column(
        "the network of MC dropout without dropout",
        lambda model, _: guides.Point(model),
        _gal,
        noises=("grid", "learned", "heteroscedastic"),
        lr=LR,
        decays=False,
    ),
    "mean-field": Column("mean-field Gaussian", lambda model, _: guides.MeanField(model, 0.05), _standard),
    "variational-a": Column(
        "variational dropout A, one rate per input (Kingma et al. 2015)",
        lambda model, _: guides.VariationalDropout(model, "A", "input"),
        lambda *_: priors.LogUniform(),
    ),
    "variational-b": Column(
        "variational dropout B, one rate per weight (Kingma et al. 2015)",
        lambda model, _: guides.VariationalDropout(model, "B", "weight"),
        lambda *_: priors.LogUniform(),
    ),
    "sparse": Column(
        "sparse variational dropout (Molchanov et al. 2017)",
        lambda model, _: guides.SparseDropout(model),
        lambda *_: priors.LogUniform(),
    ),
    "ard": Column(
        "variational dropout with an ARD prior (Kharitonov et al. 2018)",
        lambda model, _: guides.ARDDropout(model),
        lambda *_: priors.ARD(),
    ),
    "concrete": Column(
        "concrete dropout (Gal, Hron & Kendall 2017)",
        lambda model, _: guides.ConcreteDropout(model, mask_input=True),
        _standard,
    ),
    "ensemble": Column(
        "five networks, maximum a posteriori (Lakshminarayanan et al. 2017)",
        lambda model, _: guides.Point(model),
        _standard,
        members=5,
    ),
}
