"""What a training step is made of, for all engines: arguments, a loss, the buffers that it updates, and an update.

    loss = nll + kl_weight * kl(weights) + kl(hyperparameters), or the value of a loss object of Pyro

An engine makes steps: Pyro (`pyrodrop.training.session.ByPyro`), or one of `pyrodrop.compiled`:

    pyro       runs Pyro's handlers at every step; works for any model and guide
    traced     replays a graph of the gradient, operation by operation; the optimiser updates the parameters
    compiled   compiles gradient and update together with TorchInductor

All three draw the same random numbers in the same order and update the network's buffers alike. `traced` does the same
arithmetic as Pyro; `compiled` does it in another order and agrees up to rounding.
"""

from __future__ import annotations

import copy
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import torch
from pyro.infer import ELBO, JitTrace_ELBO, JitTraceEnum_ELBO, JitTraceGraph_ELBO, JitTraceMeanField_ELBO
from torch import Tensor, nn
from torch.distributions import constraints

from pyrodrop.changes import Look, places_of
from pyrodrop.checks import Inputs, over_tensors, parts, tensors_in
from pyrodrop.devices import made_on
from pyrodrop.private_apis import constraint_in_store, fused_adam, fused_adamw

Shapes = tuple[torch.Size, ...]
Place = tuple[nn.Module, str]
Group = dict[str, Any]  # one of torch.optim's param_groups

_JITTED = JitTrace_ELBO, JitTraceEnum_ELBO, JitTraceGraph_ELBO, JitTraceMeanField_ELBO
_UNKNOWN_OPTIONS = ("amsgrad", "maximize", "differentiable", "centered_variance")


class Arguments:
    """The arguments of model and guide at a step; tensors may be within tuples, lists and dictionaries.

    Attributes:
        rows: the number of rows; 1 for the arguments of a program.
        whole: whether every step has these arguments.
    """

    rows: int = 1
    whole: bool = True

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args, self.kwargs = args, kwargs

    @functools.cached_property
    def tensors(self) -> list[Tensor]:
        """The tensors, in the order in which graphs take them."""
        return tensors_in((self.args, self.kwargs))

    @property
    def shapes(self) -> Shapes:
        """The shapes of `tensors`; engines have one graph for each value."""
        return tuple(tensor.shape for tensor in self.tensors)

    @property
    def device(self) -> torch.device:
        return next((tensor.device for tensor in self.tensors), torch.device("cpu"))

    def filled(self, tensors: Sequence[Tensor]) -> Self:
        """The same arguments with other tensors."""
        following = iter(tensors)
        return self._mapped(lambda _: next(following))

    def at(self, index: int | slice) -> Self:
        """Every tensor at an index of its first axis: the arguments of a replicate, or some of the rows."""
        return self._mapped(lambda tensor: tensor[index])

    def _mapped(self, function: Callable[[Tensor], Tensor]) -> Self:
        args, kwargs = over_tensors(function, (self.args, self.kwargs))
        return type(self)(args, kwargs)


class Call(Arguments):
    """The arguments of a Pyro program, the same at every step."""


class Batch(Arguments):
    """Rows of a data set: (x, y), and in `kwargs` its size ``num_data``, if the likelihood is to be scaled to it."""

    def __init__(self, args: tuple[Inputs, Tensor], kwargs: dict[str, Any]) -> None:
        self.args, self.kwargs = args, kwargs
        self.x, self.y = args
        self.tensors = [*parts(self.x), self.y]
        self.rows, self.whole = len(self.y), not kwargs


def making(batch: Arguments) -> AbstractContextManager[Any]:
    """Within the block, tensors that a Pyro program makes from numbers are on the device of its arguments."""
    return made_on(batch.device) if isinstance(batch, Call) else nullcontext()


class Buffers:
    """The buffers of some modules that a step updates in addition to parameters, such as running statistics and counters.

    In training mode nn.BatchNorm updates its running statistics in place at every call. A graph must do the same, so the
    buffers that a call updates are inputs of the graph, and their new values are outputs.

    Args:
        parts: model and guide; recording a graph leaves them unchanged.
        places: for every buffer, by name, the modules that have it, each with the buffer's name there.
    """

    def __init__(self, parts: Sequence[Any] = (), places: Mapping[str, Sequence[Place]] | None = None) -> None:
        self.parts: tuple[Any, ...] = tuple(parts)
        self.places: dict[str, Sequence[Place]] = dict(places or {})

    @classmethod
    def moved(cls, look: Look, *parts: Any) -> Buffers:
        """The buffers of model and guide that calls within a block of `put_back` have changed."""
        moved = set(look.moved)
        places = places_of(*parts) if moved else {}
        return cls(parts, {name: of_buffer for name, of_buffer in places.items() if of_buffer[0] in moved})

    def __len__(self) -> int:
        return len(self.places)

    def tensors(self) -> list[Tensor]:
        """The buffers, by reference."""
        return [module._buffers[name] for (module, name), *_ in self.places.values()]  # type: ignore[misc]

    def named(self) -> dict[str, Tensor]:
        """The buffers by name, by reference."""
        return dict(zip(self.places, self.tensors(), strict=True))

    def take(self, values: Sequence[Tensor]) -> None:
        """Set the buffers to these values, in place."""
        with torch.no_grad():
            for buffer, value in zip(self.tensors(), values, strict=True):
                buffer.copy_(value)

    @contextmanager
    def replaced(self, values: Sequence[Tensor]) -> Iterator[Callable[[], list[Tensor]]]:
        """Replace the buffers by other tensors, which calls then update; yields a function that returns the updated ones."""
        before = self.tensors()
        self._put(values)
        try:
            yield self.tensors
        finally:
            self._put(before)

    def _put(self, values: Sequence[Tensor]) -> None:
        for places, value in zip(self.places.values(), values, strict=True):
            for module, name in places:
                module._buffers[name] = value


class Objective(ABC):
    """A loss of a model and a guide as a function of their arguments, differentiated by the parameters that Pyro sees.

    Args:
        model, guide: with the estimator applied.

    Attributes:
        jitted: whether `torch.jit` traces the loss; another trace around that would break `torch.jit` for the whole process.
    """

    jitted: bool = False

    def __init__(self, model: Callable[..., Any], guide: Callable[..., Any]) -> None:
        self.model: Callable[..., Any] = model
        self.guide: Callable[..., Any] = guide

    @abstractmethod
    def terms(self, batch: Arguments) -> Tensor:
        """nll and kl, ``[2]``, without gradient."""

    @abstractmethod
    def backward(self, batch: Arguments, weight: Any) -> Tensor:
        """Add the gradient to that of the parameters; returns nll and kl, ``[2]``.

        Args:
            batch: arguments of model and guide.
            weight: of the weights' KL divergence in the loss.
        """

    @abstractmethod
    def gradients(self, batch: Arguments, weight: Any, leaves: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """nll and kl, ``[2]``, and the gradient of every leaf, 0 if the loss does not depend on it; no ``.grad`` changes."""


class OfPyro(Objective):
    """A loss object of Pyro, which estimates and differentiates as under `pyro.infer.SVI`; its loss stands for nll.

    Args:
        loss: the user's object, which stays as it is.
        model, guide: as of `Objective`.

    Attributes:
        reached: for each of the leaves of the last call of `gradients`, whether Pyro gives it a gradient.
    """

    reached: Sequence[bool] = ()

    def __init__(self, loss: ELBO, model: Callable[..., Any], guide: Callable[..., Any]) -> None:
        super().__init__(model, guide)
        self.given, self.jitted = loss, isinstance(loss, _JITTED)
        self.begin()

    def begin(self) -> None:
        """Take a new copy of the user's object, which learns at its first call what some need, by random draws."""
        self.loss: Any = copy.copy(self.given)

    def terms(self, batch: Arguments) -> Tensor:
        with torch.no_grad():
            return self._called(self.loss.loss, batch)

    def backward(self, batch: Arguments, weight: Any) -> Tensor:
        return self._called(self.loss.loss_and_grads, batch)

    def _called(self, method: Callable[..., Any], batch: Arguments) -> Tensor:
        with making(batch):
            value = method(self.model, self.guide, *batch.args, **batch.kwargs)
        value = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64, device=batch.device)
        return torch.stack([value, torch.zeros_like(value)])

    def gradients(self, batch: Arguments, weight: Any, leaves: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        kept = [leaf.grad for leaf in leaves]
        try:
            for leaf in leaves:
                leaf.grad = None
            terms = self.backward(batch, weight)
            self.reached = [leaf.grad is not None for leaf in leaves]
            return terms, [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
        finally:
            for leaf, gradient in zip(leaves, kept, strict=True):
                leaf.grad = gradient


class Parameter(NamedTuple):
    """A parameter as the optimiser sees it, without constraint, and the constraint of its value."""

    unconstrained: Tensor
    constraint: constraints.Constraint

    @classmethod
    def of_sites(cls, sites: Mapping[Any, Any]) -> dict[str, Parameter]:
        """The parameters of Pyro's param sites, each once, by its first name."""
        parameters: dict[int, tuple[str, Parameter]] = {}
        for name, site in sites.items():
            value = site["value"]
            unconstrained = (
                value.unconstrained() if hasattr(value, "unconstrained") else value
            )  # with module_local_params
            constraint = constraint_in_store(name, site["kwargs"].get("constraint", constraints.real))
            parameters.setdefault(id(unconstrained), (name, cls(unconstrained, constraint)))
        return dict(parameters.values())


@dataclass(frozen=True, eq=False)
class Loss:
    """The loss that training minimises, with all that a step changes.

    Attributes:
        objective: the kind of loss, with model and guide.
        parameters: those that the optimiser changes, by name.
        moving: the buffers that a call of model or guide updates.
        changes: the Python attributes that a call changes, as words for a message; empty if there are none.
        in_store: names of the parameters in Pyro's global store that belong to no module of model or guide.
        sites: names of all param sites of a call of a program, also of parameters that are frozen.
        recordings: graphs of the loss that `pyrodrop.compiled` keeps.
    """

    objective: Objective
    parameters: Mapping[str, Parameter]
    moving: Buffers = field(default_factory=Buffers)
    changes: str = ""
    in_store: Sequence[str] = ()
    sites: Collection[str] = ()
    recordings: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def trained(self) -> dict[str, Tensor]:
        """The unconstrained parameters that require a gradient now, by name."""
        unconstrained = {name: parameter.unconstrained for name, parameter in self.parameters.items()}
        return {name: leaf for name, leaf in unconstrained.items() if leaf.requires_grad}

    @property
    def leaves(self) -> list[Tensor]:
        """The unconstrained parameters that require a gradient now."""
        return list(self.trained.values())

    @property
    def buffers(self) -> list[Tensor]:
        """The buffers that a step updates."""
        return self.moving.tensors()


class Plan(NamedTuple):
    """The weights of the divergence and the learning rates of consecutive steps, one entry per step.

    Attributes:
        first: number of the first step, counted from 0.
        weights: factor of the KL divergence of the weights in the loss.
        rates: learning rate of every parameter group.
    """

    first: int
    weights: list[float]
    rates: list[list[float]]


class Engine(ABC):
    """Makes training steps.

    Attributes:
        name: of the engine.
        plan: of the steps since `begin`.
        made: nll and kl before each of these steps, ``[2]``, also of those before an error.
    """

    name: str
    plan: Plan
    made: list[Tensor]

    def holds(self, done: int, changed: str) -> bool:
        """Whether it can make the steps after `done`. If something has changed, it first prepares them again.

        Args:
            changed: which flag, mode or object of a module or parameter has changed since the last call, or an empty
                string.
        """
        return True

    def until(self, done: int, end: int) -> int:
        """The number of steps, at most `end`, that may be done before `holds` has to be called again."""
        return end

    def called(self, done: int) -> None:  # noqa: B027  most need not know
        """Called when user code has run after `done` steps, which may have changed something."""

    def begin(self, plan: Plan) -> None:
        """Prepare for the steps of a plan."""
        self.plan, self.made = plan, []

    def advance(self, batches: Any, count: int) -> None:
        """Make the next steps of the plan.

        Args:
            batches: supplies the minibatches.
            count: number of steps.
        """
        for _ in range(count):
            self.made.append(self.step(batches.next(), len(self.made)))

    @abstractmethod
    def step(self, batch: Any, index: int) -> Tensor:
        """Make the step of this index in the plan; returns nll and kl before it, ``[2]``."""

    def check(self, done: int) -> None:  # noqa: B027
        """Compare the last steps of a training with Pyro's if that is due; a RuntimeError if they differ."""

    @abstractmethod
    def finish(self, steps: int) -> None:
        """Bring the optimiser's state to what it would be after `steps` steps of its own, and clear the gradients, to which
        later steps of `SVI` would add."""


def does_more(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step does more than the rule of the optimiser's class, by an option, a hook or a replaced `step`."""
    if any(group.get(option) for group in optimizer.param_groups for option in _UNKNOWN_OPTIONS):
        return True
    hooks = [value for name, value in vars(optimizer).items() if name.endswith(("step_pre_hooks", "step_post_hooks"))]
    return "step" in vars(optimizer) or any(hooks)


class Update:
    """The update of parameters by their gradients: the optimiser's step, or just the operation of torch's fused Adam(W).

    For small networks the code of PyTorch around this operation takes longer than the operation, and it imports PyTorch's
    compiler.

    Args:
        optimizer: of the parameters; the first update creates its state, as its `step` would.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        kinds, groups = (torch.optim.Adam, torch.optim.AdamW), optimizer.param_groups
        self._fused = type(optimizer) in kinds and all(g.get("fused") for g in groups) and not does_more(optimizer)

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
        if not self._fused:
            self.optimizer.step()
            return
        with torch.no_grad():
            for group in self.optimizer.param_groups:
                kinds: dict[Any, list[Tensor]] = {}
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        kinds.setdefault((parameter.device, parameter.dtype), []).append(parameter)
                for parameters in kinds.values():
                    states = [self._state(parameter) for parameter in parameters]
                    steps = [state["step"].add_(1) for state in states]
                    gradients = [parameter.grad for parameter in parameters]
                    adam_step(group, parameters, gradients, states, steps)

    def _state(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.optimizer.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state


def adam_step(
    group: Group,
    parameters: Sequence[Tensor],
    gradients: Sequence[Any],
    states: Sequence[Mapping[str, Any]],
    steps: Sequence[Tensor],
) -> None:
    """Make a step of Adam, or of AdamW, by torch's fused operation, for parameters of one dtype on one device.

    Args:
        group: the options.
        states: of the optimiser, for every parameter.
        steps: the number of every parameter's step, counted from 1, on its device.
    """
    (fused_adamw if group.get("decoupled_weight_decay") else fused_adam)(
        parameters, gradients, [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states], [],
        steps, lr=group["lr"], beta1=group["betas"][0], beta2=group["betas"][1], weight_decay=group["weight_decay"],
        eps=group["eps"], amsgrad=False, maximize=False,
    )  # fmt: skip
