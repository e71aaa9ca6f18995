"""Optimisers as pure functions, so that their update can be a part of a graph.

    Adam    m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2,   w <- w - lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)
    AdamW   w <- (1 - lr decay) w first, Adam then
    SGD     u <- momentum u + (1 - dampening) g,   w <- w - lr u,   or  w - lr (g + momentum u)  after Nesterov

Kingma & Ba (2015); Loshchilov & Hutter (2019); Sutskever et al. (2013). The state is
stored in the `torch.optim` optimiser under its own names, so checkpoints do not depend on the engine. What depends on the
number of the step is computed outside the graph and passed in as numbers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyrodrop.private_apis import fused_adam, fused_adamw

Group = dict[str, Any]  # one of torch.optim's param_groups


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
        """The numbers to pass in at a step, counted from 1."""

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
        return w - numbers[0] * m / (v.sqrt() * numbers[1] + self.group["eps"]), [m, v]


class AdamW(Adam):
    """Adam with decoupled weight decay."""

    decoupled = True


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
    torch.optim.SGD: SGD,
}
_UNKNOWN_OPTIONS = ("amsgrad", "maximize", "differentiable")


def rules_of(optimizer: torch.optim.Optimizer) -> list[Rule] | None:
    """A rule for every parameter group; None if the optimiser, or one of its options, has no rule."""
    rule = _RULES.get(type(optimizer))
    if rule is None or does_more(optimizer):
        return None
    if any(group.get("decoupled_weight_decay") for group in optimizer.param_groups) and rule is Adam:
        rule = AdamW
    return [rule(group) for group in optimizer.param_groups]


def does_more(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step does more than the rule of the optimiser's class: by an option, a hook or a method of its own."""
    if any(group.get(option) for group in optimizer.param_groups for option in _UNKNOWN_OPTIONS):
        return True
    hooks = [
        value
        for name, value in vars(optimizer).items()
        if name.endswith("step_pre_hooks") or name.endswith("step_post_hooks")
    ]
    return "step" in vars(optimizer) or any(hooks)


_FUSED: dict[type[torch.optim.Optimizer], Any] = {torch.optim.Adam: fused_adam, torch.optim.AdamW: fused_adamw}


class Update:
    """The update of parameters by their gradients: the optimiser's step, or the one operation that torch's fused Adam is.

    What PyTorch does around this operation takes longer than the operation where networks are small, and imports its
    compiler.

    Args:
        optimizer: of the parameters; the first update creates its state, as its own step would.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        plain = type(optimizer) in _FUSED and _is_fused(optimizer) and not does_more(optimizer)
        self._fused = _FUSED[type(optimizer)] if plain else None

    def clear(self) -> None:
        """Forget the gradients."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def __call__(self, rates: Sequence[float]) -> None:
        """Update the parameters that have gradients, with a learning rate for every parameter group."""
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        if self._fused is None:
            self.optimizer.step()
            return
        with torch.no_grad():
            for group in self.optimizer.param_groups:
                for parameters in _by_kind([one for one in group["params"] if one.grad is not None]):
                    self._step(self._fused, group, parameters)

    def _step(self, fused: Any, group: Group, parameters: list[Tensor]) -> None:
        """One step of Adam of parameters with the same dtype on the same device."""
        states = [self._state(parameter) for parameter in parameters]
        steps = [state["step"] for state in states]
        for step in steps:
            step.add_(1)
        fused(
            parameters, [parameter.grad for parameter in parameters], [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states], [], steps, lr=group["lr"], beta1=group["betas"][0],
            beta2=group["betas"][1], weight_decay=group["weight_decay"], eps=group["eps"], amsgrad=False, maximize=False,
        )  # fmt: skip

    def _state(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.optimizer.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state


def _is_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Whether this is a fused optimiser whose options are numbers."""
    groups = optimizer.param_groups
    plain = all(
        isinstance(number, float) for group in groups if group.get("fused") for number in (group["lr"], *group["betas"])
    )
    decoupled = any(group.get("decoupled_weight_decay") for group in groups)
    return plain and all(group.get("fused") for group in groups) and decoupled <= (type(optimizer) is torch.optim.AdamW)


def _by_kind(parameters: Sequence[Tensor]) -> list[list[Tensor]]:
    """The parameters in lists of one device and dtype each."""
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for parameter in parameters:
        kinds.setdefault((parameter.device, parameter.dtype), []).append(parameter)
    return list(kinds.values())
