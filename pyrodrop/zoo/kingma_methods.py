"""The dropout methods that figure 1 of Kingma, Salimans & Welling (2015) compares, and how they are trained here.

drop rate 0.2 for the inputs and 0.5 for hidden units;   Adam, minibatches of 100

    A   noise on the inputs of a layer          B   noise on its outputs, independent weights
    gaussian     alpha = rate / (1 - rate)      variational     one learned alpha per layer, initially 0.43
    variational-a2     A, with the KL divergence weighted by 1/3

https://arxiv.org/abs/1506.02557. Binary dropout and no dropout have a flat prior.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyrodrop import guides, priors
from pyrodrop.data import Dataset
from pyrodrop.guides import Guide
from pyrodrop.models import NetworkModel
from pyrodrop.priors import Prior
from pyrodrop.zoo.caffe import FLAT
from pyrodrop.zoo.decay import late

BATCH, EPOCHS = 100, 200


@dataclass(frozen=True)
class Method:
    """A curve of the figure.

    Attributes:
        summary: the curve's name in the figure.
        guide: makes the posterior.
        prior: makes the prior of the weights.
        published: test errors in percent at the published sizes of the network, as read off a figure; empty if nobody did.
    """

    summary: str
    guide: Callable[[NetworkModel], Guide]
    prior: Callable[[], Prior]
    published: tuple[float, ...] = ()


def methods(first: str, published: Mapping[str, tuple[float, ...]] | None = None) -> dict[str, Method]:
    """The methods by name.

    Args:
        first: pattern of the sites of the first layer, whose inputs are those of the network.
        published: test errors of every method.
    """
    rates = {first: 0.2, "*": 0.5}
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
    return {name: Method(*made, (published or {}).get(name, ())) for name, made in posteriors.items()}


def falling(step: int, *, steps: int) -> float:
    """Factor of the learning rate: 1 for the first half of the steps, then linear to 0."""
    return late(step / steps)


def training(data: Dataset, *, epochs: int = EPOCHS) -> dict[str, Any]:
    """Arguments of `pyrodrop.fit` for so many passes over the data."""
    steps = epochs * -(-len(data) // BATCH)
    schedule = functools.partial(falling, steps=steps)
    return {"steps": steps, "batch_size": BATCH, "lr": 1e-3, "estimator": "local", "lr_schedule": schedule}
