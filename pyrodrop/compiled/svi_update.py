"""The update of parameters by the optimisers of a `pyro.optim.PyroOptim`, one operation for many of them.

Pyro has a torch optimiser for every parameter, and a step of each takes 50 microseconds of Python. Here, their states and
settings are read and written in these optimisers, so `get_state`, `save` and Pyro's steps see the present values.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from pyro.optim.clipped_adam import ClippedAdam
from pyro.optim.optim import PyroOptim
from torch import Tensor

from pyrodrop.private_apis import fused_adam, fused_adamw, fused_sgd
from pyrodrop.steps.update import does_more

Settings = dict[str, Any]  # the param_group of an optimiser of one parameter
State = dict[str, Any]
_NUMBERS = (int, float, bool, type(None), tuple)


class _Group(NamedTuple):
    """Parameters whose optimisers are of one class and have the same settings.

    Attributes:
        settings, states, moments: one per parameter; the moments are the tensors of the state in the parameter's shape.
    """

    settings: list[Settings]
    states: list[State]
    moments: list[list[Tensor]]
    weights: list[Tensor]
    gradients: list[Tensor]


class _Kind(NamedTuple):
    """The steps of optimisers of one class.

    Attributes:
        read: names of the settings that are numbers.
        off: names of the settings that must be false.
        moments: function from the settings to the names of the moments.
    """

    read: tuple[str, ...]
    off: tuple[str, ...]
    moments: Callable[[Settings], tuple[str, ...]]
    step: Callable[[_Group], None]


class _Own(NamedTuple):
    """The optimiser of a parameter with its settings and state, by reference; `numbers` reads the settings."""

    optimizer: Any
    kind: _Kind
    groups: Any
    all_states: Any
    settings: Settings
    state: State
    names: tuple[str, ...]
    moments: list[Tensor]
    hooks: list[Any]
    numbers: Callable[[Settings], Any]

    def has_its_moments(self) -> bool:
        """Whether the tensors of the state are still the same objects."""
        return all([self.state.get(name) is moment for name, moment in zip(self.names, self.moments, strict=True)])  # noqa: C419


class Update:
    """Makes the steps of the optimisers of some parameters."""

    def __init__(self, optim: PyroOptim) -> None:
        self.optim = optim
        self._known: dict[Tensor, _Own] = {}

    def __call__(self, weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> bool:
        """Make a step. Returns False, without any change, if only the optimisers themselves can make it."""
        if type(self.optim).__call__ is not PyroOptim.__call__:
            return False
        groups: dict[Any, _Group] = {}
        for weight, gradient in zip(weights, gradients, strict=True):
            kept = self._own(weight)
            if kept is None:
                return False
            settings, state = kept.settings, kept.state
            count = state["step"] if type(kept.optimizer) is ClippedAdam else None
            key = (type(kept.optimizer), weight.dtype, weight.device, count, kept.numbers(settings))
            group = groups.get(key)
            if group is None:
                if any(settings.get(name) for name in kept.kind.off) or not all(
                    type(n) in _NUMBERS for n in (*key[-1], *settings.get("betas", ()))
                ):
                    return False
                group = groups[key] = _Group([], [], [], [], [])
            group.settings.append(settings)
            group.states.append(state)
            group.moments.append(kept.moments)
            group.weights.append(weight)
            gradient = gradient if gradient.dtype == weight.dtype else gradient.to(weight.dtype)
            group.gradients.append(gradient.contiguous())
        with torch.no_grad():
            for (kind, *_), group in groups.items():
                _KINDS[kind].step(group)
        return True

    def _own(self, weight: Tensor) -> _Own | None:
        """The optimiser of a parameter; None if its step cannot be made together with others."""
        optimizer, kept = self.optim.optim_objs.get(weight), self._known.get(weight)
        if (
            kept is None
            or kept.optimizer is not optimizer
            or kept.groups is not optimizer.param_groups
            or kept.all_states is not optimizer.state
            or kept.all_states.get(weight) is not kept.state
            or not kept.has_its_moments()
        ):
            kept = self._found(weight, optimizer)
            if kept is None:
                return None
            self._known[weight] = kept
        more = any(kept.hooks) or "step" in optimizer.__dict__ or self.optim.grad_clip.get(weight) is not None
        return None if more else kept

    def _found(self, weight: Tensor, optimizer: Any) -> _Own | None:
        kind = _KINDS.get(type(optimizer))
        if kind is None or does_more(optimizer) or len(optimizer.param_groups) != 1 or not weight.is_contiguous():
            return None
        (settings,), state = optimizer.param_groups, optimizer.state.get(weight)
        if state is None:
            return None
        names = kind.moments(settings)
        moments = [state.get(name) for name in names]
        usable = (isinstance(m, Tensor) and m.is_contiguous() and m.dtype == weight.dtype for m in moments)
        if not all(usable):
            return None  # such as those of an optimiser that has not made a step
        hooks = [
            value for name, value in vars(optimizer).items() if name.endswith(("step_pre_hooks", "step_post_hooks"))
        ]
        numbers = itemgetter(*(name for name in (*kind.read, *kind.off) if name in settings))
        groups, states = optimizer.param_groups, optimizer.state
        return _Own(optimizer, kind, groups, states, settings, state, names, moments, hooks, numbers)


def _adam(group: _Group, decoupled: bool = False) -> None:
    settings, device = group.settings[0], group.weights[0].device
    steps = [state["step"] for state in group.states]
    for step in steps:
        step.add_(1)
    decoupled = decoupled or bool(settings.get("decoupled_weight_decay"))
    _fused(group, group.gradients, [step.to(device) for step in steps], settings["eps"], decoupled)


def _clipped_adam(group: _Group) -> None:
    """Adam of clipped gradients, with eps outside of the bias correction; the learning rate decays first."""
    for settings, state in zip(group.settings, group.states, strict=True):
        settings["lr"] *= settings["lrd"]
        state["step"] += 1
    settings, count = group.settings[0], group.states[0]["step"]
    bound, eps = settings["clip_norm"], settings["eps"] / math.sqrt(1 - settings["betas"][1] ** count)
    clipped = [gradient.clamp(-bound, bound) for gradient in group.gradients]
    step = torch.tensor(float(count), device=group.weights[0].device)
    _fused(group, clipped, [step] * len(clipped), eps, decoupled=False)


def _fused(group: _Group, gradients: list[Tensor], steps: list[Tensor], eps: float, decoupled: bool) -> None:
    settings, (means, squares) = group.settings[0], zip(*group.moments, strict=True)
    (fused_adamw if decoupled else fused_adam)(
        group.weights, gradients, means, squares, [], steps, lr=settings["lr"], beta1=settings["betas"][0],
        beta2=settings["betas"][1], weight_decay=settings["weight_decay"], eps=eps, amsgrad=False, maximize=False,
    )  # fmt: skip


def _sgd(group: _Group) -> None:
    numbers = {name: group.settings[0][name] for name in _SGD}
    velocities = [moment for moments in group.moments for moment in moments]
    fused_sgd(group.weights, group.gradients, velocities, **numbers, maximize=False, is_first_step=False)


_ADAM = ("lr", "betas", "eps", "weight_decay")
_SGD = ("lr", "momentum", "dampening", "weight_decay", "nesterov")
_OFF = ("amsgrad", "maximize", "differentiable")
_MOMENTS = ("exp_avg", "exp_avg_sq")
_KINDS: dict[Any, _Kind] = {
    torch.optim.Adam: _Kind((*_ADAM, "decoupled_weight_decay"), _OFF, lambda _: _MOMENTS, _adam),
    torch.optim.AdamW: _Kind(_ADAM, _OFF, lambda _: _MOMENTS, functools.partial(_adam, decoupled=True)),
    ClippedAdam: _Kind((*_ADAM, "clip_norm", "lrd"), ("centered_variance",), lambda _: _MOMENTS, _clipped_adam),
    torch.optim.SGD: _Kind(_SGD, _OFF, lambda settings: ("momentum_buffer",) if settings["momentum"] else (), _sgd),
}
