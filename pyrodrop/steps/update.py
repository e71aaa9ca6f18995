"""The update of parameters by their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyrodrop.private_apis import fused_adam, fused_adamw

Group = dict[str, Any]  # one of torch.optim's param_groups
_UNKNOWN_OPTIONS = ("amsgrad", "maximize", "differentiable", "centered_variance")


def does_more(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step does more than the rule of the optimiser's class, by an option, a hook or a replaced `step`."""
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
    """The update of parameters by their gradients: the optimiser's step, or just the operation of torch's fused Adam(W).

    For small networks the code of PyTorch around this operation takes longer than the operation, and it imports PyTorch's
    compiler.

    Args:
        optimizer: of the parameters; the first update creates its state, as its `step` would.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        plain = type(optimizer) in _FUSED and _is_fused(optimizer) and not does_more(optimizer)
        self._fused = _FUSED[type(optimizer)] if plain else None

    def clear(self) -> None:
        """Set all gradients to None."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def fill(self) -> None:
        """Give the gradient 0 to parameters that have none but have had one, by which the optimiser has a state for them."""
        for parameter in self.optimizer.state:
            if parameter.grad is None and parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)

    def __call__(self, rates: Sequence[float]) -> None:
        """Update the parameters that have gradients, with a learning rate for every parameter group."""
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is not None and (gradient.layout != torch.strided or not gradient.is_contiguous()):
                    parameter.grad = gradient.to_dense().contiguous()  # fused operations read memory in order
        if self._fused is None:
            self.optimizer.step()
            return
        with torch.no_grad():
            for group in self.optimizer.param_groups:
                for parameters in _by_kind([one for one in group["params"] if one.grad is not None]):
                    self._step(self._fused, group, parameters)

    def _step(self, fused: Any, group: Group, parameters: list[Tensor]) -> None:
        """One step of Adam for parameters of one dtype on one device."""
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
