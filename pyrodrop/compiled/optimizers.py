"""Optimisers as pure functions, so that a graph can contain their update.

    Adam    m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2,   w <- w - lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)
    SGD     u <- momentum u + (1 - dampening) g,   w <- w - lr u,   or  w - lr (g + momentum u)  after Nesterov

Kingma & Ba (2015); Sutskever et al. (2013). `fit` trains without weight decay, so that AdamW is Adam. The state is stored in
the `torch.optim` optimiser under its usual names, so checkpoints do not depend on the engine. Numbers that depend on the
step are computed outside the graph and are inputs of it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from pyrodrop.steps.update import ADAMS, Group, does_more


class Rule(ABC):
    """The update of one parameter group."""

    numbers: ClassVar[int]

    def __init__(self, group: Group) -> None:
        self.group = group

    def __repr__(self) -> str:
        options = {name: value for name, value in self.group.items() if name not in ("params", "lr", "initial_lr")}
        return f"{type(self).__name__}({options})"

    @property
    @abstractmethod
    def state(self) -> tuple[str, ...]:
        """Names of the state tensors of every parameter."""

    @abstractmethod
    def schedule(self, step: int, lr: float) -> tuple[float, ...]:
        """The numbers that `update` needs at a step, counted from 1."""

    @abstractmethod
    def update(self, w: Tensor, g: Tensor, state: list[Tensor], numbers: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The new parameter and state."""


class Adam(Rule):
    """Adam."""

    numbers = 2
    state = ("exp_avg", "exp_avg_sq")  # type: ignore[assignment]

    def schedule(self, step: int, lr: float) -> tuple[float, ...]:
        b1, b2 = self.group["betas"]
        return lr / (1 - b1**step), 1 / math.sqrt(1 - b2**step)

    def update(self, w: Tensor, g: Tensor, state: list[Tensor], numbers: Tensor) -> tuple[Tensor, list[Tensor]]:
        b1, b2 = self.group["betas"]
        m, v = state
        m = m + (1 - b1) * (g - m)
        v = b2 * v + (1 - b2) * g * g
        return w - numbers[0] * m / (v.sqrt() * numbers[1] + self.group["eps"]), [m, v]


class SGD(Rule):
    """Gradient descent with or without momentum."""

    numbers = 1

    @property
    def state(self) -> tuple[str, ...]:
        return ("momentum_buffer",) if self.group["momentum"] else ()

    def schedule(self, step: int, lr: float) -> tuple[float, ...]:
        return (lr,)

    def update(self, w: Tensor, g: Tensor, state: list[Tensor], numbers: Tensor) -> tuple[Tensor, list[Tensor]]:
        group = self.group
        if not group["momentum"]:
            return w - numbers[0] * g, []
        u = group["momentum"] * state[0] + (1 - group["dampening"]) * g
        move = g + group["momentum"] * u if group["nesterov"] else u
        return w - numbers[0] * move, [u]


_RULES: dict[type[torch.optim.Optimizer], type[Rule]] = {**dict.fromkeys(ADAMS, Adam), torch.optim.SGD: SGD}


def rules_of(optimizer: torch.optim.Optimizer) -> list[Rule] | None:
    """A rule for every parameter group; None if the optimiser, or one of its options, has no rule."""
    rule = _RULES.get(type(optimizer))
    if rule is None or does_more(optimizer):
        return None
    return [rule(group) for group in optimizer.param_groups]
