"""The networks of the benchmarks and their training steps, in plain PyTorch and in pyrodrop.

    MLP       784-1000-1000-10, minibatch 128
    LeNet     conv 20 and 50 (5 x 5), pooled, dense 500-10, minibatch 128
    13-50-1   minibatch 128

A step takes a minibatch from tensors in memory, computes the loss and its gradient, and makes an Adam update.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.benchmarks.timing import Parameters
from pyrodrop.engines import Name
from pyrodrop.training.run import Run, problem_of
from pyrodrop.training.settings import Estimator, Precision, Settings

ROWS, BATCH, RATE = 2048, 128, 0.5


@dataclass(frozen=True)
class Network:
    """A network to be timed.

    Attributes:
        build: makes the layers, given a function that makes the module before each layer with weights.
        x: inputs ``[N, ...]``.
        y: targets ``[N, ...]``.
        loss: loss of the plain PyTorch network.
        likelihood: likelihood of the pyrodrop model.
        steps: number of steps per timing.
    """

    name: str
    build: Callable[[Callable[[], nn.Module]], nn.Sequential]
    x: Tensor
    y: Tensor
    loss: nn.Module
    likelihood: likelihoods.Likelihood
    steps: int


def networks(device: str = "cpu") -> dict[str, Network]:
    """The three of the table, with their data on a device."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(ROWS, 1, 28, 28, generator=generator).to(device)
    digits = torch.randint(10, (ROWS,), generator=generator).to(device)
    numbers, targets = (torch.randn(ROWS, d, generator=generator).to(device) for d in (13, 1))
    classes = (nn.CrossEntropyLoss(), likelihoods.Categorical())
    found = (
        Network("MLP", lambda d: dense(d, 784, 1000, 1000, 10), images.flatten(1), digits, *classes, 5),
        Network("LeNet", lenet, images, digits, *classes, 3),
        Network(
            "13-50-1", lambda d: dense(d, 13, 50, 1), numbers, targets, nn.MSELoss(), likelihoods.Gaussian(1.0), 200
        ),
    )
    return {network.name: network for network in found}


def dense(before: Callable[[], nn.Module], *widths: int) -> nn.Sequential:
    """A fully connected network, ReLU between its layers."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [before(), nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def lenet(before: Callable[[], nn.Module]) -> nn.Sequential:
    """LeNet-5 as Caffe has it, 20-50-500-10."""
    return nn.Sequential(
        before(), nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), before(), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Flatten(),
        before(), nn.Linear(800, 500), nn.ReLU(), before(), nn.Linear(500, 10),
    )  # fmt: skip


# Makes as many steps as a timing has; the parameters that they move, or what reads them where a step makes new ones.
Steps = tuple[Callable[[], object], Parameters]


def plain(network: Network, *, fused: bool = False) -> Steps:
    """`nn.Dropout` and Adam, eager."""
    net = network.build(lambda: nn.Dropout(RATE)).to(network.x.device)
    optimizer = torch.optim.Adam(net.parameters(), fused=fused)

    def steps() -> None:
        for _ in range(network.steps):
            rows = torch.randint(len(network.x), (BATCH,), device=network.x.device)
            optimizer.zero_grad()
            network.loss(net(network.x[rows]), network.y[rows]).backward()
            optimizer.step()

    return steps, list(net.parameters())


POSTERIORS: dict[str, tuple[Callable[[Any], guides.Guide], Callable[[], priors.Prior]]] = {
    "Bernoulli": (lambda m: guides.BernoulliDropout(m, RATE), priors.Gaussian),
    "variational B": (lambda m: guides.VariationalDropout(m, "B", "layer"), priors.LogUniform),
    "mean field": (guides.MeanField, priors.Gaussian),
}


def ours(
    network: Network, posterior: str, engine: Name, estimator: Estimator = "local", precision: Precision | None = None
) -> Steps:
    """Steps of `pyrodrop.fit`, as its loop makes them, after the first one."""
    guide, prior = POSTERIORS[posterior]
    model = models.from_module(network.build(nn.Identity), prior(), network.likelihood)
    device = str(network.x.device)
    settings = Settings(
        steps=200_000, batch_size=BATCH, estimator=estimator, engine=engine, precision=precision, device=device
    )
    loop = Run.of(problem_of(model, guide(model), (network.x, network.y), settings), settings).loop
    loop.start()
    if loop.engine.name != engine:
        raise RuntimeError(f"{network.name} with {posterior} trains with {loop.engine.name}, not {engine}")
    return (lambda: loop.advance(loop.done + network.steps)), list(loop.parameters.values())
