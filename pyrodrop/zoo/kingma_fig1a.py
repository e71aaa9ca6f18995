"""Dropout methods on MNIST by width, Kingma, Salimans & Welling (2015), section 5.2, figure 1a.

784 - width - width - width - 10, ReLU;   drop rate 0.2 for the inputs and 0.5 for hidden units;   Adam

    A   noise on the inputs of a layer          B   noise on its outputs, independent weights
    gaussian     alpha = rate / (1 - rate)      variational     one learned alpha per layer, initially 0.43
    variational-a2     A, with the KL divergence weighted by 1/3

https://arxiv.org/abs/1506.02557. The paper averages parameters over time and stops early on a validation set. Here the
learning rate falls to 0 over the second half of a fixed number of epochs, on all 60,000 digits. Binary dropout and no
dropout have a flat prior.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyrodrop import guides, likelihoods, priors
from pyrodrop.data import Dataset
from pyrodrop.guides import Guide
from pyrodrop.models import MLP, NetworkModel
from pyrodrop.priors import Prior
from pyrodrop.zoo.caffe import FLAT
from pyrodrop.zoo.decay import late
from pyrodrop.zoo.entry import Check, Entry

BATCH, EPOCHS, WIDTH = 100, 200, 250
RATES = {"layers.0.*": 0.2, "*": 0.5}
PUBLISHED_WIDTHS = (100, 250, 500, 750, 1000, 1250)


@dataclass(frozen=True)
class Method:
    """A curve of the figure.

    Attributes:
        summary: the curve's name in the figure.
        guide: makes the posterior.
        prior: makes the prior of the weights.
        published: test errors in percent at `PUBLISHED_WIDTHS`, read off the preprint's figure to about 0.01.
    """

    summary: str
    guide: Callable[[NetworkModel], Guide]
    prior: Callable[[], Prior]
    published: tuple[float, ...]


_flat = functools.partial(priors.Gaussian, scale=FLAT)
_gaussian = functools.partial(guides.GaussianDropout, drop_rate=RATES)
_learned = functools.partial(guides.VariationalDropout, rates="layer", drop_rate=0.3)

METHODS: Mapping[str, Method] = {
    "none": Method("no dropout", guides.Point, _flat, (1.44, 1.3, 1.22, 1.18, 1.18, 1.18)),
    "binary": Method(
        "binary dropout",
        functools.partial(guides.BernoulliDropout, drop_rate=RATES),
        _flat,
        (2.17, 1.39, 1.22, 1.1, 1.02, 1.065),
    ),
    "gaussian-a": Method(
        "Gaussian dropout A",
        functools.partial(_gaussian, kind="A"),
        priors.LogUniform,
        (2.4, 1.43, 1.18, 1.1, 1.03, 0.985),
    ),
    "gaussian-b": Method(
        "Gaussian dropout B",
        functools.partial(_gaussian, kind="B"),
        priors.LogUniform,
        (2.005, 1.457, 1.275, 1.26, 1.19, 1.265),
    ),
    "variational-a": Method(
        "variational dropout A",
        functools.partial(_learned, kind="A"),
        priors.LogUniform,
        (1.42, 1.265, 1.125, 1.06, 1.02, 1.0),
    ),
    "variational-a2": Method(
        "variational dropout A2",
        functools.partial(_learned, kind="A", kl_scale=1 / 3),
        priors.LogUniform,
        (1.51, 1.21, 1.065, 0.948, 0.945, 0.93),
    ),
    "variational-b": Method(
        "variational dropout B",
        functools.partial(_learned, kind="B"),
        priors.LogUniform,
        (1.583, 1.375, 1.29, 1.225, 1.165, 1.21),
    ),
}


def network(data: Dataset, *, method: str, width: int) -> NetworkModel:
    """The network of this width with the prior of this method."""
    prior, likelihood = METHODS[method].prior(), likelihoods.Categorical()
    return MLP([784, width, width, width, 10], prior=prior, likelihood=likelihood)


def falling(step: int, *, steps: int) -> float:
    """Factor of the learning rate: 1 for the first half of the steps, then linear to 0."""
    return late(step / steps)


def training(data: Dataset, *, epochs: int = EPOCHS) -> dict[str, Any]:
    """Arguments of `pyrodrop.fit`."""
    steps = epochs * -(-len(data) // BATCH)
    schedule = functools.partial(falling, steps=steps)
    return {"steps": steps, "batch_size": BATCH, "lr": 1e-3, "estimator": "local", "lr_schedule": schedule}


ENTRIES = tuple(
    Entry(
        name=f"kingma-fig1a/{name}",
        summary=f"{method.summary} on MNIST, relu, 3 x {WIDTH}, {EPOCHS} epochs",
        source="Kingma, Salimans & Welling (2015), figure 1a",
        data="mnist",
        model=functools.partial(network, method=name, width=WIDTH),
        guide=method.guide,
        training=training,
        published={"error_percent": method.published[PUBLISHED_WIDTHS.index(WIDTH)]},
        check=Check(steps=60, train=5000, test=1000),
    )
    for name, method in METHODS.items()
)
