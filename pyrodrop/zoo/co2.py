"""Mauna Loa CO2, Gal & Ghahramani (2016), https://arxiv.org/abs/1506.02142, figure 2, at a size for two cores.

2,000 Adam steps with a falling learning rate instead of a million of momentum SGD, and a learned precision.

    TanH    one hidden layer of 4,096 units
    ReLU    three hidden layers of 256 units instead of the paper's four of 1024

The share of the 23 yearly cycles that a layer can represent under dropout depends on its width and on where its units bend:
the noise of a unit grows with its size, and a wide layer averages it
(`pyrodrop.analysis.lab.experiments.co2.learned.carried`). `input_gain` spreads the kinks over the data. At drop rate .1 the
share is .44 for 1,024 tanh units with gain 100 and .74 for 4,096, but .05 and .10 for layers of as many ReLU units. The
ReLU network learns the trend here; the paper's, after a million steps, has the seasons as well.

`co2-paper/...`: Gal & Ghahramani (2016), figure 2, with the settings of their released networks.

    four hidden layers of 1024, dropout after every hidden activation and not on the input, Xavier initialisation,
    momentum SGD (0.9) on batches of 200, rate lr (1 + 1e-4 it)^-0.25, twice the rate for biases, a million iterations

`pyrodrop.zoo.caffe` expresses their objective and solver in terms of this package, here with scale N tau. The precision tau
was not published; 100 in standardised units is the type-II maximum likelihood noise of a squared exponential Gaussian
process on their series. A decay of 0 becomes a prior so wide that its gradient is below rounding. One dropout mask per row,
as theirs (`estimator="local"`). Source: https://github.com/yaringal/DropoutUncertaintyCaffeModels.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from pyrodrop import likelihoods, priors, schedules
from pyrodrop.data import Dataset
from pyrodrop.guides import BernoulliDropout, MeanField
from pyrodrop.models import MLP, NetworkModel
from pyrodrop.zoo import caffe
from pyrodrop.zoo.entry import Check, Entry, settings

WIDTHS = {"tanh": (1, 4096, 1), "relu": (1, 256, 256, 256, 1)}
STEPS = 2000
CHECK = Check(steps=100, draws=100)
_training = functools.partial(settings, steps=STEPS, schedule=schedules.cosine)
_SOURCE = "Gal & Ghahramani (2016), figure 2"


def _model(data: Dataset, activation: str, input_gain: float, scale: float) -> NetworkModel:
    noise = 0.1 * float(data.y.std())
    return MLP(
        WIDTHS[activation],
        activation,
        prior={"layers.0.*": priors.Gaussian(scale=input_gain), "*": priors.Gaussian(scale=scale)},
        likelihood=likelihoods.Gaussian(precision=noise**-2, learned=True),
        input_gain=input_gain,
        seed=None,
    )


_narrow = functools.partial(_model, activation="relu", input_gain=3.0, scale=256**-0.5)
"""A narrower prior, 1 / sqrt(width): with the prior of the dropout networks the noise of 130,000 weights dominates f."""


_DROPOUTS = (("relu", "relu", 0.1, 10.0), ("tanh-0.1", "tanh", 0.1, 100.0), ("tanh-0.2", "tanh", 0.2, 100.0))
_entry = functools.partial(
    Entry, data="mauna-loa", published={}, purpose="a series and what comes after it", draws=1000
)

_FIRST = (
    *(
        _entry(
            name=f"co2/mc-dropout-{name}",
            summary=f"MC dropout, {activation}, drop rate {drop_rate:g}, {len(hidden)} x {hidden[0]}",
            source=_SOURCE,
            model=functools.partial(_model, activation=activation, input_gain=input_gain, scale=1.0),
            guide=functools.partial(BernoulliDropout, drop_rate=drop_rate, mask_input=False),
            training=functools.partial(_training, lr=2e-3, estimator="local"),
            check=CHECK,
        )
        for name, activation, drop_rate, input_gain in _DROPOUTS
        for hidden in [WIDTHS[activation][1:-1]]
    ),
    _entry(
        name="co2/mean-field",
        summary="mean-field Gaussian, relu, 3 x 256",
        source="Graves (2011); not in the figure, for comparison at its size",
        model=_narrow,
        guide=functools.partial(MeanField, init_scale=0.05),
        training=functools.partial(_training, lr=6e-3),
        check=Check(steps=30, draws=100),  # at this rate rounding grows fast
    ),
)


PAPER_WIDTHS = (1, 1024, 1024, 1024, 1024, 1)
PRECISION = 100.0  # in standardised units
PAPER_CHECK = Check(steps=100)
_RELEASED = "Gal & Ghahramani (2016), figure 2, released settings"


def inverse_decay(step: int) -> float:
    """Factor of the base learning rate under their policy."""
    return caffe.inverse_decay(step, gamma=1e-4, power=0.25)


def learning_rate(name: str, *, lr: float, keep: float, num_data: int) -> float:
    """The SGD learning rate of a parameter, by its name."""
    return caffe.rate(name, lr=lr, scale=num_data * PRECISION, keep=keep if "layers.0." not in name else 1.0)


def _dropout(data: Dataset, *, activation: str, drop_rate: float, decay: float) -> NetworkModel:
    keep, scale = 1 - drop_rate, len(data) * PRECISION
    model = MLP(
        PAPER_WIDTHS,
        activation,
        prior={"layers.0.*": caffe.decay_prior(decay, 1.0, scale), "*": caffe.decay_prior(decay, keep, scale)},
        bias_prior=caffe.decay_prior(decay, 1.0, scale),
        likelihood=likelihoods.Gaussian(precision=_precision(data)),
        seed=None,
    )
    caffe.xavier(model, {name: keep for name in model.weight_sites() if "layers.0." not in name})
    return model


def _mean_field(data: Dataset) -> NetworkModel:
    prior = {"layers.0.*": priors.Gaussian(scale=1.0), "*": priors.Gaussian(scale=0.05)}
    return MLP(
        PAPER_WIDTHS, "relu", prior=prior, likelihood=likelihoods.Gaussian(precision=_precision(data)), seed=None
    )


def _precision(data: Dataset) -> float:
    scale = 1.0 if data.targets is None else float(data.targets.scale)
    return PRECISION / scale**2


_RELEASED_DROPOUTS = (  # activation, drop rate, learning rate, decay
    ("relu", "relu", 0.1, 0.01, 1e-6),
    ("tanh-0.1", "tanh", 0.1, 0.005, 5e-7),
    ("tanh-0.2", "tanh", 0.2, 0.01, 0.0),
)
_paper = functools.partial(
    Entry, data="gal2016/co2", published={}, purpose="a series and what comes after it", check=PAPER_CHECK
)


def _sgd(data: Dataset, *, lr: float, keep: float) -> dict[str, Any]:
    return {
        "steps": 1_000_000,
        "batch_size": 200,
        "lr": functools.partial(learning_rate, lr=lr, keep=keep, num_data=len(data)),
        "optimizer": functools.partial(torch.optim.SGD, momentum=0.9),
        "estimator": "local",
        "lr_schedule": inverse_decay,
    }


_SECOND = (
    *(
        _paper(
            name=f"co2-paper/mc-dropout-{name}",
            summary=f"MC dropout, {activation}, drop rate {drop_rate:g}, 4 x 1024, a million SGD steps",
            source=_RELEASED,
            model=functools.partial(_dropout, activation=activation, drop_rate=drop_rate, decay=decay),
            guide=functools.partial(BernoulliDropout, drop_rate=drop_rate, mask_input=False),
            training=functools.partial(_sgd, lr=lr, keep=1 - drop_rate),
        )
        for name, activation, drop_rate, lr, decay in _RELEASED_DROPOUTS
    ),
    _paper(
        name="co2-paper/mean-field",
        summary="mean-field Gaussian, relu, 4 x 1024, 100,000 Adam steps",
        source="Graves (2011); not in the paper, for comparison at its size",
        model=_mean_field,
        guide=functools.partial(MeanField, init_scale=0.025),
        training=functools.partial(settings, steps=100_000, batch_size=200, lr=1e-4),
    ),
)

ENTRIES = (*_FIRST, *_SECOND)
