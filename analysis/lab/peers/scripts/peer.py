"""Shared code of the peers' scripts: the file of a problem, the file of their draws, and the network in PyTorch.

    python SCRIPT.py METHOD PROBLEM.npz DRAWS.npz

    minus log joint = sum_n l(y_n, f(x_n)) + 1/2 sum_k (w_k / s_k)^2          l: 1/2 precision (y - f)^2, or cross-entropy

A script needs NumPy and its package, not pyrodrop. x, y, points and draws are in the standardised units of the network.
Seconds are the processor time of a method: training, drawing, compilation, and the imports that it makes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np

_BELOW = ("numpy", "torch", "jax")


@dataclass(frozen=True)
class Problem:
    """A network with its data.

    Attributes:
        x, y, points: inputs ``[N, D]``; real y ``[N, 1]`` or labels ``[N]``; points to predict at, ``[P, D]``.
        widths, activation: widths of all layers, and ``relu`` or ``tanh``.
        scales: prior standard deviation of the weights of every layer; that of all biases is 1.
        precision: precision of the noise; 0 for classes.
        draws, steps, seed: number of functions, gradient steps of a training, and seed.
    """

    x: Any
    y: Any
    points: Any
    widths: list[int]
    activation: str
    scales: list[float]
    precision: float
    draws: int
    steps: int
    seed: int

    @property
    def classes(self) -> bool:
        """Whether y are class labels."""
        return self.precision == 0


Method = Callable[[Problem], tuple[Any, dict[str, Any]]]  # returns f [S, P, D], and the settings of the method


def main(
    package: str, methods: Mapping[str, Method], *, joint: Callable[[Problem], bool] = lambda problem: True
) -> None:
    """Run the method that the command line names on a problem, and write its draws."""
    method, source, target = sys.argv[1:]
    with np.load(source, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file}
    problem = Problem(**{name: value.tolist() if value.ndim == 0 or name in ("widths", "scales") else value
                         for name, value in arrays.items()})  # fmt: skip
    begun = time.process_time()
    f, settings = methods[method](problem)
    about = {
        "settings": settings,
        "seconds": time.process_time() - begun,
        "joint": joint(problem),
        "versions": {name: metadata.version(name) for name in (package, *(n for n in _BELOW if n in sys.modules))},
    }
    np.savez(target, f=np.asarray(f, np.float32), about=json.dumps(about))


def tensors(problem: Problem) -> tuple[Any, Any, Any]:
    """x, y and points as tensors; also sets PyTorch to one thread and the problem's seed."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(problem.seed)
    x, y, points = (torch.as_tensor(value) for value in (problem.x, problem.y, problem.points))
    return x.float(), y.long() if problem.classes else y.float(), points.float()


def network(problem: Problem, layer: Callable[[int, int, float], Any] | None = None) -> Any:
    """The network in PyTorch; `layer` makes a layer of inputs, outputs and prior scale, `nn.Linear` if None."""
    from torch import nn

    layers: list[Any] = []
    for inputs, outputs, scale in zip(problem.widths[:-1], problem.widths[1:], problem.scales, strict=True):
        layers += [nn.Linear(inputs, outputs) if layer is None else layer(inputs, outputs, scale)]
        layers += [nn.ReLU() if problem.activation == "relu" else nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def misfit(problem: Problem, outputs: Any, y: Any) -> Any:
    """The sum over rows of the negative log likelihood, up to a constant."""
    from torch.nn import functional as F

    if problem.classes:
        return F.cross_entropy(outputs, y, reduction="sum")
    return 0.5 * problem.precision * ((outputs - y) ** 2).sum()


def variances(problem: Problem, names: Iterable[str]) -> dict[str, float]:
    """The prior variance of every parameter of `network`, by its name, such as ``2.weight``."""
    return {name: problem.scales[int(name.split(".")[0]) // 2] ** 2 if "weight" in name else 1.0 for name in names}


def decay(problem: Problem, parameters: Mapping[str, Any]) -> Any:
    """Minus the log prior density of parameters of `network`, up to a constant."""
    of = variances(problem, parameters)
    return sum(0.5 * (value**2).sum() / of[name] for name, value in parameters.items())


def descend(loss: Callable[[], Any], parameters: Iterable[Any], steps: int, lr: float) -> None:
    """Minimise `loss` by Adam with a cosine schedule."""
    import torch

    optimizer = torch.optim.Adam(parameters, lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        schedule.step()
