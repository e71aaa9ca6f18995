"""Dropout methods on MNIST by width, Kingma, Salimans & Welling (2015), section 5.2, figure 1a.

784 - width - width - width - 10, ReLU;   the methods of `pyrodrop.zoo.kingma_methods`;   Adam

https://arxiv.org/abs/1506.02557. The paper averages parameters over time and stops early on a validation set. Here the
learning rate falls to 0 over the second half of a fixed number of epochs, on all 60,000 digits.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from pyrodrop import likelihoods
from pyrodrop.data import Dataset
from pyrodrop.models import MLP, NetworkModel
from pyrodrop.zoo.entry import Check, Entry
from pyrodrop.zoo.kingma_methods import EPOCHS, Method, falling, methods, training

__all__ = ["ENTRIES", "EPOCHS", "METHODS", "PUBLISHED_WIDTHS", "falling", "network", "training"]

WIDTH = 250
PUBLISHED_WIDTHS = (100, 250, 500, 750, 1000, 1250)
# Test errors in percent at these widths, means of five runs. The paper prints none: they were read off an image of the
# preprint's figure. An error bar is taken for the standard error of the mean.
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
METHODS: Mapping[str, Method] = methods("layers.0.*", published=PUBLISHED)


def network(data: Dataset, *, method: str, width: int) -> NetworkModel:
    """The network of this width with the prior of this method."""
    prior, likelihood = METHODS[method].prior(), likelihoods.Categorical()
    return MLP([784, width, width, width, 10], prior=prior, likelihood=likelihood, seed=None)


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
        published_as=READ_OFF,
        published_errors={"error_percent": ERROR_BARS[name]},
        published_runs=RUNS,
    )
    for name, method in METHODS.items()
)
