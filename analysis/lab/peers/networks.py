"""The networks that are timed, and their training steps, in plain PyTorch and in pyrodrop.

    MLP       784-1000-1000-10, minibatch 128
    LeNet     conv 20 and 50 (5 x 5), pooled, dense 500-10, minibatch 128
    13-50-1   minibatch 128

A step takes a minibatch from tensors in memory, computes the loss and its gradient, and makes an Adam update.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.changes import tensors_of
from pyrodrop.checks import EngineName as Name
from pyrodrop.training.settings import Estimator

ROWS, BATCH, RATE = 2048, 128, 0.5
TABLE = ("MLP", "LeNet", "13-50-1")  # networks whose layers the peers also have


@dataclass(frozen=True)
class Network:
    """A network to be timed.

    Attributes:
        build: makes the network, given a function that makes the module before each layer with weights.
        x: inputs ``[N, ...]``.
        y: targets ``[N, ...]``.
        loss: loss of the plain PyTorch network.
        likelihood: likelihood of the pyrodrop model.
        steps: number of steps per timing.
        estimator: estimator of the pyrodrop fit.
        size: rows of a minibatch.
    """

    name: str
    build: Callable[[Callable[[], nn.Module]], nn.Module]
    x: Tensor
    y: Tensor
    loss: nn.Module
    likelihood: likelihoods.Likelihood
    steps: int
    estimator: Estimator = "local"
    size: int = BATCH

    def layers(self, before: Callable[[], nn.Module]) -> nn.Sequential:
        """The network as a sequence of layers, for peers that replace each; a TypeError if it is none."""
        network = self.build(before)
        if not isinstance(network, nn.Sequential):
            raise TypeError(f"{self.name} is no sequence of layers, for which peers have theirs")
        return network


def networks(device: str = "cpu") -> dict[str, Network]:
    """The three networks by name, with their data on a device."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(ROWS, 1, 28, 28, generator=generator).to(device)
    digits = torch.randint(10, (ROWS,), generator=generator).to(device)
    numbers, targets = (torch.randn(ROWS, d, generator=generator).to(device) for d in (13, 1))
    classes = (nn.CrossEntropyLoss(), likelihoods.Categorical())
    real = (nn.MSELoss(), likelihoods.Gaussian(1.0))
    few = (5, 3) if device == "cpu" else (50, 50)
    every = (
        Network("MLP", lambda d: dense(d, 784, 1000, 1000, 10), images.flatten(1), digits, *classes, few[0]),
        Network("LeNet", lenet, images, digits, *classes, few[1]),
        Network("13-50-1", lambda d: dense(d, 13, 50, 1), numbers, targets, *real, 200),
    )
    return {network.name: network for network in every}


def dense(before: Callable[[], nn.Module], *widths: int) -> nn.Sequential:
    """A fully connected network, ReLU between its layers."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [before(), nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def lenet(before: Callable[[], nn.Module]) -> nn.Sequential:
    """The variant of LeNet-5 in Caffe, 20-50-500-10."""
    return nn.Sequential(
        before(), nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), before(), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Flatten(),
        before(), nn.Linear(800, 500), nn.ReLU(), before(), nn.Linear(500, 10),
    )  # fmt: skip


# A function that makes the steps of one timing, and the parameters, or a function that returns them if steps replace them.
Parameters = Iterable[Tensor] | Callable[[], Iterable[Tensor]]
Steps = tuple[Callable[[], object], Parameters]


def plain(network: Network, *, fused: bool = False, compiled: str = "") -> Steps:
    """`nn.Dropout` and Adam, eager, or by `torch.compile` in this mode."""
    net = network.build(lambda: nn.Dropout(RATE)).to(network.x.device)
    optimizer = torch.optim.Adam(net.parameters(), fused=fused)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return network.loss(net(x), y)  # type: ignore[no-any-return]

    function = torch.compile(loss, mode=compiled, dynamic=False) if compiled else loss

    def steps() -> None:
        for _ in range(network.steps):
            rows = torch.randint(len(network.x), (network.size,), device=network.x.device)
            optimizer.zero_grad()
            function(network.x[rows], network.y[rows]).backward()
            optimizer.step()

    return steps, list(net.parameters())


POSTERIORS: dict[str, tuple[Callable[[Any], guides.Guide], Callable[[], priors.Prior]]] = {
    "Bernoulli": (lambda m: guides.BernoulliDropout(m, RATE, mask_input=True), priors.Gaussian),
    "variational B": (lambda m: guides.VariationalDropout(m, "B", "layer"), priors.LogUniform),
    "mean field": (guides.MeanField, priors.Gaussian),
}


def pair(network: Network, posterior: str = "Bernoulli") -> tuple[models.NetworkModel, guides.Guide]:
    """The network as a model, and its guide."""
    guide, prior = POSTERIORS[posterior]
    model = models.from_module(network.build(nn.Identity), prior(), network.likelihood)
    return model, guide(model)


def ours(network: Network, posterior: str, engine: Name) -> Steps:
    """Steps of `pyrodrop.Training`, after two steps that do not count; a RuntimeError if another engine trains."""
    training = pyrodrop.Training(
        *pair(network, posterior), (network.x, network.y), steps=200_000, batch_size=network.size,
        estimator=network.estimator, engine=engine, device=str(network.x.device),
    )  # fmt: skip
    training.advance(2)
    if training.engine != engine:
        raise RuntimeError(f"{network.name} with {posterior} trains with {training.engine}, not {engine}")
    return (lambda: training.advance(network.steps)), lambda: parameters_of(training.fit)


def parameters_of(fit: pyrodrop.Fit) -> list[Tensor]:
    """The trained parameters of a fit."""
    return [tensor for tensor in tensors_of(fit.model, fit.guide).values() if isinstance(tensor, nn.Parameter)]
