"""The update of parameters by the optimisers of a `pyro.optim.PyroOptim`: one operation for many, or within a compiled step.

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

from pyrodrop.compiled.inductor import Compiled, on
from pyrodrop.compiled.untraceable import Untraceable
from pyrodrop.private_apis import add_to_all, fused_adam, fused_adamw, fused_sgd
from pyrodrop.steps import Call
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
        groups: dict[Any, _Group] = {}
        kept = self.of(weights)
        if kept is None:
            return False
        for weight, gradient, (own, numbers) in zip(weights, gradients, kept, strict=True):
            settings, state = own.settings, own.state
            count = state["step"] if type(own.optimizer) is ClippedAdam else None
            key = (type(own.optimizer), weight.dtype, weight.device, count, numbers)
            group = groups.get(key)
            if group is None:
                group = groups[key] = _Group([], [], [], [], [])
            group.settings.append(settings)
            group.states.append(state)
            group.moments.append(own.moments)
            group.weights.append(weight)
            gradient = gradient if gradient.dtype == weight.dtype else gradient.to(weight.dtype)
            group.gradients.append(gradient.contiguous())
        with torch.no_grad():
            for (kind, *_), group in groups.items():
                _KINDS[kind].step(group)
        return True

    def of(self, weights: Sequence[Tensor]) -> list[tuple[_Own, tuple[Any, ...]]] | None:
        """The optimisers of these parameters with their settings; None if only they themselves can make their steps."""
        if type(self.optim).__call__ is not PyroOptim.__call__:
            return None
        found = []
        for weight in weights:
            own = self._own(weight)
            if own is None:
                return None
            settings, numbers = own.settings, own.numbers(own.settings)
            if any([settings.get(name) for name in own.kind.off]) or not all(  # noqa: C419
                [type(n) in _NUMBERS for n in (*numbers, *settings.get("betas", ()))]  # noqa: C419
            ):
                return None
            found.append((own, numbers))
        return found

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


class _Joint:
    """The optimisers of several parameters as one of `torch.optim`, with a group for each."""

    def __init__(self, optimizers: Sequence[_Own]) -> None:
        self.optimizers = [own.optimizer for own in optimizers]
        self.param_groups = [own.settings for own in optimizers]
        self.state = {own.settings["params"][0]: own.state for own in optimizers}


class WholeStep(Compiled):
    """A step of `compile_svi` as one compiled program: the gradient and the update of all parameters.

    The program changes nothing if the loss is not finite.

    Raises:
        Untraceable: the program cannot be compiled, or an optimiser has no rule.
    """

    def __init__(self, loss: Any, update: Update, call: Call) -> None:
        optimizers = update.of(loss.leaves)
        if optimizers is None:
            raise Untraceable("an optimiser has no compiled form (Adam, AdamW, ClippedAdam and SGD have)")
        if call.device != loss.leaves[0].device:
            raise Untraceable("its arguments are not on the device of its parameters")
        super().__init__(loss, _Joint([own for own, _ in optimizers]))
        self._fixed = [(type(own.optimizer), numbers[1:]) for own, numbers in optimizers]
        self._counts: dict[Tensor, tuple[int, int]] = {}  # of a step, the version that it had, and its value
        self._graph = loss.graph(call)
        self._program = self._call(self._graph, self._held, call)

    def choice(self, terms: Tensor, gradients: list[Tensor], extra: list[Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        finite = torch.isfinite(terms[0])
        return lambda old, new: torch.where(finite, new, old)

    def run(self, update: Update, tensors: Sequence[Tensor]) -> float | None:
        """Make a step for the tensors of the arguments; returns the loss, or None if the program is of another update."""
        optimizers = update.of(self.leaves)
        if optimizers is None or [(type(own.optimizer), numbers[1:]) for own, numbers in optimizers] != self._fixed:
            return None
        if not all([leaf.is_contiguous() for leaf in self.leaves]):  # noqa: C419
            return None
        owns, numbers = [own for own, _ in optimizers], [1.0, 1.0]
        counts = [self._count(own.state.get("step", 0)) for own in owns]
        schedules: dict[Any, tuple[float, ...]] = {}  # most parameters have the same
        for (own, read), rule, count in zip(optimizers, self.rules, counts, strict=True):
            key = type(rule), count, read
            if key not in schedules:
                schedules[key] = rule.schedule(count + 1, own.settings["lr"])
            numbers += schedules[key]
        held = [leaf.detach() for leaf in self.leaves]
        held += [moment for own in owns for moment in own.moments]
        held += self.loss.buffers
        rest = [
            *tensors,
            torch.tensor(numbers, dtype=held[0].dtype),
            *self._graph.constants,
            *self._graph.draw(),
        ]
        with torch.no_grad():
            terms = self._program([*held, *(rest if held[0].device.type == "cpu" else on(held[0].device, rest))])[0]
        torch.autograd.graph.increment_version(held)
        loss = terms[0].item()
        if math.isfinite(loss):
            self._made(owns, counts)
        return loss

    def _made(self, owns: Sequence[_Own], counts: Sequence[int]) -> None:
        """Count a step of the optimisers."""
        steps = {
            own.state["step"]: n
            for own, n in zip(owns, counts, strict=True)
            if isinstance(own.state.get("step"), Tensor)
        }
        if steps:  # SGD counts none
            add_to_all(list(steps), 1)
        self._counts = {step: (step._version, count + 1) for step, count in steps.items()}
        for own in owns:
            if "lrd" in own.settings:
                own.settings["lr"] *= own.settings["lrd"]
                own.state["step"] += 1

    def _count(self, step: Any) -> int:
        """The number of steps of an optimiser, without reading a tensor that only `_made` has written to."""
        version, count = self._counts.get(step, (-1, 0)) if isinstance(step, Tensor) else (-1, 0)
        return count if isinstance(step, Tensor) and step._version == version else int(step)


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
