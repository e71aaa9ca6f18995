"""Variational dropout on MNIST, Kingma, Salimans & Welling (2015), section 5.1: three hidden ReLU layers, type B.

784 - width - width - width - 10,   one learned alpha per layer,   log-uniform prior,   Adam on minibatches of 1000

https://arxiv.org/abs/1506.02557.
"""

from __future__ import annotations

import functools
from typing import Any

from pyrodrop import likelihoods, priors
from pyrodrop.data import Dataset
from pyrodrop.guides import VariationalDropout
from pyrodrop.models import MLP, NetworkModel
from pyrodrop.zoo.entry import Check, Entry

BATCH = 1000


def _build(data: Dataset, *, width: int) -> NetworkModel:
    return MLP(
        [784, width, width, width, 10], prior=priors.LogUniform(), likelihood=likelihoods.Categorical(), seed=None
    )


def _training(data: Dataset, *, epochs: int) -> dict[str, Any]:
    steps = epochs * -(-len(data) // BATCH)
    return {"steps": steps, "batch_size": BATCH, "lr": 1e-3, "estimator": "local"}


ENTRIES = tuple(
    Entry(
        name=f"kingma/{name}",
        summary=f"variational dropout B on MNIST, relu, 3 x {width}, {epochs} epochs",
        source="Kingma, Salimans & Welling (2015), table 1",
        data="mnist",
        model=functools.partial(_build, width=width),
        guide=functools.partial(VariationalDropout, kind="B", rates="layer", drop_rate=0.3),
        training=functools.partial(_training, epochs=epochs),
        published={},
        check=Check(steps=30, train=10_000, test=1000),
    )
    for name, width, epochs in (("variational-b-small", 200, 100), ("variational-b", 1000, 100))
)
