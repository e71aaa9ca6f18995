"""`pyro.infer.SVI` whose steps replay a recording of Pyro's computation, or run it compiled.

Pyro makes the first two steps with arguments of a new structure. The computation is then recorded as a graph of the
parameters, the arguments and the random numbers, and later steps run the graph. Parameters and optimiser states stay where
Pyro keeps them, so Pyro can make any step itself, and does if something has changed since the recording.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from types import SimpleNamespace
from typing import Any, cast

import pyro
import torch
from pyro import poutine
from pyro.infer import ELBO, SVI
from pyro.infer.util import torch_item, zero_grads
from pyro.optim import PyroOptim
from torch import Tensor
from torch.distributions import constraints

from pyrodrop.arguments import shown
from pyrodrop.changes import Contents, modules_of, put_back
from pyrodrop.compiled.inductor import WholeStep, on, rules_of
from pyrodrop.compiled.record import Untraceable
from pyrodrop.compiled.recorded import Recorded, Results, difference
from pyrodrop.compiled.steps import worth_compiling
from pyrodrop.constraints import EngineName as Name
from pyrodrop.constraints import checked
from pyrodrop.devices import random_states, set_random_states
from pyrodrop.module_flags import Flags
from pyrodrop.private_apis import add_to_all, fused_sgd, pyro_handlers
from pyrodrop.steps import Buffers, Call, Loss, OfPyro, Parameter, adam_step
from pyrodrop.threads import exclusive

_log = logging.getLogger("pyrodrop")

_STRUCTURES = 1000  # most structures of arguments in memory
_COMPARED_EVERY = 1000  # steps
_READINGS = 100  # most values of the numbers of arguments with a recording for each
_WORTH_A_RECORD = 100  # steps
_UNSEEN = "its recording gives other numbers than Pyro does: something changes between calls that is no tensor"
_CONSTANTS = {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size}


@checked
def compile_svi(
    model: Callable[..., Any], guide: Callable[..., Any], optim: PyroOptim, loss: Any, *, engine: Name = "auto"
) -> CompiledSVI:
    """`pyro.infer.SVI` with faster steps: ``svi = compile_svi(model, guide, optim, loss)`` in place of ``SVI(...)``.

    A step makes the same change of Pyro's parameter store and of the optimiser as `SVI.step`, with the same random numbers,
    and returns the same loss, up to rounding. Pyro makes the first two steps with arguments of a new structure; the third is
    recorded as a graph, which later steps run. There is one graph for all arguments of the same structure: the shapes of
    tensors, also within tuples, lists and dictionaries, and the values of numbers, strings and None. So an argument that
    changes at every step, such as the factor of an annealed term, should be a tensor.

    **What a recorded step may depend on.** As under JAX's `jit`, a recorded step is a function of

    - tensors that are arguments, parameters or buffers, or that the program refers to: their values are read at every step;
    - random numbers of torch;
    - modes, hooks, `requires_grad` and identity of modules and parameters, and plain numbers, flags and objects that the
      program's code names, in attributes, classes, imported modules, slots, containers (of at most 100 items), closures and
      global names: they are compared at every step, and the step is recorded again after a change;
    - whole numbers and truth values that are computed only from arguments, such as ``range(int(lengths.max()))``: there is
      a recording for each of their values.

    Everything else is read once, when the step is recorded: an entry of an array, a value that another package reads, a
    large tensor that is changed through NumPy or `Tensor.data`. Therefore Pyro makes steps 1, 2, 4, ... of a recording and
    every 1,000th. Before it changes a parameter, its loss and gradients are compared with those of the recording for the
    same state and random numbers. If they differ and recorded steps were made since the last comparison, a RuntimeError
    names the difference and the last step known to be right. If none were made, Pyro makes the further steps.

    Pyro also makes a step if a graph would not compute the same, and one logged line says why: the program cannot be
    recorded, a call changes what it reads, an argument is an object of another kind or requires a gradient, a parameter has
    a hook, parameters are on several devices, or the loss is not finite. Arguments are validated only at Pyro's steps.

    Args:
        model, guide: as of `pyro.infer.SVI`.
        optim: Pyro's optimiser. Adam, AdamW, ClippedAdam and SGD are stepped together for all parameters. As in `SVI`, a
            weight decay (AdamW has one by default) moves every parameter of the guide towards 0; `fit` refuses it.
        loss: an ELBO of Pyro, or a function as of `SVI`.
        engine: ``"traced"`` replays the graph; ``"compiled"`` compiles it with the update of the parameters, which takes
            seconds, unless an optimiser is another than those; ``"pyro"`` is `SVI` itself; ``"auto"`` replays the graph, and
            compiles it after as many steps as make this pay off.

    Raises:
        TypeError: model, guide or loss cannot be called, or optim is no `pyro.optim.PyroOptim`.
        ValueError: `engine` is none of these.

    Example:
        >>> import pyro, torch, pyrodrop
        >>> import pyro.distributions as dist
        >>> from pyro.infer import SVI, Trace_ELBO
        >>> def model(y):
        ...     mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        ...     with pyro.plate("data", len(y)):
        ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
        >>> def guide(y):
        ...     loc = pyro.param("loc", torch.zeros(()))
        ...     pyro.sample("mean", dist.Normal(loc, 0.1))
        >>> pyro.set_rng_seed(0)
        >>> svi = pyrodrop.compile_svi(model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
        >>> losses = [svi.step(torch.ones(10)) for _ in range(100)]
        >>> isinstance(svi, SVI), svi.engine, losses[-1] < losses[0]
        (True, 'traced', True)
    """
    for name, function in (("model", model), ("guide", guide), ("loss", loss)):
        if isinstance(function, type) or not (callable(function) or (name == "loss" and isinstance(function, ELBO))):
            raise TypeError(f"{name} must be one of Pyro's, which can be called; got {shown(function)}")
    if not isinstance(optim, PyroOptim):
        raise TypeError(f"optim must be an optimiser of pyro.optim, such as pyro.optim.Adam(...); got {shown(optim)}")
    return CompiledSVI(model, guide, optim, loss, engine)


class CompiledSVI(SVI):  # type: ignore[misc]
    """`pyro.infer.SVI` whose steps run recorded graphs; made by `compile_svi`.

    Attributes:
        engine: the engine that made the last step: pyro, traced or compiled.
    """

    def __init__(self, model: Any, guide: Any, optim: PyroOptim, loss: Any, engine: Name = "auto") -> None:
        super().__init__(model, guide, optim, loss)
        self.engine: Name = "pyro"
        self.wanted, self.users_loss = engine, loss
        self._structures: dict[Any, _Structure] = {}
        self._logged: set[str] = set()
        self._update_of = _Update(optim)

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Make a step, as `SVI.step`; returns the loss."""
        with exclusive():
            self.engine = "pyro"
            tensors: list[Tensor] = []
            try:
                _refuse_surroundings()
                key = (torch.get_default_dtype(), _structure(args, tensors), _structure(kwargs, tensors))
            except Untraceable as error:
                return self._by_pyro(args, kwargs, str(error))
            structure = self._structures.get(key)
            if structure is None:
                if len(self._structures) >= _STRUCTURES:
                    self._structures.clear()
                structure = self._structures[key] = _Structure()
            structure = structure.for_numbers(tensors)
            if structure.record is None:
                self._record(structure, Call(args, kwargs))
                structure = structure.for_numbers(tensors)
                if structure.record is None:
                    return self._by_pyro_watched(structure, args, kwargs)
            return self._by_record(structure, structure.record, tensors, args, kwargs)

    @property
    def programs(self) -> tuple[Any, ...]:
        """All that a step calls."""
        return self.model, self.guide, self.users_loss

    @property
    def update(self) -> _Update:
        """The update by the present optimiser."""
        if self._update_of.optim is not self.optim:
            self._update_of = _Update(self.optim)
        return self._update_of

    def _by_pyro(self, args: Any, kwargs: Any, reason: str = "") -> Any:
        """A step of Pyro; `reason` is logged the first time."""
        if reason and reason not in self._logged and self.wanted != "pyro":
            self._logged.add(reason)
            _log.log(logging.INFO if self.wanted == "auto" else logging.WARNING, "a step by Pyro: %s", reason)
        return super().step(*args, **kwargs)

    def _by_pyro_watched(self, structure: _Structure, args: Any, kwargs: Any) -> Any:
        """A step of Pyro. If it changes what the program reads, no step is recorded, since that takes further calls."""
        loss = self._by_pyro(args, kwargs, structure.refused)
        if self.wanted != "pyro" and not structure.refused:
            if structure.watched is not None and structure.quiet and (name := structure.watched.changed()):
                structure.refused = f"a call changes {name}, which a recording would read once"
            structure.watched = Contents(*self.programs)
        return loss

    def _record(self, structure: _Structure, call: Call) -> None:
        """Record a step after enough steps by Pyro without a change."""
        if structure.refused or structure.watched is None:
            return
        structure.quiet = 0 if structure.watched.changed() else structure.quiet + 1
        if structure.quiet < structure.patience:
            return
        devices = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
        try:
            with torch.random.fork_rng(devices):
                structure.keep(_Record(self, call))
        except Untraceable as error:
            structure.refused = str(error)
        except Exception as error:  # Pyro's step, which comes next, raises it as well if it is the program's
            structure.refused = f"it cannot be evaluated twice: {type(error).__name__}: {error}"

    def _by_record(
        self, structure: _Structure, record: _Record, tensors: Sequence[Tensor], args: Any, kwargs: Any
    ) -> Any:
        if reason := record.stale(self) or record.reason_to_use_pyro():
            loss = self._by_pyro(args, kwargs, reason)
            if record.stale(self):
                structure.forget()
                structure.watched = Contents(*self.programs)
            return loss
        before = random_states(record.device)
        record.steps += 1
        compared = record.is_to_be_compared()
        record.program.refresh(wait=False)
        loss = None if compared else record.compiled_step(self.update, tensors)
        if loss is None:
            results = record.results(tensors)
            loss = results.terms[0].item()
            if math.isfinite(loss) and compared:
                set_random_states(before, record.device)
                return self._compared(structure, record, results, Call(args, kwargs))
            if math.isfinite(loss):
                self._apply(record, results)
        if not math.isfinite(loss):
            set_random_states(before, record.device)
            return self._by_pyro(args, kwargs, "the loss is not finite")
        self.engine = record.engine
        if record.pays_to_compile(self.wanted):
            try:
                record.compile(self.update, Call(args, kwargs))
            except Untraceable as error:
                say = _log.info if self.wanted == "auto" else _log.warning
                say("steps are traced, not compiled: %s", error)
        return loss

    def _apply(self, record: _Record, results: Results) -> None:
        """Update parameters and buffers as `SVI.step` does."""
        record.recorded.loss.moving.take(results.buffers)
        gradients = [*results.gradients, *(tensor.grad for tensor in record.frozen)]  # 0, with its momentum
        tensors = zip(record.tensors, gradients, strict=True)
        pairs = [pair for pair, with_gradient in zip(tensors, record.with_gradient(), strict=True) if with_gradient]
        if self.update(*zip(*pairs, strict=True)):
            return
        for tensor, gradient in pairs:
            tensor.grad = gradient.to(tensor.dtype, copy=True, memory_format=torch.contiguous_format)
        everything = set(record.tensors)
        self.optim(everything)
        zero_grads(everything)

    def _compared(self, structure: _Structure, record: _Record, results: Results, call: Call) -> Any:
        """A step of Pyro that compares loss and gradients with the recording's before it changes parameters."""
        loss_and_grads = self.loss_and_grads

        def compared(*args: Any, **kwargs: Any) -> Any:
            with record.noting_gradients():
                loss = loss_and_grads(*args, **kwargs)
            if unlike := record.unlike(results, loss, call):
                structure.record, structure.refused = None, _UNSEEN
                if record.steps == record.recorded.compared + 1:
                    return loss
                zero_grads(set(record.tensors))
            record.recorded.compared_at(record.steps, unlike)
            return loss

        self.loss_and_grads = compared
        try:
            return self._by_pyro(call.args, call.kwargs)
        finally:
            self.loss_and_grads = loss_and_grads


class _Structure:
    """The state of recording for arguments of one structure, or of one structure and the same whole numbers.

    Attributes:
        record: the record of a step; None before there is one.
        refused: why there can be no record; empty if there can be.
        watched: what model and guide read at the last step by Pyro.
        quiet: number of successive steps by Pyro before which nothing in `watched` had changed.
        patience: the value of `quiet` at which a step is recorded.
    """

    def __init__(self) -> None:
        self.record: _Record | None = None
        self.refused = ""
        self.watched: Contents | None = None
        self.quiet, self.patience = 0, 2
        self._read: Callable[[Sequence[Tensor]], tuple[int, ...]] | None = None
        self._by_numbers: dict[tuple[int, ...], _Structure] = {}

    def keep(self, record: _Record) -> None:
        """Store a record, for the whole numbers of arguments that it has read if it has read any."""
        if record.program.read is None:
            self.record = record
            return
        self._read = record.read_numbers
        of_numbers = self._by_numbers[record.program.read.values] = _Structure()
        of_numbers.record, of_numbers.watched = record, self.watched

    def for_numbers(self, tensors: Sequence[Tensor]) -> _Structure:
        """The state for arguments with the same whole numbers as these, if records read any; otherwise this state."""
        if self._read is None:
            return self
        numbers = self._read(tensors)
        if numbers not in self._by_numbers and len(self._by_numbers) >= _READINGS:
            self._by_numbers.clear()
        return self._by_numbers.setdefault(numbers, _Structure()).for_numbers(tensors)

    def forget(self) -> None:
        """Drop the record. The next one is made after more steps by Pyro if this one was used for at most 100 steps."""
        assert self.record is not None
        self.patience = 1 if self.record.steps > _WORTH_A_RECORD else 2 * self.patience
        self.record, self.quiet = None, 0


class _Record:
    """A step as a graph, recorded without side effects.

    Attributes:
        recorded: the loss with its programs.
        tensors: all parameters: `leaves`, and `frozen`, which require no gradient.
        steps: number of steps made so far.
    """

    def __init__(self, svi: CompiledSVI, call: Call) -> None:
        objective: Any = svi.users_loss
        if not isinstance(objective, ELBO):
            objective = SimpleNamespace(loss=svi.loss, loss_and_grads=svi.loss_and_grads)
        objective = OfPyro(objective, svi.model, svi.guide)
        with put_back(*svi.programs) as look, poutine.trace(param_only=True) as capture:
            objective.terms(call)
        nodes: dict[str, Any] = dict(capture.trace.nodes)
        sites: dict[str, Any] = {name: site["value"].unconstrained() for name, site in nodes.items()}
        once = {id(tensor): (name, tensor) for name, tensor in reversed(sites.items())}  # by its first name
        parameters = {n: Parameter(p, constraints.real) for n, p in reversed(once.values()) if p.requires_grad}
        self.leaves = [parameter.unconstrained for parameter in parameters.values()]
        self.frozen = [tensor for _, tensor in once.values() if not tensor.requires_grad]
        self.tensors = [*self.leaves, *self.frozen]
        if not self.leaves:
            raise Untraceable("there is no parameter that a step changes")
        if len({leaf.device for leaf in self.leaves}) > 1:
            raise Untraceable("its parameters are on several devices")
        loss = Loss(objective, parameters, Buffers.moved(look, *svi.programs), look.changes)
        self.recorded = Recorded(loss, svi.programs)
        self.program = self.recorded.program(call)
        self.device = self.leaves[0].device
        self.steps = 0
        self._moved = [False] * len(self.leaves)
        self._compiled: _CompiledStep | None = None
        self._compiles = True  # as far as is known
        self._of = svi.model, svi.guide, svi.loss_and_grads
        self._factors = torch.ones(2).to(self.leaves[0])
        store = dict(pyro.get_param_store().named_parameters())
        self._stored: dict[str, Any] = {name: tensor for name, tensor in sites.items() if store.get(name) is tensor}
        self._flags = Flags(modules_of(*svi.programs), self._stored)
        known = set(map(id, self._flags.parameters.values()))
        lost = [name for name, tensor in sites.items() if id(tensor) not in known]
        if lost:
            raise Untraceable(
                f"the parameter {lost[0]} is neither in Pyro's store nor in a module that model or guide names"
            )
        self._zeros: list[tuple[Tensor | None, int]] = [(None, 0)] * len(self.tensors)

    def stale(self, svi: CompiledSVI) -> str:
        """Why the record is no longer valid, or an empty string."""
        of = svi.model, svi.guide, svi.loss_and_grads
        if any(one is not other for one, other in zip(self._of, of, strict=True)):
            return "model, guide or loss has been replaced"
        store = dict(pyro.get_param_store().named_parameters())
        for name, tensor in self._stored.items():
            if store.get(name) is not tensor:
                return f"the parameter {name} has been replaced"
        name = self._flags.changed() or self.recorded.changed()
        return f"{name} has changed" if name else ""

    def reason_to_use_pyro(self) -> str:
        """Why Pyro must make this step, since a parameter has a gradient already; or an empty string."""
        for number, tensor in enumerate(self.tensors):
            gradient, (zero, version) = tensor.grad, self._zeros[number]
            if gradient is not None and (zero is not gradient or zero._version != version):
                if bool(gradient.any()):
                    return "a parameter has a gradient before the step"
                self._zeros[number] = gradient, gradient._version
        return ""

    @property
    def engine(self) -> Name:
        """The engine of the last step."""
        return "traced" if self._compiled is None else "compiled"

    def with_gradient(self) -> list[bool]:
        """Which of the parameters the optimiser moves: those with a gradient, by Pyro at this step or before."""
        moved = [*self._moved, *(False for _ in self.frozen)]
        return [moves or tensor.grad is not None for moves, tensor in zip(moved, self.tensors, strict=True)]

    @contextmanager
    def noting_gradients(self) -> Iterator[None]:
        """Note to which parameters Pyro's step in the block gives a gradient. Others keep theirs, which is 0."""
        before = [leaf.grad for leaf in self.leaves]
        for leaf in self.leaves:
            leaf.grad = None
        yield
        self._moved = [leaf.grad is not None for leaf in self.leaves]
        for leaf, gradient in zip(self.leaves, before, strict=True):
            leaf.grad = gradient if leaf.grad is None else leaf.grad

    def unlike(self, results: Results, loss: Any, call: Call) -> str:
        """The first of Pyro's loss, gradients and buffers that differs from the recording's; empty if none does."""
        gradients = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in self.leaves]
        terms = torch.tensor([torch_item(loss), 0.0], dtype=torch.float64)
        exact = Results(terms, gradients, self.recorded.buffers)
        return difference(exact, results, list(self.recorded.loss.parameters)) and self.recorded.differs(call)

    def compiled_step(self, update: _Update, tensors: Sequence[Tensor]) -> float | None:
        """Make a step by the compiled program; returns the loss, or None if there is none for the present optimiser."""
        if self._compiled is not None and any(tensor.grad is not None for tensor in self.frozen):
            self._compiled = None  # their momentum moves them
        loss = None if self._compiled is None else self._compiled.run(update, tensors)
        self._compiled = None if loss is None else self._compiled
        return loss

    def results(self, tensors: Sequence[Tensor]) -> Results:
        """Loss ``[2]``, whose second number is 0, gradients and buffers, for the tensors of the arguments."""
        terms, *results = self.program(*self._inputs(tensors))
        return Results(terms, results[: len(self.leaves)], results[len(self.leaves) :])

    def _inputs(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [*(leaf.detach() for leaf in self.leaves), *self.recorded.buffers, *tensors, self._factors]

    def is_to_be_compared(self) -> bool:
        """Whether Pyro makes this step, to compare it with the record."""
        due = self.steps & (self.steps - 1) == 0 or self.steps % _COMPARED_EVERY == 0
        return due or not any(self._moved)

    def read_numbers(self, tensors: Sequence[Tensor]) -> tuple[int, ...]:
        """The whole numbers of these arguments that the program reads."""
        assert self.program.read is not None
        return self.program.read.now(self._inputs(tensors))

    def pays_to_compile(self, engine: Name) -> bool:
        """Whether compiled steps would pay for their compilation in as many steps as have been made."""
        made = self.steps - 1  # at a power of two Pyro made the step
        if engine == "traced" or not self._compiles or self._compiled is not None:
            return False
        return engine == "compiled" or (made >= 64 and made & (made - 1) == 0 and worth_compiling(self.program, made))

    def compile(self, update: _Update, call: Call) -> None:
        """Compile gradient and update; the program makes the steps from now on, unless Pyro does."""
        self._compiles = False
        if not all(self._moved):
            raise Untraceable("a parameter gets no gradient")
        self._compiled = _CompiledStep(self.recorded, update, call)
        self._compiles = True


def _refuse_surroundings() -> None:
    """Raise `Untraceable` if a handler or a mode around the step changes what it computes."""
    if pyro_handlers():
        raise Untraceable("a handler of Pyro is active around the step")
    if not torch.is_grad_enabled() or torch.is_autocast_enabled() or torch.is_autocast_enabled("cpu"):
        raise Untraceable("gradients are off, or autocast is on")


def _structure(argument: Any, tensors: list[Tensor]) -> Any:
    """The structure of an argument, for which a graph is valid. Its tensors are appended to `tensors`, in order.

    Raises:
        Untraceable: the argument may change unnoticed.
    """
    kind = type(argument)
    if kind is Tensor and argument.layout is torch.strided and not argument.requires_grad:
        tensors.append(argument)
        return argument.shape, argument.stride(), argument.dtype, argument.device
    if kind in _CONSTANTS:
        return kind, argument
    if kind is dict:
        return kind, tuple(
            [(_structure(name, tensors), _structure(value, tensors)) for name, value in argument.items()]
        )
    if kind is list or kind is tuple or (isinstance(argument, tuple) and hasattr(argument, "_fields")):
        return kind, tuple([_structure(value, tensors) for value in argument])
    if isinstance(argument, Tensor):
        raise Untraceable("an argument is a tensor that requires a gradient, or of a kind of its own")
    raise Untraceable(f"an argument is {shown(argument)}, which may change without being seen; pass tensors")


class _One:
    """The optimiser of a parameter with its settings and state, by reference.

    Attributes:
        fixed: the settings but the learning rate, as they were.

    Raises:
        Untraceable: it has no rule, does more than its rule, or has not made a step.
    """

    def __init__(self, optim: PyroOptim, weight: Tensor) -> None:
        optimizer = self.optimizer = cast(Any, optim.optim_objs.get(weight))
        rules, self._states = rules_of(optimizer), getattr(optimizer, "state", {})
        plain = type(optim).__call__ is PyroOptim.__call__ and optim.grad_clip.get(weight) is None
        if not plain or rules is None or len(rules) != 1 or not weight.is_contiguous() or weight not in self._states:
            raise Untraceable(_NO_RULE)
        self._groups: Any = optimizer.param_groups
        (self.settings,), (self.rule,) = self._groups, rules
        self.state: dict[str, Any] = self._states[weight]
        self.moments = [self.state.get(name) for name in self.rule.state]
        self._read = itemgetter(*sorted(self.settings.keys() - {"params", "lr", "initial_lr"}))
        self.fixed = self._read(self.settings)
        numbers = (*self.fixed, self.settings["lr"], *self.settings.get("betas", ()))
        arrays = all(isinstance(m, Tensor) and m.is_contiguous() and m.dtype == weight.dtype for m in self.moments)
        if not arrays or not all(type(number) in _NUMBERS for number in numbers):
            raise Untraceable(_NO_RULE)
        hooks = vars(optimizer).items()
        self._hooks = [hook for name, hook in hooks if name.endswith(("step_pre_hooks", "step_post_hooks"))]

    def holds(self, optim: PyroOptim, weight: Tensor) -> bool:
        """Whether this is the weight's present optimiser with the same settings, but for the learning rate."""
        optimizer = optim.optim_objs.get(weight)
        return (
            self.optimizer is optimizer
            and self._groups is optimizer.param_groups
            and self._states is optimizer.state
            and self._states.get(weight) is self.state
            and all([self.state.get(n) is m for n, m in zip(self.rule.state, self.moments, strict=True)])  # noqa: C419
            and self._read(self.settings) == self.fixed
            and type(self.settings["lr"]) in _NUMBERS
            and not any(self._hooks)
            and "step" not in optimizer.__dict__
            and optim.grad_clip.get(weight) is None
        )


class _Update:
    """Makes the steps of the optimisers of a `PyroOptim` for many parameters at once.

    Pyro has a torch optimiser for every parameter, and a step of each takes 50 microseconds of Python. Here, their states
    and settings are read and written in these optimisers, so `get_state`, `save` and Pyro's steps see the present values.
    """

    def __init__(self, optim: PyroOptim) -> None:
        self.optim = optim
        self._known: dict[Tensor, _One] = {}

    def of(self, weights: Sequence[Tensor]) -> list[_One]:
        """The optimisers of these parameters; raises `Untraceable` if only they themselves can make their steps."""
        for weight in weights:
            if weight not in self._known or not self._known[weight].holds(self.optim, weight):
                self._known[weight] = _One(self.optim, weight)
        return [self._known[weight] for weight in weights]

    def __call__(self, weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> bool:
        """Make a step. Returns False, without any change, if only the optimisers themselves can make it."""
        try:
            optimizers = self.of(weights)
        except Untraceable:
            return False
        groups: dict[Any, list[tuple[_One, Tensor, Tensor]]] = {}
        for one, weight, gradient in zip(optimizers, weights, gradients, strict=True):
            count = one.state["step"] if "lrd" in one.settings else None
            key = type(one.optimizer), weight.dtype, weight.device, count, one.settings["lr"], one.fixed
            gradient = gradient if gradient.dtype == weight.dtype else gradient.to(weight.dtype)
            groups.setdefault(key, []).append((one, weight, gradient.contiguous()))
        with torch.no_grad():
            for (kind, *_), group in groups.items():
                (_sgd if kind is torch.optim.SGD else _adam)(*map(list, zip(*group, strict=True)))
        return True


def _adam(optimizers: list[_One], weights: list[Tensor], gradients: list[Tensor]) -> None:
    """Adam, AdamW, and ClippedAdam, which has eps outside of the bias correction and whose learning rate decays first."""
    settings, device, states = optimizers[0].settings, weights[0].device, [one.state for one in optimizers]
    _count(optimizers)
    eps, steps = settings["eps"], [state["step"] for state in states]
    if "lrd" in settings:
        gradients = [gradient.clamp(-settings["clip_norm"], settings["clip_norm"]) for gradient in gradients]
        eps /= math.sqrt(1 - settings["betas"][1] ** steps[0])
        steps = [torch.tensor(float(steps[0]))] * len(weights)
    decoupled = type(optimizers[0].optimizer) is torch.optim.AdamW
    adam_step({**settings, "eps": eps}, weights, gradients, states, [s.to(device) for s in steps], decoupled=decoupled)


def _sgd(optimizers: list[_One], weights: list[Tensor], gradients: list[Tensor]) -> None:
    names = ("lr", "momentum", "dampening", "weight_decay", "nesterov")
    numbers = {name: optimizers[0].settings[name] for name in names}
    velocities = [moment for one in optimizers for moment in one.moments]
    fused_sgd(weights, gradients, velocities, **numbers, maximize=False, is_first_step=False)


def _count(optimizers: Sequence[_One]) -> None:
    """Count a step, and let the learning rate of ClippedAdam decay."""
    counts = [one.state.get("step") for one in optimizers]
    if tensors := [count for count in counts if isinstance(count, Tensor)]:  # SGD counts none
        add_to_all(tensors, 1)
    for one in optimizers:
        if "lrd" in one.settings:
            one.settings["lr"] *= one.settings["lrd"]
            one.state["step"] += 1


_NUMBERS = (int, float, bool, type(None), tuple)
_NO_RULE = "an optimiser has no compiled form (Adam, AdamW, ClippedAdam and SGD have)"


def _if_finite(
    terms: Tensor, gradients: Sequence[Tensor], extra: Sequence[Tensor]
) -> Callable[[Tensor, Tensor], Tensor]:
    """The `Guard` by which a step changes nothing if its loss is not finite."""
    finite = torch.isfinite(terms[0])
    return lambda old, new: torch.where(finite, new, old)


class _CompiledStep:
    """A step of `compile_svi` as one compiled program: the gradient and the update of all parameters.

    Raises:
        Untraceable: the program cannot be compiled, or an optimiser has no rule.
    """

    def __init__(self, recorded: Recorded, update: _Update, call: Call) -> None:
        self._recorded, self._leaves, self._program = recorded, recorded.leaves, recorded.program(call)
        optimizers = update.of(self._leaves)
        if call.device != self._leaves[0].device:
            raise Untraceable("its arguments are not on the device of its parameters")
        joint = SimpleNamespace(  # as one of torch.optim, with a group for each
            optimizers=[one.optimizer for one in optimizers],
            param_groups=[one.settings for one in optimizers],
            state={leaf: one.state for leaf, one in zip(self._leaves, optimizers, strict=True)},
        )
        self._whole = WholeStep(self._leaves, joint, recorded.buffers, _if_finite)
        self._call = self._whole.compiled(self._program, self._whole.tensors, call, {})
        self._fixed = [(type(one.optimizer), one.fixed) for one in optimizers]
        self._counts: dict[Tensor, tuple[int, int]] = {}  # of a step, the version that it had, and its value

    def run(self, update: _Update, tensors: Sequence[Tensor]) -> float | None:
        """Make a step for the tensors of the arguments; returns the loss, or None if the program is of another update."""
        try:
            optimizers = update.of(self._leaves)
        except Untraceable:
            return None
        if not all([leaf.is_contiguous() for leaf in self._leaves]):  # noqa: C419
            return None
        if [(type(one.optimizer), one.fixed) for one in optimizers] != self._fixed:
            return None
        numbers, counts = [1.0, 1.0], [self._count(one.state.get("step", 0)) for one in optimizers]
        schedules: dict[Any, tuple[float, ...]] = {}  # most parameters have the same
        for one, rule, count in zip(optimizers, self._whole.rules, counts, strict=True):
            key = type(rule), count, one.settings["lr"], one.fixed
            if key not in schedules:
                schedules[key] = rule.schedule(count + 1, one.settings["lr"])
            numbers += schedules[key]
        written = [leaf.detach() for leaf in self._leaves]
        written += [moment for one in optimizers for moment in one.moments]
        written += self._recorded.buffers
        program, device = self._program, written[0].device
        rest = [*tensors, torch.tensor(numbers, dtype=written[0].dtype), *program.constants, *program.draw()]
        with torch.no_grad():
            terms = self._call([*written, *(rest if device.type == "cpu" else on(device, rest))])[0]
        torch.autograd.graph.increment_version(written)
        loss = terms[0].item()
        if math.isfinite(loss):
            _count(optimizers)
            steps = [(one.state.get("step"), count + 1) for one, count in zip(optimizers, counts, strict=True)]
            self._counts = {step: (step._version, count) for step, count in steps if isinstance(step, Tensor)}
        return loss

    def _count(self, step: Any) -> int:
        """The number of steps of an optimiser, without reading a tensor that only `run` has written to."""
        version, count = self._counts.get(step, (-1, 0)) if isinstance(step, Tensor) else (-1, 0)
        return count if isinstance(step, Tensor) and step._version == version else int(step)
