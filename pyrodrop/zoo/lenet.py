"""LeNet-5 on MNIST: the rotated digit of Gal & Ghahramani (2016), and where dropout belongs in a LeNet (2015).

    rotated-digit/bernoulli     dropout 0.5 after ip1, the first dense layer: of the inputs of ip2
    rotated-digit/...           other posteriors of the same network and number of iterations, with their own priors, and
                                Adam, which the scales of a posterior need
    cnn/lenet-all               dropout 0.5 after conv1, conv2 and ip1: of the inputs of conv2, ip1 and ip2
    cnn/lenet-ip, lenet-none    dropout 0.5 after ip1 alone; none

Caffe's LeNet and solver: momentum SGD (0.9) on batches of 64, rate 0.01 (1 + 1e-4 it)^-0.75, weight decay 5e-4 on weights
and biases, twice the rate for biases. 10,000 iterations, as for Caffe's own LeNet; the papers used a million and 10
million. Grey values are x / 255 here and x / 256 there. `cnn` averages 50 draws, as in the paper: Bayesian Convolutional
Neural Networks with Bernoulli Approximate Variational Inference, https://arxiv.org/abs/1506.02158, its figure of LeNet on
MNIST; `rotated-digit` is section 5.2 and figure 4 of https://arxiv.org/abs/1506.02142. Layers and settings are those of the
authors' files, https://github.com/yaringal/DropoutUncertaintyCaffeModels.

The paper on LeNet draws a mask for every element that a convolution returns, before pooling, so a kernel is dropped at some
places of an image and not at others; that is no distribution of one weight (docs/what-mc-dropout-needs.md). Here a mask is
of a whole map, for all places (`torch.nn.Dropout2d` after conv1), and after conv2 of an element after pooling
(`torch.nn.Dropout`). Max pooling commutes with these masks, but not with the paper's masks z_i of elements before pooling:
E max_i z_i a_i / keep >= max_i a_i for a_i >= 0. There, a network with the mean weights does not compute this mean, and may
err more than here.
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
from pyrodrop.zoo.entry import Check, Entry, settings

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


def caffe_training(data: Dataset, *, dropped: Sequence[str] = (DROPPED,)) -> dict[str, Any]:
    """Arguments of `pyrodrop.fit` as in Caffe; `dropped` are the weights after a dropout layer."""
    return {
        "steps": STEPS,
        "batch_size": BATCH,
        "lr": functools.partial(learning_rate, num_data=len(data), dropped=dropped),
        "optimizer": functools.partial(torch.optim.SGD, momentum=0.9),
        "estimator": "local",
        "lr_schedule": functools.partial(caffe.inverse_decay, gamma=1e-4, power=0.75),
    }


def _model(data: Dataset, *, prior: Callable[[], Prior] | None) -> NetworkModel:
    chosen = caffe.decay_prior(DECAY, 1.0, len(data)) if prior is None else prior()
    return LeNet5(prior=chosen, likelihood=likelihoods.Categorical(), seed=None)


CHECK = Check(steps=100, train=5000, test=500, draws=10)
_lenet = functools.partial(Entry, data="mnist/images", published={}, check=CHECK)
_rotated = functools.partial(_lenet, purpose="uncertainty at images unlike the data")
_adam = functools.partial(settings, steps=STEPS, batch_size=BATCH, lr=1e-3, estimator="local")
_warmed_up = functools.partial(_adam, kl_weight=schedules.linear(5))
"""KL warm-up: a pruning posterior prunes everything under the full weight of the KL divergence from the start."""
_one_draw = functools.partial(_adam, estimator="shared")
_variational = functools.partial(guides.VariationalDropout, drop_rate=0.1)

COMPARED: dict[str, tuple[str, Callable[..., Any], Callable[[], Prior] | None, Callable[..., dict[str, Any]]]] = {
    "drop-connect": ("DropConnect .5", functools.partial(guides.DropConnect, drop_rate=RATES), None, _adam),
    "concrete": ("concrete dropout", functools.partial(guides.ConcreteDropout, mask_input=False), None, _adam),
    **{
        f"gaussian-{kind.lower()}": (
            f"Gaussian dropout {kind}",
            functools.partial(guides.GaussianDropout, kind=kind, drop_rate=SOFT_RATES),
            priors.LogUniform,
            _adam,
        )
        for kind in ("A", "B")
    },
    "variational-a": (
        "variational dropout A, one rate per input", functools.partial(_variational, kind="A", rates="input"),
        priors.LogUniform, _adam,
    ),
    "variational-a2": (
        "variational dropout A2, one rate per input",
        functools.partial(_variational, kind="A", rates="input", kl_scale=1 / 3), priors.LogUniform, _adam,
    ),
    "variational-b": (
        "variational dropout B, one rate per weight", functools.partial(_variational, kind="B", rates="weight"),
        priors.LogUniform, _adam,
    ),
    "sparse": ("sparse variational dropout", guides.SparseDropout, priors.LogUniform, _warmed_up),
    "ard": ("variational dropout with ARD", guides.ARDDropout, priors.ARD, _warmed_up),
    "mean-field": ("mean-field Gaussian", guides.MeanField, None, _adam),
    "low-rank": ("low-rank Gaussian", functools.partial(guides.LowRank, seed=None), None, _one_draw),
    "ensemble": (
        "five networks in turn, maximum a posteriori,",
        functools.partial(guides.Ensemble, guide=guides.Point, members=5, seed=None), None, _one_draw,
    ),
}  # fmt: skip
LENETS = {  # where dropout is, the weights after it, and a difference from the paper
    "lenet-all": (
        "MC dropout .5 after every layer", ("conv2.weight", "ip1.weight", DROPPED),
        "; a mask after conv1 is of a whole map, in the paper of an element",
    ),
    "lenet-ip": ("MC dropout .5 behind the first dense layer", (DROPPED,), ""),
    "lenet-none": ("no dropout", (), ""),
}  # fmt: skip

ENTRIES = (
    _rotated(
        name="rotated-digit/bernoulli",
        summary="MC dropout .5 behind the first dense layer on MNIST, LeNet-5, 10,000 SGD steps",
        source=_SOURCE,
        model=caffe_model,
        guide=functools.partial(guides.BernoulliDropout, drop_rate=RATES),
        training=caffe_training,
    ),
    *(
        _rotated(
            name=f"rotated-digit/{name}",
            summary=f"{what} on MNIST, LeNet-5, 10,000 Adam steps",
            source=f"{_SOURCE}; this posterior is not in the paper, for comparison",
            model=functools.partial(_model, prior=prior),
            guide=guide,
            training=training,
        )
        for name, (what, guide, prior, training) in COMPARED.items()
    ),
    *(
        _lenet(
            name=f"cnn/{name}",
            summary=f"{where} on MNIST, LeNet-5, 10,000 SGD steps (the paper: 10 million)",
            source=f"Gal & Ghahramani (2015), Bayesian convolutional neural networks, LeNet on MNIST{differs}",
            model=functools.partial(caffe_model, dropped=dropped),
            guide=(
                functools.partial(guides.BernoulliDropout, drop_rate={**dict.fromkeys(dropped, 1 - KEEP), "*": 0.0})
                if dropped
                else guides.Point
            ),
            training=functools.partial(caffe_training, dropped=dropped),
            purpose="classification of digits",
            draws=50,
        )
        for name, (where, dropped, differs) in LENETS.items()
    ),
)
