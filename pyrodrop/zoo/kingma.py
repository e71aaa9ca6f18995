"""Dropout methods on MNIST: Kingma, Salimans & Welling (2015), section 5.1, and section 5.2 with figure 1.

784 - width - width - width - 10, ReLU;   Adam;   https://arxiv.org/abs/1506.02557

`kingma/...`, table 1: type B with one learned alpha per layer, log-uniform prior, minibatches of 1,000.

`kingma-fig1a/...`: drop rate 0.2 for the inputs and 0.5 for hidden units, minibatches of 100,

    A   noise on the inputs of a layer          B   noise on its outputs, independent weights
    gaussian     alpha = rate / (1 - rate)      variational     one learned alpha per layer, initially 0.43
    variational-a2     A, with the KL divergence weighted by 1/3

Binary dropout and no dropout have a flat prior. The paper averages parameters over time and stops early on a validation set.
Here the learning rate falls to 0 over the second half of a fixed number of epochs, on all 60,000 digits.
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
from pyrodrop.zoo.entry import Check, Entry

TABLE_1_BATCH, TABLE_1_EPOCHS = 1000, 100
BATCH, EPOCHS = 100, 200
WIDTH = 250
PUBLISHED_WIDTHS = (100, 250, 500, 750, 1000, 1250)
# Test errors in percent at these widths, means of five runs. The paper does not print them: they were read off an image of
# the preprint's figure. An error bar is taken to be the standard error of the mean.
READ_OFF = "read off the figure, ± 0.01"
PUBLISHED: Mapping[str, tuple[float, ...]] = {
    "none": (1.44, 1.3, 1.22, 1.18, 1.18, 1.18),
    "binary": (2.17, 1.39, 1.22, 1.1, 1.02, 1.065),
    "gaussian-a": (2.4, 1.43, 1.18, 1.1, 1.03, 0.985),
    "gaussian-b": (2.005, 1.457, 1.275, 1.26, 1.19, 1.265),
    "variational-a": (1.42, 1.265, 1.125, 1.06, 1.02, 1.0),
    "variational-a2": (1.51, 1.21, 1.065, 0.948, 0.945, 0.93),
    "variational-b": (1.583, 1.375, 1.29, 1.225, 1.165, 1.21),
}
ERROR_BARS: Mapping[str, float] = {  # at the width of the entries
    "none": 0.04, "binary": 0.02, "gaussian-a": 0.03, "gaussian-b": 0.03, "variational-a": 0.03, "variational-a2": 0.03,
    "variational-b": 0.03,
}  # fmt: skip
RUNS = 5


@dataclass(frozen=True)
class Method:
    """A curve of the figure.

    Attributes:
        summary: the curve's name in the figure.
        guide: makes the posterior.
        prior: makes the prior of the weights.
        published: test errors in percent at `PUBLISHED_WIDTHS`, read off the figure.
    """

    summary: str
    guide: Callable[[NetworkModel], Guide]
    prior: Callable[[], Prior]
    published: tuple[float, ...]


def _methods() -> dict[str, Method]:
    """The methods by name."""
    rates = {"layers.0.*": 0.2, "*": 0.5}
    gaussian = functools.partial(guides.GaussianDropout, drop_rate=rates)
    learned = functools.partial(guides.VariationalDropout, rates="layer", drop_rate=0.3)
    flat = functools.partial(priors.Gaussian, scale=FLAT)
    posteriors: dict[str, tuple[str, Callable[[NetworkModel], Guide], Callable[[], Prior]]] = {
        "none": ("no dropout", guides.Point, flat),
        "binary": ("binary dropout", functools.partial(guides.BernoulliDropout, drop_rate=rates), flat),
        "gaussian-a": ("Gaussian dropout A", functools.partial(gaussian, kind="A"), priors.LogUniform),
        "gaussian-b": ("Gaussian dropout B", functools.partial(gaussian, kind="B"), priors.LogUniform),
        "variational-a": ("variational dropout A", functools.partial(learned, kind="A"), priors.LogUniform),
        "variational-a2": (
            "variational dropout A2",
            functools.partial(learned, kind="A", kl_scale=1 / 3),
            priors.LogUniform,
        ),
        "variational-b": ("variational dropout B", functools.partial(learned, kind="B"), priors.LogUniform),
    }
    return {name: Method(*posterior, PUBLISHED[name]) for name, posterior in posteriors.items()}


def falling(step: int, *, steps: int) -> float:
    """Factor of the learning rate: 1 for the first half of the steps, then linear to 0."""
    return min(1.0, 2 * (1 - step / steps))


def training(data: Dataset, *, epochs: int = EPOCHS) -> dict[str, Any]:
    """Arguments of `pyrodrop.fit` for this number of epochs."""
    steps = epochs * -(-len(data) // BATCH)
    schedule = functools.partial(falling, steps=steps)
    return {"steps": steps, "batch_size": BATCH, "lr": 1e-3, "estimator": "local", "lr_schedule": schedule}


METHODS: Mapping[str, Method] = _methods()


def network(data: Dataset, *, method: str, width: int) -> NetworkModel:
    """The network of this width with the prior of this method."""
    prior, likelihood = METHODS[method].prior(), likelihoods.Categorical()
    return MLP([784, width, width, width, 10], prior=prior, likelihood=likelihood, seed=None)


def _table_1_training(data: Dataset) -> dict[str, Any]:
    steps = TABLE_1_EPOCHS * -(-len(data) // TABLE_1_BATCH)
    return {"steps": steps, "batch_size": TABLE_1_BATCH, "lr": 1e-3, "estimator": "local"}


_TABLE_1 = tuple(
    Entry(
        name=f"kingma/{name}",
        summary=f"variational dropout B on MNIST, relu, 3 x {width}, {TABLE_1_EPOCHS} epochs",
        source="Kingma, Salimans & Welling (2015), table 1",
        data="mnist",
        model=functools.partial(network, method="variational-b", width=width),
        guide=METHODS["variational-b"].guide,
        training=_table_1_training,
        published={},
        purpose="classification of digits",
        check=Check(steps=30, train=10_000, test=1000),
    )
    for name, width in (("variational-b-small", 200), ("variational-b", 1000))
)

_FIGURE_1A = tuple(
    Entry(
        name=f"kingma-fig1a/{name}",
        summary=f"{method.summary} on MNIST, relu, 3 x {WIDTH}, {EPOCHS} epochs",
        source="Kingma, Salimans & Welling (2015), figure 1a",
        data="mnist",
        model=functools.partial(network, method=name, width=WIDTH),
        guide=method.guide,
        training=training,
        published={"error_percent": method.published[PUBLISHED_WIDTHS.index(WIDTH)]},
        purpose="classification of digits",
        check=Check(steps=60, train=5000, test=1000),
        published_as=READ_OFF,
        published_errors={"error_percent": ERROR_BARS[name]},
        published_runs=RUNS,
    )
    for name, method in METHODS.items()
)

ENTRIES = (*_TABLE_1, *_FIGURE_1A)
