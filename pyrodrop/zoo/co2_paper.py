"""Gal & Ghahramani (2016), figure 2, with the settings of their released networks.

    four hidden layers of 1024, dropout behind every hidden activation and not on the input, Xavier initialisation,
    momentum SGD (.9) on batches of 200, rate lr (1 + 1e-4 it)^-.25, biases at twice the rate, a million iterations

Their networks minimise the mean of |y - f|^2 / 2 plus decay |V|^2 / 2, where V = keep * M is the weight behind a dropout
layer that divides by keep (`torch.nn.Dropout`). In terms of this package's M and of -ELBO = N tau * that loss:

    length_scale^2 = decay keep N tau          prior of a weight
    lr(M)          = lr / (N tau keep^2)       one step of M moves keep * M as one of V would

The precision tau was not published; 100 in standardised units is the type-II maximum likelihood noise of a squared
exponential Gaussian process on their series. A decay of 0 becomes a prior so wide that its pull is below rounding.
A mask a row, as theirs (`estimator="local"`). Source: GitHub yaringal/DropoutUncertaintyCaffeModels.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from pyrodrop import likelihoods, priors
from pyrodrop.data import Dataset
from pyrodrop.guides import BernoulliDropout, MeanField
from pyrodrop.models import MLP, NetworkModel
from pyrodrop.zoo.entry import Check, Entry

WIDTHS = (1, 1024, 1024, 1024, 1024, 1)
PRECISION = 100.0  # in standardised units
CHECK = Check(steps=100)
FLAT = 1e6  # scale of a prior that stands for no weight decay
_SOURCE = "Gal & Ghahramani (2016), figure 2, released settings"


def inverse_decay(step: int) -> float:
    """Caffe's ``inv`` policy, as a factor of the base rate."""
    return float((1 + 1e-4 * step) ** -0.25)


def gaussian_prior(decay: float, keep: float, num_data: int) -> priors.Gaussian:
    """The prior whose pull on M is that of ``decay |keep M|^2 / 2`` beside the mean loss, in standardised units."""
    return (
        priors.Gaussian(scale=FLAT)
        if decay == 0
        else priors.Gaussian(length_scale=math.sqrt(decay * keep * num_data * PRECISION))
    )


def learning_rate(name: str, *, lr: float, keep: float, num_data: int) -> float:
    """The SGD rate of a parameter, by its name."""
    if name.endswith("bias"):
        return 2 * lr / (num_data * PRECISION)
    masked = "layers.0." not in name
    return lr / (num_data * PRECISION * (keep**2 if masked else 1.0))


def _dropout(data: Dataset, *, activation: str, drop_rate: float, decay: float) -> NetworkModel:
    keep, n = 1 - drop_rate, len(data)
    model = MLP(
        WIDTHS,
        activation,
        prior={"layers.0.*": gaussian_prior(decay, 1.0, n), "*": gaussian_prior(decay, keep, n)},
        bias_prior=gaussian_prior(decay, 1.0, n),
        likelihood=likelihoods.Gaussian(precision=_precision(data)),
    )
    _xavier(model, keep)
    return model


def _mean_field(data: Dataset) -> NetworkModel:
    prior = {"layers.0.*": priors.Gaussian(scale=1.0), "*": priors.Gaussian(scale=0.05)}
    return MLP(WIDTHS, "relu", prior=prior, likelihood=likelihoods.Gaussian(precision=_precision(data)))


def _precision(data: Dataset) -> float:
    scale = 1.0 if data.targets is None else float(data.targets.scale)
    return PRECISION / scale**2


def _xavier(model: NetworkModel, keep: float) -> None:
    """Caffe's initialisation of V = keep * M: uniform with variance 1 / fan_in, biases 0."""
    with torch.no_grad():
        for name, weight in model.weight_sites().items():
            if weight.dim() == 1:
                weight.zero_()
            else:
                reach = math.sqrt(3 / weight.shape[1]) / (keep if name != "layers.0.weight" else 1.0)
                weight.uniform_(-reach, reach)


def _training(data: Dataset, *, lr: float, keep: float) -> dict[str, Any]:
    return {
        "steps": 1_000_000,
        "batch_size": 200,
        "lr": functools.partial(learning_rate, lr=lr, keep=keep, num_data=len(data)),
        "optimizer": functools.partial(torch.optim.SGD, momentum=0.9),
        "estimator": "local",
        "schedule": inverse_decay,
    }


def _entry(name: str, activation: str, drop_rate: float, lr: float, decay: float) -> Entry:
    return Entry(
        name=f"co2-paper/{name}",
        summary=f"MC dropout, {activation}, drop rate {drop_rate:g}, 4 x 1024, a million SGD steps",
        source=_SOURCE,
        data="gal2016/co2",
        model=functools.partial(_dropout, activation=activation, drop_rate=drop_rate, decay=decay),
        guide=functools.partial(BernoulliDropout, drop_rate=drop_rate, mask_input=False),
        training=functools.partial(_training, lr=lr, keep=1 - drop_rate),
        published={},
        check=CHECK,
    )


ENTRIES = (
    _entry("mc-dropout-relu", "relu", 0.1, lr=0.01, decay=1e-6),
    _entry("mc-dropout-tanh-0.1", "tanh", 0.1, lr=0.005, decay=5e-7),
    _entry("mc-dropout-tanh-0.2", "tanh", 0.2, lr=0.01, decay=0.0),
    Entry(
        name="co2-paper/mean-field",
        summary="mean-field Gaussian, relu, 4 x 1024, 100,000 Adam steps",
        source="Graves (2011); not in the paper, for comparison at its size",
        data="gal2016/co2",
        model=_mean_field,
        guide=functools.partial(MeanField, init_scale=0.025),
        training=lambda data: {"steps": 100_000, "batch_size": 200, "lr": 1e-4},
        published={},
        check=CHECK,
    ),
)
