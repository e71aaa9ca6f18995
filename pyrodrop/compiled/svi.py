"""`pyro.infer.SVI` whose steps replay a recording of Pyro's computation, or run it compiled.

Pyro makes the first two steps with arguments of a new structure. The computation is then recorded as a graph of the
parameters, the arguments and the random numbers, and later steps run the graph. Parameters and optimiser states stay where
Pyro keeps them, so Pyro can make any step itself, and does if something has changed since the recording.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyro
import torch
from pyro import poutine
from pyro.infer import ELBO, SVI
from pyro.infer.util import torch_item, zero_grads
from pyro.optim import PyroOptim
from pyro.optim.clipped_adam import ClippedAdam
from torch import Tensor
from torch.distributions import constraints

from pyrodrop.arguments import shown
from pyrodrop.changes import Contents, put_back
from pyrodrop.compiled.inductor import Rule, WholeStep, on, rules_of
from pyrodrop.compiled.record import Untraceable
from pyrodrop.compiled.recorded import Recorded, Results, difference
from pyrodrop.compiled.steps import worth_compiling
from pyrodrop.constraints import EngineName as Name
from pyrodrop.constraints import checked
from pyrodrop.devices import random_states, set_random_states
from pyrodrop.module_flags import Flags, has_hooks
from pyrodrop.private_apis import add_to_all, fused_adam, fused_adamw, fused_sgd, pyro_handlers
from pyrodrop.steps import Buffers, Call, Loss, OfPyro, Parameter
from pyrodrop.threads import exclusive

_log = logging.getLogger("pyrodrop")

_STRUCTURES = 1000  # most structures of arguments in memory
_CHECKED_EVERY = 1000  # steps
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
        ...     with pyro.plate("data", len(y)):
        ...         pyro.sample("y", dist.Normal(pyro.sample("mean", dist.Normal(0.0, 1.0)), 1.0), obs=y)
        >>> def guide(y):
        ...     loc = pyro.param("loc", torch.zeros(()))
        ...     pyro.sample("mean", dist.Normal(loc, 0.1))
        >>> pyro.set_rng_seed(0)
        >>> svi = pyrodrop.compile_svi(model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
        >>> losses = [svi.step(torch.ones(10)) for _ in range(100)]
        >>> isinstance(svi, SVI), svi.engine, round(pyro.param("loc").item(), 1)
        (True, 'traced', 0.9)
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
        self._wanted, self._given = engine, loss
        self._structures: dict[Any, _Structure] = {}
        self._said: set[str] = set()
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
                reason = self._not_yet_recorded(structure, args, kwargs)
                structure = structure.for_numbers(tensors)
                if structure.record is None:
                    return self._by_pyro_watched(structure, args, kwargs, reason)
            return self._by_record(structure, tensors, args, kwargs)

    def _by_pyro(self, args: Any, kwargs: Any, reason: str = "") -> Any:
        """A step of Pyro; `reason` is logged the first time."""
        if reason and reason not in self._said and self._wanted != "pyro":
            self._said.add(reason)
            _log.log(logging.INFO if self._wanted == "auto" else logging.WARNING, "a step by Pyro: %s", reason)
        return super().step(*args, **kwargs)

    def _by_pyro_watched(self, structure: _Structure, args: Any, kwargs: Any, reason: str) -> Any:
        """A step of Pyro. If it changes what the program reads, no step is recorded, since that takes further calls."""
        watched = structure.watched
        seen = watched is not None and not watched.changed()
        loss = self._by_pyro(args, kwargs, reason)
        if self._wanted == "pyro" or structure.refused:
            return loss
        if seen and watched is not None and (name := watched.changed()):
            structure.refused = f"a call changes {name}, which a recording would read once"
        structure.watched = Contents(self.model, self.guide, self._given)
        return loss

    def _not_yet_recorded(self, structure: _Structure, args: Any, kwargs: Any) -> str:
        """Record a step after enough steps by Pyro (`patience`) without a change. Returns why there can be no record."""
        if self._wanted == "pyro" or structure.refused or structure.watched is None:
            return structure.refused
        structure.quiet = 0 if structure.watched.changed() else structure.quiet + 1
        if structure.quiet >= structure.patience:
            try:
                record = self._recorded(args, kwargs, structure.watched)
                structure.keep(record)
            except Untraceable as error:
                structure.refused = str(error)
                return structure.refused
            if self._wanted == "compiled":
                self._compile(record, args, kwargs)
        return structure.refused

    def _recorded(self, args: Any, kwargs: Any, watched: Contents) -> _Record:
        """Record a step, without side effects."""
        objective: Any = (
            self._given
            if isinstance(self._given, ELBO)
            else SimpleNamespace(loss=self.loss, loss_and_grads=self.loss_and_grads)
        )
        objective = OfPyro(objective, self.model, self.guide)
        call, programs = Call(args, kwargs), (self.model, self.guide, self._given)
        devices = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
        try:
            with torch.random.fork_rng(devices):
                with put_back(*programs) as look, poutine.trace(param_only=True) as capture:
                    objective.terms(call)
                nodes: dict[str, Any] = dict(capture.trace.nodes)
                sites = {name: site["value"].unconstrained() for name, site in nodes.items()}
                parameters = {n: Parameter(p, constraints.real) for n, p in _once(sites).items() if p.requires_grad}
                leaves = [parameter.unconstrained for parameter in parameters.values()]
                if not leaves:
                    raise Untraceable("there is no parameter that a step changes")
                if len({leaf.device for leaf in leaves}) > 1:
                    raise Untraceable("its parameters are on several devices")
                if any(map(has_hooks, leaves)):
                    raise Untraceable("a parameter has a hook")
                with put_back(*programs):
                    moved = _with_gradient(objective, call, leaves)
                loss = Recorded(Loss(objective, parameters, Buffers.moved(look, *programs), look.changes))
                loss.program(call)
        except Untraceable:
            raise
        except Exception as error:  # Pyro's step, which comes next, raises it as well if it is the program's
            raise Untraceable(f"it cannot be evaluated twice: {type(error).__name__}: {error}") from error
        return _Record(self, loss, call, sites, moved, watched)

    def _by_record(self, structure: _Structure, tensors: list[Tensor], args: Any, kwargs: Any) -> Any:
        record = structure.record
        assert record is not None
        reason = record.stale(self) or record.reason_to_use_pyro()
        if reason:
            loss = self._by_pyro(args, kwargs, reason)
            if record.stale(self):
                structure.forget()
                structure.watched = Contents(self.model, self.guide, self._given)
            return loss
        before = random_states(record.device)
        record.steps += 1
        checked = record.is_to_be_checked()
        record.program.refresh(wait=False)
        loss = None if checked else record.compiled_step(self._updating(), tensors)
        if loss is None:
            results = record.run(tensors)
            loss = results.terms[0].item()
            if math.isfinite(loss) and checked:
                set_random_states(before, record.device)
                return self._compared(structure, results, Call(args, kwargs))
            if math.isfinite(loss):
                self._update(record, results.gradients)
                record.loss.loss.moving.take(results.buffers)
        if not math.isfinite(loss):
            set_random_states(before, record.device)
            return self._by_pyro(args, kwargs, "the loss is not finite")
        self.engine = record.engine
        if self._wanted != "traced" and record.pays_to_compile(self._wanted):
            self._compile(record, args, kwargs)
        return loss

    def _compile(self, record: _Record, args: Any, kwargs: Any) -> None:
        try:
            record.compile(self._updating(), Call(args, kwargs))
        except Untraceable as error:
            say = _log.info if self._wanted == "auto" else _log.warning
            say("steps are traced, not compiled: %s", error)

    def _updating(self) -> _Update:
        """The update by the present optimiser."""
        if self._update_of.optim is not self.optim:
            self._update_of = _Update(self.optim)
        return self._update_of

    def _update(self, record: _Record, gradients: Sequence[Tensor]) -> None:
        """Update the parameters by these gradients, as `SVI.step` does."""
        pairs = [
            (leaf, gradient)
            for leaf, gradient, moves in zip(record.leaves, gradients, record.moved, strict=True)
            if moves or leaf.grad is not None
        ]
        pairs += [(tensor, tensor.grad) for tensor in record.frozen if tensor.grad is not None]  # 0, with its momentum
        if self._updating()(*zip(*pairs, strict=True)):
            return
        for leaf, gradient in pairs:
            leaf.grad = gradient.to(leaf.dtype, copy=True, memory_format=torch.contiguous_format)
        everything = set(record.sites.values())
        self.optim(everything)
        zero_grads(everything)

    def _compared(self, structure: _Structure, results: Results, call: Call) -> Any:
        """A step of Pyro that compares loss and gradients with those of the recording before it changes parameters."""
        loss_and_grads = self.loss_and_grads

        def compared(*args: Any, **kwargs: Any) -> Any:
            loss = loss_and_grads(*args, **kwargs)
            self._compare(structure, results, loss, call)
            return loss

        self.loss_and_grads = compared
        try:
            return self._by_pyro(call.args, call.kwargs)
        finally:
            self.loss_and_grads = loss_and_grads

    def _compare(self, structure: _Structure, results: Results, loss: Any, call: Call) -> None:
        """Compare results of the recording with Pyro's loss, gradients and buffers; see `compile_svi`."""
        record = structure.record
        assert record is not None
        gradients = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in record.leaves]
        exact = Results(torch.tensor([torch_item(loss), 0.0], dtype=torch.float64), gradients, record.loss.buffers)
        unlike = difference(exact, results, list(record.loss.loss.parameters)) and record.loss.differs(call)
        if not unlike:
            record.compared = record.steps
            return
        structure.record = None
        structure.refused = _UNSEEN
        if record.steps > record.compared + 1:
            zero_grads(set(record.sites.values()))
            raise RuntimeError(
                f"{unlike} of a recorded step is not Pyro's: model and guide must depend only on arguments, parameters, and "
                "what their code names in attributes and variables; something else that they read has changed since "
                f"recorded step {record.compared}, and the steps since then may be wrong. Pass it as a tensor, or use "
                "engine='pyro'"
            )


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

    @property
    def is_recorded(self) -> bool:
        """Whether there is a record, for some whole numbers or for all."""
        return self.record is not None or self._read is not None

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
    """A step as a graph.

    Args:
        sites: all parameters, by the names of Pyro's param sites.
        moved: for every parameter, whether Pyro gives it a gradient.

    Attributes:
        steps: number of steps made so far.
        compared: number of the last step that was compared with Pyro's.
        frozen: the parameters without `requires_grad`.
    """

    def __init__(
        self,
        svi: CompiledSVI,
        loss: Recorded,
        call: Call,
        sites: Mapping[str, Tensor],
        moved: list[bool],
        watched: Contents,
    ) -> None:
        self.loss, self.sites, self.moved, self.watched = loss, sites, moved, watched
        self.program, self.leaves = loss.program(call), loss.leaves
        self._compiled: _CompiledStep | None = None
        self._compiles = True  # as far as is known
        self.steps, self.compared = 0, 0
        self.device = self.leaves[0].device
        self._of = svi.model, svi.guide, svi.loss_and_grads
        self._factors = torch.ones(2).to(self.leaves[0])
        store = dict(pyro.get_param_store().named_parameters())
        self._stored = {name: tensor for name, tensor in sites.items() if store.get(name) is tensor}
        self._flags = Flags(watched.modules, self._stored)
        own = set(map(id, self._flags.parameters.values()))
        lost = [name for name, tensor in sites.items() if id(tensor) not in own]
        if lost:
            raise Untraceable(
                f"the parameter {lost[0]} is neither in Pyro's store nor in a module that model or guide names"
            )
        learned = set(map(id, self.leaves))
        self.frozen = [tensor for tensor in _once(sites).values() if id(tensor) not in learned]
        self._zeros: list[tuple[Tensor | None, int]] = [(None, 0)] * (len(self.leaves) + len(self.frozen))

    def stale(self, svi: CompiledSVI) -> str:
        """Why the record is no longer valid, or an empty string."""
        if any(
            one is not other for one, other in zip(self._of, (svi.model, svi.guide, svi.loss_and_grads), strict=True)
        ):
            return "model, guide or loss has been replaced"
        store = dict(pyro.get_param_store().named_parameters())
        for name, tensor in self._stored.items():
            if store.get(name) is not tensor:
                return f"the parameter {name} has been replaced"
        name = self._flags.changed() or self.watched.changed()
        return f"{name} has changed" if name else ""

    def reason_to_use_pyro(self) -> str:
        """Why Pyro must make this step, since a parameter has a gradient already; or an empty string."""
        for number, leaf in enumerate([*self.leaves, *self.frozen]):
            gradient, (zero, version) = leaf.grad, self._zeros[number]
            if gradient is not None and (gradient is not zero or gradient._version != version):
                if bool(gradient.any()):
                    return "a parameter has a gradient before the step"
                self._zeros[number] = gradient, gradient._version
        return ""

    @property
    def engine(self) -> Name:
        """The engine of the last step."""
        return "traced" if self._compiled is None else "compiled"

    def compiled_step(self, update: _Update, tensors: Sequence[Tensor]) -> float | None:
        """Make a step by the compiled program; returns the loss, or None if there is none for the present optimiser."""
        if self._compiled is not None and any(tensor.grad is not None for tensor in self.frozen):
            self._compiled = None  # their momentum moves them
        loss = None if self._compiled is None else self._compiled.run(update, tensors)
        self._compiled = None if loss is None else self._compiled
        return loss

    def run(self, tensors: Sequence[Tensor]) -> Results:
        """Loss ``[2]``, whose second number is 0, gradients and buffers, for the tensors of the arguments."""
        count = len(self.leaves)
        leaves = [leaf.detach() for leaf in self.leaves]
        terms, *results = self.program(*leaves, *self.loss.buffers, *tensors, self._factors)
        return Results(terms, results[:count], results[count:])

    def is_to_be_checked(self) -> bool:
        """Whether Pyro makes this step, to compare it with the record."""
        return self.steps & (self.steps - 1) == 0 or self.steps % _CHECKED_EVERY == 0

    def read_numbers(self, tensors: Sequence[Tensor]) -> tuple[int, ...]:
        """The whole numbers of these arguments that the program reads."""
        assert self.program.read is not None
        return self.program.read.now([*self.leaves, *self.loss.buffers, *tensors, self._factors])

    def pays_to_compile(self, engine: Name) -> bool:
        """Whether compiled steps would pay for their compilation in as many steps as have been made."""
        made = self.steps - 1  # at a power of two Pyro made the step
        due = self._compiles and self._compiled is None and made >= 64 and made & (made - 1) == 0
        return due and (engine == "compiled" or worth_compiling(self.program, made))

    def compile(self, update: _Update, call: Call) -> None:
        """Compile gradient and update; the program makes the steps from now on, unless Pyro does."""
        self._compiles = False
        if not all(self.moved):
            raise Untraceable("a parameter gets no gradient")
        self._compiled = _CompiledStep(self.loss, update, call)
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


def _once(sites: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor once, by its first name."""
    once: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in sites.items():
        once.setdefault(id(tensor), (name, tensor))
    return dict(once.values())


def _with_gradient(objective: OfPyro, call: Call, leaves: Sequence[Tensor]) -> list[bool]:
    """Whether Pyro gives a gradient to each of these parameters."""
    kept = [leaf.grad for leaf in leaves]
    try:
        for leaf in leaves:
            leaf.grad = None
        objective.backward(call, (1.0, 1.0))
        return [leaf.grad is not None for leaf in leaves]
    finally:
        for leaf, gradient in zip(leaves, kept, strict=True):
            leaf.grad = gradient


class _One(NamedTuple):
    """The optimiser of a parameter with its settings and state, by reference.

    Attributes:
        fixed: the settings but the learning rate, as they were.
        read: reads the learning rate and these.
    """

    optimizer: Any
    rule: Rule
    groups: Any
    all_states: Any
    settings: dict[str, Any]
    state: dict[str, Any]
    moments: list[Tensor]
    hooks: list[Any]
    fixed: tuple[Any, ...]
    read: Callable[[dict[str, Any]], tuple[Any, ...]]

    @classmethod
    def of(cls, optimizer: Any, weight: Tensor) -> _One | None:
        """The optimiser of a weight; None if it has another rule, does more, or has not made a step."""
        rules, states = rules_of(optimizer), getattr(optimizer, "state", {})
        if rules is None or len(rules) != 1 or not weight.is_contiguous() or states.get(weight) is None:
            return None
        ((settings,), (rule,), state) = optimizer.param_groups, rules, states[weight]
        moments = [state.get(name) for name in rule.state]
        read = itemgetter("lr", *sorted(settings.keys() - {"params", "lr", "initial_lr"}))
        if not all(isinstance(m, Tensor) and m.is_contiguous() and m.dtype == weight.dtype for m in moments):
            return None
        fixed = read(settings)[1:]
        if not all(type(number) in _NUMBERS for number in (*fixed, *settings.get("betas", ()))):
            return None
        hooks = [hook for name, hook in vars(optimizer).items() if name.endswith(("step_pre_hooks", "step_post_hooks"))]
        return cls(optimizer, rule, optimizer.param_groups, states, settings, state, moments, hooks, fixed, read)

    def holds(self, optimizer: Any, weight: Tensor) -> bool:
        """Whether this is the weight's present optimiser with the same settings, but for the learning rate."""
        return (
            self.optimizer is optimizer
            and self.groups is optimizer.param_groups
            and self.all_states is optimizer.state
            and self.all_states.get(weight) is self.state
            and all([self.state.get(n) is m for n, m in zip(self.rule.state, self.moments, strict=True)])  # noqa: C419
            and self.read(self.settings)[1:] == self.fixed
        )


class _Update:
    """Makes the steps of the optimisers of a `PyroOptim` for many parameters at once.

    Pyro has a torch optimiser for every parameter, and a step of each takes 50 microseconds of Python. Here, their states
    and settings are read and written in these optimisers, so `get_state`, `save` and Pyro's steps see the present values.
    """

    def __init__(self, optim: PyroOptim) -> None:
        self.optim = optim
        self._known: dict[Tensor, _One] = {}

    def of(self, weights: Sequence[Tensor]) -> list[_One] | None:
        """The optimisers of these parameters; None if only they themselves can make their steps."""
        if type(self.optim).__call__ is not PyroOptim.__call__:
            return None
        optimizers = []
        for weight in weights:
            optimizer, one = self.optim.optim_objs.get(weight), self._known.get(weight)
            if one is None or not one.holds(optimizer, weight):
                one = _One.of(optimizer, weight)
                if one is None:
                    return None
                self._known[weight] = one
            more = any(one.hooks) or "step" in optimizer.__dict__ or self.optim.grad_clip.get(weight) is not None
            if more or type(one.settings["lr"]) not in _NUMBERS:
                return None
            optimizers.append(one)
        return optimizers

    def __call__(self, weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> bool:
        """Make a step. Returns False, without any change, if only the optimisers themselves can make it."""
        optimizers = self.of(weights)
        if optimizers is None:
            return False
        groups: dict[Any, list[tuple[_One, Tensor, Tensor]]] = {}
        for one, weight, gradient in zip(optimizers, weights, gradients, strict=True):
            count = one.state["step"] if "lrd" in one.settings else None
            key = type(one.optimizer), weight.dtype, weight.device, count, one.settings["lr"], one.fixed
            gradient = gradient if gradient.dtype == weight.dtype else gradient.to(weight.dtype)
            groups.setdefault(key, []).append((one, weight, gradient.contiguous()))
        with torch.no_grad():
            for (kind, *_), group in groups.items():
                _FUSED[kind](*map(list, zip(*group, strict=True)))
        return True


def _adam(optimizers: list[_One], weights: list[Tensor], gradients: list[Tensor]) -> None:
    """Adam, AdamW, and ClippedAdam, which has eps outside of the bias correction and whose learning rate decays first."""
    settings, device = optimizers[0].settings, weights[0].device
    eps, decoupled = settings["eps"], type(optimizers[0].optimizer) is torch.optim.AdamW
    if "lrd" in settings:
        _count_clipped(optimizers)
        count, bound = optimizers[0].state["step"], settings["clip_norm"]
        gradients = [gradient.clamp(-bound, bound) for gradient in gradients]
        eps /= math.sqrt(1 - settings["betas"][1] ** count)
        steps = [torch.tensor(float(count), device=device)] * len(weights)
    else:
        counts = [one.state["step"] for one in optimizers]
        add_to_all(counts, 1)
        steps = [step.to(device) for step in counts]
    means, squares = map(list, zip(*(one.moments for one in optimizers), strict=True))
    (fused_adamw if decoupled or settings.get("decoupled_weight_decay") else fused_adam)(
        weights, gradients, means, squares, [], steps, lr=settings["lr"], beta1=settings["betas"][0],
        beta2=settings["betas"][1], weight_decay=settings["weight_decay"], eps=eps, amsgrad=False, maximize=False,
    )  # fmt: skip


def _count_clipped(optimizers: Sequence[_One]) -> None:
    for one in optimizers:
        one.settings["lr"] *= one.settings["lrd"]
        one.state["step"] += 1


def _sgd(optimizers: list[_One], weights: list[Tensor], gradients: list[Tensor]) -> None:
    names = ("lr", "momentum", "dampening", "weight_decay", "nesterov")
    numbers = {name: optimizers[0].settings[name] for name in names}
    velocities = [moment for one in optimizers for moment in one.moments]
    fused_sgd(weights, gradients, velocities, **numbers, maximize=False, is_first_step=False)


_NUMBERS = (int, float, bool, type(None), tuple)
_FUSED: dict[Any, Callable[..., None]] = {
    torch.optim.Adam: _adam, torch.optim.AdamW: _adam, ClippedAdam: _adam, torch.optim.SGD: _sgd,
}  # fmt: skip


def _if_finite(terms: Tensor, gradients: list[Tensor], extra: list[Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """The `Guard` by which a step changes nothing if its loss is not finite."""
    finite = torch.isfinite(terms[0])
    return lambda old, new: torch.where(finite, new, old)


class _CompiledStep:
    """A step of `compile_svi` as one compiled program: the gradient and the update of all parameters.

    Raises:
        Untraceable: the program cannot be compiled, or an optimiser has no rule.
    """

    def __init__(self, loss: Recorded, update: _Update, call: Call) -> None:
        optimizers = update.of(loss.leaves)
        if optimizers is None:
            raise Untraceable("an optimiser has no compiled form (Adam, AdamW, ClippedAdam and SGD have)")
        if call.device != loss.leaves[0].device:
            raise Untraceable("its arguments are not on the device of its parameters")
        self._loss, self._leaves, self._program = loss, loss.leaves, loss.program(call)
        joint = SimpleNamespace(  # as one of torch.optim, with a group for each
            optimizers=[one.optimizer for one in optimizers],
            param_groups=[one.settings for one in optimizers],
            state={leaf: one.state for leaf, one in zip(loss.leaves, optimizers, strict=True)},
        )
        self._whole = WholeStep(loss.leaves, joint, loss.buffers, _if_finite)
        self._call = self._whole.compiled(self._program, self._whole.tensors, call, {})
        self._fixed = [(type(one.optimizer), one.fixed) for one in optimizers]
        self._counts: dict[Tensor, tuple[int, int]] = {}  # of a step, the version that it had, and its value

    def run(self, update: _Update, tensors: Sequence[Tensor]) -> float | None:
        """Make a step for the tensors of the arguments; returns the loss, or None if the program is of another update."""
        optimizers = update.of(self._leaves)
        if optimizers is None or [(type(one.optimizer), one.fixed) for one in optimizers] != self._fixed:
            return None
        if not all([leaf.is_contiguous() for leaf in self._leaves]):  # noqa: C419
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
        written += self._loss.buffers
        program, device = self._program, written[0].device
        rest = [*tensors, torch.tensor(numbers, dtype=written[0].dtype), *program.constants, *program.draw()]
        with torch.no_grad():
            terms = self._call([*written, *(rest if device.type == "cpu" else on(device, rest))])[0]
        torch.autograd.graph.increment_version(written)
        loss = terms[0].item()
        if math.isfinite(loss):
            pairs = [(one.state.get("step"), count) for one, count in zip(optimizers, counts, strict=True)]
            steps = [(step, count) for step, count in pairs if isinstance(step, Tensor)]
            if steps:  # SGD counts none
                add_to_all([step for step, _ in steps], 1)
            self._counts = {step: (step._version, count + 1) for step, count in steps}
            _count_clipped([one for one in optimizers if "lrd" in one.settings])
        return loss

    def _count(self, step: Any) -> int:
        """The number of steps of an optimiser, without reading a tensor that only `run` has written to."""
        version, count = self._counts.get(step, (-1, 0)) if isinstance(step, Tensor) else (-1, 0)
        return count if isinstance(step, Tensor) and step._version == version else int(step)
