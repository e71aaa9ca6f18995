"""Dropout methods on CIFAR-10 by size, Kingma, Salimans & Welling (2015), section 5.2, figure 1b.

conv 32k, conv 64k (5 x 5, stride 2) - dense 128k, dense 128k - 10, softplus;   the methods of `pyrodrop.zoo.kingma_methods`

https://arxiv.org/abs/1506.02557. The paper states the sizes, stride and softplus. Kernels, padding, length of the training
and the preparation of the images are not stated and are choices made here: every channel is standardised, and the learning
rate falls to 0 over the second half of the epochs. "Inputs" of a convolution are channels: types A and binary dropout have
one noise per image and channel, so that the first layer drops a colour with probability 0.2. Published errors are a curve
without numbers.

The entries train for three epochs at k = 0.25 on the JPEG subset of `pyrodrop.data.cifar10`, which is not CIFAR-10. CIFAR-10
itself is what ``pyrodrop run kingma-fig1b`` trains on.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from pyrodrop import likelihoods
from pyrodrop.data import Dataset
from pyrodrop.models import ConvNet, NetworkModel
from pyrodrop.zoo.entry import Check, Entry
from pyrodrop.zoo.kingma_methods import EPOCHS, Method, methods, training

__all__ = ["ENTRIES", "EPOCHS", "METHODS", "PUBLISHED_SCALES", "SHORT", "network", "training"]

PUBLISHED_SCALES = (0.25, 0.5, 1.0)  # k
SHORT = 3  # epochs of the entries
METHODS: Mapping[str, Method] = methods("conv1.*")


def network(data: Dataset, *, method: str, scale: float) -> NetworkModel:
    """The network of this k with the prior of this method."""
    return ConvNet(scale=scale, prior=METHODS[method].prior(), likelihood=likelihoods.Categorical(), seed=None)


ENTRIES = tuple(
    Entry(
        name=f"cifar10-jpeg-subset/{name}",
        summary=f"{method.summary} on 10,000 JPEG images of CIFAR-10, conv net with k = 0.25, {SHORT} epochs",
        source="network and methods of Kingma, Salimans & Welling (2015), figure 1b",
        data="cifar10/jpeg-subset",
        model=functools.partial(network, method=name, scale=PUBLISHED_SCALES[0]),
        guide=method.guide,
        training=functools.partial(training, epochs=SHORT),
        published={},
        check=Check(steps=20, train=1000, test=500, draws=5),
    )
    for name, method in METHODS.items()
)
