"""Concrete dropout on its synthetic data, Gal, Hron & Kendall (2017), https://arxiv.org/abs/1705.07832, released notebook.

    y = 2 x + 8 + N(0, 1),   x ~ N(0, 1)

Three hidden ReLU layers of 1024 units, heteroscedastic noise, length scale 1e-4, one learned drop rate per layer, Adam on
batches of 20 with a number of epochs that falls with N. Mean and log precision share a dropout mask here; the notebooks' two
heads have separate masks. The published numbers are those of the Keras notebook, which uses the same minibatches as here. It
starts from Glorot's initial weights; here they are PyTorch's, which are larger in the first layer. The PyTorch notebook
trains on other minibatches, see `pyrodrop.analysis.lab.experiments.concrete`.
"""

from __future__ import annotations

import functools
from typing import Any

from pyrodrop import likelihoods, priors
from pyrodrop.data import Dataset
from pyrodrop.guides import ConcreteDropout
from pyrodrop.models import MLP, NetworkModel
from pyrodrop.zoo.entry import Check, Entry, settings

BATCH, WIDTH = 20, 1024
EPOCHS = {10: 2000, 25: 1000, 50: 500, 100: 200, 1000: 20, 10_000: 2}


def _build(data: Dataset) -> NetworkModel:
    return MLP(
        [1, WIDTH, WIDTH, WIDTH, 2],
        prior=priors.Gaussian(length_scale=1e-4),
        bias_prior=priors.Gaussian(length_scale=1e-4),
        likelihood=likelihoods.HeteroscedasticGaussian(),
        seed=None,
    )


def _training(data: Dataset) -> dict[str, Any]:
    epochs = EPOCHS.get(len(data), max(2, 20_000 // len(data)))
    return settings(data, epochs=epochs, batch_size=BATCH, lr=1e-3, estimator="local")


ENTRIES = (
    Entry(
        name="concrete/synthetic",
        summary="concrete dropout, relu, learned rates, heteroscedastic, 3 x 1024",
        source="Gal, Hron & Kendall (2017), released Keras notebook, N = 1000",
        data="line-1000",
        model=_build,
        guide=functools.partial(ConcreteDropout, drop_rate=0.1, mask_input=True),
        training=_training,
        published={"rmse": 1.065, "epistemic_sd": 0.652},
        purpose="learned drop rates",
        check=Check(steps=100),
        draws=20,
    ),
)
