"""The Bayesian convolutional network of Gal & Ghahramani (2015) on MNIST: where dropout belongs in a LeNet.

    lenet-all     dropout 0.5 after conv1, conv2 and ip1: of the inputs of conv2, ip1 and ip2
    lenet-ip      dropout 0.5 after ip1 alone: of the inputs of ip2
    lenet-none    no dropout

Network and solver are those of `pyrodrop.zoo.rotated_digit`: Caffe's LeNet, momentum SGD (0.9) on batches of 64, rate
0.01 (1 + 1e-4 it)^-0.75, weight decay 5e-4. Predictions average 50 draws, as in the paper: Bayesian Convolutional Neural
Networks with Bernoulli Approximate Variational Inference, https://arxiv.org/abs/1506.02158, its figure of LeNet on MNIST.
Layers and settings are those of the authors' files, https://github.com/yaringal/DropoutUncertaintyCaffeModels.

Two things differ from the paper. It trains for 10 million iterations, these entries for the 10,000 of Caffe's own LeNet. It
draws a mask for every element that a convolution returns, before pooling, so a kernel is dropped at some places of an image
and not at others; that is no distribution of one weight (docs/what-mc-dropout-needs.md). Here a mask is of a whole map, for
all places (`torch.nn.Dropout2d` after conv1), and after conv2 of an element after pooling (`torch.nn.Dropout`). Max pooling
commutes with these masks, but not with the paper's masks z_i of elements before pooling: E max_i z_i a_i / keep >= max_i a_i
for a_i >= 0. There, a network with the mean weights does not compute this mean, and may err more than here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from pyrodrop.data import Dataset
from pyrodrop.guides import BernoulliDropout, Guide, Point
from pyrodrop.models import NetworkModel
from pyrodrop.zoo.entry import Entry
from pyrodrop.zoo.rotated_digit import CHECK, KEEP, caffe_model, caffe_training, learning_rate

DRAWS = 50


def _training(data: Dataset, *, dropped: Sequence[str]) -> dict[str, Any]:
    rate = functools.partial(learning_rate, num_data=len(data), dropped=dropped)
    return {**caffe_training(data), "lr": rate}


def _guide(dropped: Sequence[str]) -> Callable[[NetworkModel], Guide]:
    rates = {**dict.fromkeys(dropped, 1 - KEEP), "*": 0.0}
    return functools.partial(BernoulliDropout, drop_rate=rates) if dropped else Point


def _entry(name: str, where: str, dropped: Sequence[str], differs: str = "") -> Entry:
    return Entry(
        name=f"cnn/{name}",
        summary=f"{where} on MNIST, LeNet-5, 10,000 SGD steps (the paper: 10 million)",
        source=f"Gal & Ghahramani (2015), Bayesian convolutional neural networks, LeNet on MNIST{differs}",
        data="mnist/images",
        model=functools.partial(caffe_model, dropped=dropped),
        guide=_guide(dropped),
        training=functools.partial(_training, dropped=dropped),
        published={},
        purpose="classification of digits",
        check=CHECK,
        draws=DRAWS,
    )


ENTRIES = (
    _entry(
        "lenet-all",
        "MC dropout .5 after every layer",
        ("conv2.weight", "ip1.weight", "ip2.weight"),
        "; a mask after conv1 is of a whole map, in the paper of an element",
    ),
    _entry("lenet-ip", "MC dropout .5 behind the first dense layer", ("ip2.weight",)),
    _entry("lenet-none", "no dropout", ()),
)
