"""Mauna Loa CO2, Gal & Ghahramani (2016), https://arxiv.org/abs/1506.02142, figure 2, at a size for two cores.

Three hidden layers of 256 units instead of the paper's 1024, 2,500 Adam steps with a falling learning rate instead of a
million of momentum SGD, and a learned precision. Large initial weights in the first layer (`input_gain`) let the tanh
networks learn a part of the 23 yearly cycles in these steps; all of them take the million.
"""

from __future__ import annotations

import functools
from typing import Any

from pyrodrop import likelihoods, priors, schedules
from pyrodrop.data import Dataset
from pyrodrop.guides import BernoulliDropout, MeanField
from pyrodrop.models import MLP, NetworkModel
from pyrodrop.zoo.entry import Check, Entry

WIDTHS = (1, 256, 256, 256, 1)
STEPS = 2500
CHECK = Check(steps=300, draws=100)
_SOURCE = "Gal & Ghahramani (2016), figure 2"


def _training(data: Dataset, lr: float = 2e-3) -> dict[str, Any]:
    return {"steps": STEPS, "lr": lr, "lr_schedule": schedules.cosine(STEPS)}


def _model(data: Dataset, activation: str, input_gain: float, scale: float) -> NetworkModel:
    noise = 0.1 * float(data.y.std())
    return MLP(
        WIDTHS,
        activation,
        prior={"layers.0.*": priors.Gaussian(scale=input_gain), "*": priors.Gaussian(scale=scale)},
        likelihood=likelihoods.Gaussian(precision=noise**-2, learned=True),
        input_gain=input_gain,
    )


_narrow = functools.partial(_model, activation="relu", input_gain=3.0, scale=WIDTHS[1] ** -0.5)
"""A narrower prior, 1 / sqrt(width): with the prior of the dropout networks the noise of 130,000 weights dominates f."""


def _entry(name: str, activation: str, drop_rate: float, input_gain: float) -> Entry:
    return Entry(
        name=f"co2/{name}",
        summary=f"MC dropout, {activation}, drop rate {drop_rate:g}, 3 x 256",
        source=_SOURCE,
        data="mauna-loa",
        model=functools.partial(_model, activation=activation, input_gain=input_gain, scale=1.0),
        guide=functools.partial(BernoulliDropout, drop_rate=drop_rate, mask_input=False),
        training=_training,
        published={},
        check=CHECK,
        draws=1000,
    )


ENTRIES = (
    _entry("mc-dropout-relu", "relu", 0.1, 10.0),
    _entry("mc-dropout-tanh-0.1", "tanh", 0.1, 100.0),
    _entry("mc-dropout-tanh-0.2", "tanh", 0.2, 100.0),
    Entry(
        name="co2/mean-field",
        summary="mean-field Gaussian, relu, 3 x 256",
        source="Graves (2011); not in the figure, for comparison at its size",
        data="mauna-loa",
        model=_narrow,
        guide=functools.partial(MeanField, init_scale=0.05),
        training=functools.partial(_training, lr=6e-3),
        published={},
        check=CHECK,
        draws=1000,
    ),
)
