"""LeNet-5 on MNIST, for the softmax outputs of a rotated digit: Gal & Ghahramani (2016), section 5.2, figure 4.

    dropout 0.5 after ip1, the first dense layer;   Caffe's solver: momentum SGD (0.9) on batches of 64,
    rate 0.01 (1 + 1e-4 it)^-0.75, weight decay 5e-4 on weights and biases, twice the rate for biases

10,000 iterations, as for Caffe's own LeNet; the paper used a million. Grey values are x / 255 here and x / 256 there. The
other posteriors have the same network and number of iterations, their own priors, and Adam, which the scales of
a posterior need. Source: https://github.com/yaringal/DropoutUncertaintyCaffeModels, mnist_uncertainty.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pyrodrop import guides, likelihoods, priors, schedules
from pyrodrop.data import Dataset
from pyrodrop.models import LeNet5, NetworkModel
from pyrodrop.priors import Prior
from pyrodrop.zoo import caffe
from pyrodrop.zoo.entry import Check, Entry

STEPS, PAPER_STEPS, BATCH = 10_000, 1_000_000, 64
LR, DECAY, KEEP = 0.01, 5e-4, 0.5
DROPPED = "ip2.weight"  # the weight after the dropout layer
RATES = {"ip2.*": 1 - KEEP, "*": 0.0}
SOFT_RATES = {"ip2.*": 1 - KEEP, "*": 0.02}  # for posteriors with noise in every weight
_SOURCE = "Gal & Ghahramani (2016), section 5.2, figure 4"


def caffe_model(data: Dataset, *, dropped: Sequence[str] = (DROPPED,)) -> NetworkModel:
    """Caffe's LeNet with its weight decay as prior; `dropped` are the weights after a dropout layer."""
    plain = caffe.decay_prior(DECAY, 1.0, len(data))
    model = LeNet5(
        prior={**dict.fromkeys(dropped, caffe.decay_prior(DECAY, KEEP, len(data))), "*": plain},
        likelihood=likelihoods.Categorical(),
        bias_prior=plain,
        seed=None,
    )
    caffe.xavier(model, dict.fromkeys(dropped, KEEP))
    return model


def learning_rate(name: str, *, num_data: int, dropped: Sequence[str] = (DROPPED,)) -> float:
    """The SGD learning rate of a parameter, by its name."""
    return caffe.rate(name, lr=LR, scale=num_data, keep=KEEP if name.endswith(tuple(dropped)) else 1.0)


def caffe_training(data: Dataset) -> dict[str, Any]:
    """Arguments of `pyrodrop.fit` as in Caffe, with the learning rates of dropout after ip1 alone."""
    return {
        "steps": STEPS,
        "batch_size": BATCH,
        "lr": functools.partial(learning_rate, num_data=len(data)),
        "optimizer": functools.partial(torch.optim.SGD, momentum=0.9),
        "estimator": "local",
        "lr_schedule": functools.partial(caffe.inverse_decay, gamma=1e-4, power=0.75),
    }


def _model(data: Dataset, *, prior: Callable[[], Prior] | None) -> NetworkModel:
    chosen = caffe.decay_prior(DECAY, 1.0, len(data)) if prior is None else prior()
    return LeNet5(prior=chosen, likelihood=likelihoods.Categorical(), seed=None)


def _training(data: Dataset, *, estimator: str = "local") -> dict[str, Any]:
    return {"steps": STEPS, "batch_size": BATCH, "lr": 1e-3, "estimator": estimator}


def _warmed_up(data: Dataset) -> dict[str, Any]:
    """KL warm-up: a pruning posterior prunes everything under the full weight of the KL divergence from the start."""
    return {**_training(data), "kl_weight": schedules.linear(5)}


def _entry(
    name: str,
    summary: str,
    guide: Callable[[NetworkModel], Any],
    prior: Callable[[], Prior] | None = None,
    training: Callable[[Dataset], dict[str, Any]] = _training,
) -> Entry:
    return Entry(
        name=f"rotated-digit/{name}",
        summary=f"{summary} on MNIST, LeNet-5, 10,000 Adam steps",
        source=f"{_SOURCE}; this posterior is not in the paper, for comparison",
        data="mnist/images",
        model=functools.partial(_model, prior=prior),
        guide=guide,
        training=training,
        published={},
        purpose="uncertainty at images unlike the data",
        check=CHECK,
    )


CHECK = Check(steps=100, train=5000, test=500, draws=10)
_variational = functools.partial(guides.VariationalDropout, drop_rate=0.1)
_low_rank = functools.partial(guides.LowRank, seed=None)

ENTRIES = (
    Entry(
        name="rotated-digit/bernoulli",
        summary="MC dropout .5 behind the first dense layer on MNIST, LeNet-5, 10,000 SGD steps",
        source=_SOURCE,
        data="mnist/images",
        model=caffe_model,
        guide=functools.partial(guides.BernoulliDropout, drop_rate=RATES),
        training=caffe_training,
        published={},
        purpose="uncertainty at images unlike the data",
        check=CHECK,
    ),
    _entry("drop-connect", "DropConnect .5", functools.partial(guides.DropConnect, drop_rate=RATES)),
    _entry("concrete", "concrete dropout", functools.partial(guides.ConcreteDropout, mask_input=False)),
    _entry(
        "gaussian-a",
        "Gaussian dropout A",
        functools.partial(guides.GaussianDropout, kind="A", drop_rate=SOFT_RATES),
        priors.LogUniform,
    ),
    _entry(
        "gaussian-b",
        "Gaussian dropout B",
        functools.partial(guides.GaussianDropout, kind="B", drop_rate=SOFT_RATES),
        priors.LogUniform,
    ),
    _entry(
        "variational-a",
        "variational dropout A, one rate per input",
        functools.partial(_variational, kind="A", rates="input"),
        priors.LogUniform,
    ),
    _entry(
        "variational-a2",
        "variational dropout A2, one rate per input",
        functools.partial(_variational, kind="A", rates="input", kl_scale=1 / 3),
        priors.LogUniform,
    ),
    _entry(
        "variational-b",
        "variational dropout B, one rate per weight",
        functools.partial(_variational, kind="B", rates="weight"),
        priors.LogUniform,
    ),
    _entry("sparse", "sparse variational dropout", guides.SparseDropout, priors.LogUniform, _warmed_up),
    _entry("ard", "variational dropout with ARD", guides.ARDDropout, priors.ARD, _warmed_up),
    _entry("mean-field", "mean-field Gaussian", guides.MeanField),
    _entry(
        "low-rank",
        "low-rank Gaussian",
        _low_rank,
        None,
        functools.partial(_training, estimator="shared"),
    ),
    _entry(
        "ensemble",
        "five networks in turn, maximum a posteriori,",
        functools.partial(guides.Ensemble, guide=guides.Point, members=5, seed=None),
        None,
        functools.partial(_training, estimator="shared"),
    ),
)
