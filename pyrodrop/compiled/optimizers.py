"""Optimisers as pure functions, so that a graph can contain their update.

    Adam    m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2,   w <- w - lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)
    AdamW   w <- (1 - lr decay) w first, Adam then
    Clipped Adam with g clipped to [-c, c], lr d in place of lr, and eps / sqrt(1 - b2^t) in place of eps
    SGD     u <- momentum u + (1 - dampening) g,   w <- w - lr u,   or  w - lr (g + momentum u)  after Nesterov

Kingma & Ba (2015); Loshchilov & Hutter (2019); Sutskever et al. (2013). The state is stored in the `torch.optim` optimiser
under its usual names, so checkpoints do not depend on the engine. Numbers that depend on the step are computed outside the
graph and are inputs of it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from pyro.optim.clipped_adam import ClippedAdam
from torch import Tensor

from pyrodrop.steps import Group, does_more


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
    """Adam, and AdamW where the decay is decoupled."""

    numbers = 3
    state = ("exp_avg", "exp_avg_sq")  # type: ignore[assignment]
    decoupled = False

    def schedule(self, step: int, lr: float) -> tuple[float, ...]:
        b1, b2 = self.group["betas"]
        return lr / (1 - b1**step), 1 / math.sqrt(1 - b2**step), 1 - lr * self.group["weight_decay"]

    def update(self, w: Tensor, g: Tensor, state: list[Tensor], numbers: Tensor) -> tuple[Tensor, list[Tensor]]:
        (b1, b2), decay = self.group["betas"], self.group["weight_decay"]
        if decay and self.decoupled:
            w = w * numbers[2]
        elif decay:
            g = g + decay * w
        m, v = state
        m = m + (1 - b1) * (g - m)
        v = b2 * v + (1 - b2) * g * g
        return w - numbers[0] * m / (v.sqrt() * numbers[1] + self._eps(numbers)), [m, v]

    def _eps(self, numbers: Tensor) -> Tensor | float:
        return self.group["eps"]  # type: ignore[no-any-return]


class AdamW(Adam):
    """Adam with decoupled weight decay."""

    decoupled = True


class Clipped(Adam):
    """Pyro's ClippedAdam, whose eps is outside of the bias correction."""

    def schedule(self, step: int, lr: float) -> tuple[float, ...]:
        return super().schedule(step, lr * self.group["lrd"])

    def update(self, w: Tensor, g: Tensor, state: list[Tensor], numbers: Tensor) -> tuple[Tensor, list[Tensor]]:
        bound = self.group["clip_norm"]
        return super().update(w, g.clamp(-bound, bound), state, numbers)

    def _eps(self, numbers: Tensor) -> Tensor | float:
        return self.group["eps"] * numbers[1]


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
        if group["weight_decay"]:
            g = g + group["weight_decay"] * w
        if not group["momentum"]:
            return w - numbers[0] * g, []
        u = group["momentum"] * state[0] + (1 - group["dampening"]) * g
        move = g + group["momentum"] * u if group["nesterov"] else u
        return w - numbers[0] * move, [u]


_RULES: dict[type[torch.optim.Optimizer], type[Rule]] = {
    torch.optim.Adam: Adam,
    torch.optim.AdamW: AdamW,
    ClippedAdam: Clipped,
    torch.optim.SGD: SGD,
}


def rules_of(optimizer: Any) -> list[Rule] | None:
    """A rule for every parameter group; None if the optimiser, or one of its options, has no rule."""
    rules: list[Rule] = []
    for each in getattr(optimizer, "optimizers", [optimizer]):
        rule = _RULES.get(type(each))
        if rule is None or does_more(each):
            return None
        if any(group.get("decoupled_weight_decay") for group in each.param_groups) and rule is Adam:
            rule = AdamW
        rules += [rule(group) for group in each.param_groups]
    return rules
