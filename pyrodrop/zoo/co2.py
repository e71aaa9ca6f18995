"""Mauna Loa CO2, Gal & Ghahramani (2016), https://arxiv.org/abs/1506.02142, figure 2, at a size for two cores.

2,000 Adam steps with a falling learning rate instead of a million of momentum SGD, and a learned precision.

    TanH    one hidden layer of 4,096 units
    ReLU    three hidden layers of 256 units instead of the paper's four of 1024

The share of the 23 yearly cycles that a layer can represent under dropout depends on its width and on where its units bend:
the noise of a unit grows with its size, and a wide layer averages it (`pyrodrop.analysis.experiments.co2.learned.carried`).
`input_gain` spreads the kinks over the data. At drop rate .1 the share is .44 for 1,024 tanh units with gain 100 and .74 for
4,096, but .05 and .10 for layers of as many ReLU units. The ReLU network learns the trend here; the paper's,
after a million steps, has the seasons as well.
"""

from __future__ import annotations

import functools

from pyrodrop import likelihoods, priors, schedules
from pyrodrop.data import Dataset
from pyrodrop.guides import BernoulliDropout, MeanField
from pyrodrop.models import MLP, NetworkModel
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

ENTRIES = (
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
