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
from typing import Any, NamedTuple

from pyrodrop import guides, likelihoods, priors
from pyrodrop.data import Dataset
from pyrodrop.guides import Guide
from pyrodrop.models import MLP, NetworkModel
from pyrodrop.priors import Prior
from pyrodrop.zoo.caffe import FLAT
from pyrodrop.zoo.entry import Check, Entry, settings

TABLE_1_BATCH, TABLE_1_EPOCHS = 1000, 100
BATCH, EPOCHS = 100, 200
WIDTH = 250
PUBLISHED_WIDTHS = (100, 250, 500, 750, 1000, 1250)
# Test errors in percent at these widths, means of five runs. The paper does not print them: they were read off an image of
# the preprint's figure. An error bar is taken to be the standard error of the mean.
READ_OFF = "read off the figure, ± 0.01"
RUNS = 5
_RATES = {"layers.0.*": 0.2, "*": 0.5}
_gaussian = functools.partial(guides.GaussianDropout, drop_rate=_RATES)
_learned = functools.partial(guides.VariationalDropout, rates="layer", drop_rate=0.3)
_flat = functools.partial(priors.Gaussian, scale=FLAT)


class Method(NamedTuple):
    """A curve of the figure.

    Attributes:
        summary: the curve's name in the figure.
        guide: makes the posterior.
        prior: makes the prior of the weights.
        published: test errors in percent at `PUBLISHED_WIDTHS`, read off the figure.
        bar: the error bar at the width of the entries.
    """

    summary: str
    guide: Callable[[NetworkModel], Guide]
    prior: Callable[[], Prior]
    published: tuple[float, ...]
    bar: float


METHODS: Mapping[str, Method] = {
    "none": Method("no dropout", guides.Point, _flat, (1.44, 1.3, 1.22, 1.18, 1.18, 1.18), 0.04),
    "binary": Method(
        "binary dropout", functools.partial(guides.BernoulliDropout, drop_rate=_RATES), _flat,
        (2.17, 1.39, 1.22, 1.1, 1.02, 1.065), 0.02,
    ),
    "gaussian-a": Method(
        "Gaussian dropout A", functools.partial(_gaussian, kind="A"), priors.LogUniform,
        (2.4, 1.43, 1.18, 1.1, 1.03, 0.985), 0.03,
    ),
    "gaussian-b": Method(
        "Gaussian dropout B", functools.partial(_gaussian, kind="B"), priors.LogUniform,
        (2.005, 1.457, 1.275, 1.26, 1.19, 1.265), 0.03,
    ),
    "variational-a": Method(
        "variational dropout A", functools.partial(_learned, kind="A"), priors.LogUniform,
        (1.42, 1.265, 1.125, 1.06, 1.02, 1.0), 0.03,
    ),
    "variational-a2": Method(
        "variational dropout A2", functools.partial(_learned, kind="A", kl_scale=1 / 3), priors.LogUniform,
        (1.51, 1.21, 1.065, 0.948, 0.945, 0.93), 0.03,
    ),
    "variational-b": Method(
        "variational dropout B", functools.partial(_learned, kind="B"), priors.LogUniform,
        (1.583, 1.375, 1.29, 1.225, 1.165, 1.21), 0.03,
    ),
}  # fmt: skip


def falling(step: int, *, steps: int) -> float:
    """Factor of the learning rate: 1 for the first half of the steps, then linear to 0."""
    return min(1.0, 2 * (1 - step / steps))


def training(data: Dataset, *, epochs: int = EPOCHS) -> dict[str, Any]:
    """Arguments of `pyrodrop.fit` for this number of epochs."""
    return settings(
        data, epochs=epochs, batch_size=BATCH, lr=1e-3, estimator="local",
        schedule=lambda steps: functools.partial(falling, steps=steps),
    )  # fmt: skip


def network(data: Dataset, *, method: str, width: int) -> NetworkModel:
    """The network of this width with the prior of this method."""
    prior, likelihood = METHODS[method].prior(), likelihoods.Categorical()
    return MLP([784, width, width, width, 10], prior=prior, likelihood=likelihood, seed=None)


def _table_1_training(data: Dataset) -> dict[str, Any]:
    return settings(data, epochs=TABLE_1_EPOCHS, batch_size=TABLE_1_BATCH, lr=1e-3, estimator="local")


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
        published_errors={"error_percent": method.bar},
        published_runs=RUNS,
    )
    for name, method in METHODS.items()
)

ENTRIES = (*_TABLE_1, *_FIGURE_1A)
