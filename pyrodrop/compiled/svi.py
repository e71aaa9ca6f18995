"""`pyro.infer.SVI` whose steps replay a recording of Pyro's computation, or run it compiled.

Pyro makes the first two steps with arguments of a new structure. The computation is then recorded as a graph of the
parameters, the arguments and the random numbers, and later steps run the graph. Parameters and optimiser states stay where
Pyro keeps them, so Pyro can make any step itself, and does if something has changed since the recording.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

import torch
from pyro import poutine
from pyro.infer import ELBO, SVI
from pyro.infer.util import zero_grads
from pyro.optim import PyroOptim
from torch import Tensor

from pyrodrop.changes import Contents, Flags, modules_of, put_back
from pyrodrop.checks import EngineName, checked, instance, shown
from pyrodrop.compiled.inductor import Rule, WholeStep, on, rules_of
from pyrodrop.compiled.record import Untraceable
from pyrodrop.compiled.recorded import UNSEEN, Recorded, is_due
from pyrodrop.compiled.steps import worth_compiling
from pyrodrop.devices import random_states, set_random_states
from pyrodrop.private_apis import StoreAsItIs, add_to_all, pyro_handlers
from pyrodrop.steps import Buffers, Call, Group, Loss, OfPyro, Parameter, adam_step
from pyrodrop.threads import exclusive

_log = logging.getLogger("pyrodrop")

_WORTH_A_RECORD = 100  # steps
_NO_FORM = "an optimiser has no compiled form for its settings or state"
_CONSTANTS = {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size}
_NUMBERS = (int, float, bool, type(None), tuple)  # types of settings


@checked
def compile_svi(
    model: Callable[..., Any], guide: Callable[..., Any], optim: PyroOptim, loss: Any, *, engine: EngineName = "auto"
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
      global names: they are compared at every step, and the step is recorded again after a change.

    Everything else is read once, when the step is recorded: an entry of an array, a value that another package reads, a
    large tensor that is changed through NumPy or `Tensor.data`. Therefore before steps 1, 2, 4, ... of a recording and every
    1,000th, its loss and gradients are compared with Pyro's for the same state and random numbers. If they differ and
    recorded steps were made since the last comparison, a RuntimeError names the difference and the last step known to be
    right. If none were made, Pyro makes the further steps.

    Pyro makes a step if a graph would not compute the same, and one logged line says why: the program cannot be
    recorded, a call changes what it reads, an argument is an object of another kind or requires a gradient, a parameter has
    a hook, parameters are on several devices, or the loss is not finite. Arguments are validated only at Pyro's steps.

    Args:
        model, guide: as of `pyro.infer.SVI`.
        optim: Pyro's optimiser. Adam, AdamW and ClippedAdam are stepped together for all parameters. As in `SVI`, a
            weight decay (AdamW has one by default) moves every parameter of the guide towards 0; `fit` refuses it.
        loss: an ELBO of Pyro, or a function as of `SVI`.
        engine: ``"traced"`` replays the graph; ``"compiled"`` compiles it with the update of the parameters, which takes
            seconds, unless an optimiser is none of these; ``"pyro"`` is `SVI` itself; ``"auto"`` replays the graph, and
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
        if isinstance(function, type) or not callable(function):
            raise TypeError(f"{name} must be one of Pyro's, which can be called; got {shown(function)}")
    instance(optim, PyroOptim, "optim", "an optimiser of pyro.optim, such as pyro.optim.Adam(...)")
    return CompiledSVI(model, guide, optim, loss, engine)


class CompiledSVI(SVI):  # type: ignore[misc]
    """`pyro.infer.SVI` whose steps run recorded graphs; made by `compile_svi`.

    Attributes:
        engine: the engine that made the last step: pyro, traced or compiled.
    """

    def __init__(self, model: Any, guide: Any, optim: PyroOptim, loss: Any, engine: EngineName = "auto") -> None:
        super().__init__(model, guide, optim, loss)
        self.engine: EngineName = "pyro"
        self.wanted, self.users_loss = engine, loss
        self._structures: dict[Any, _Structure] = {}
        self._logged: set[str] = set()

    @property
    def programs(self) -> tuple[Any, ...]:
        """All that a step calls."""
        return self.model, self.guide, self.users_loss

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Make a step, as `SVI.step`; returns the loss."""
        with exclusive():
            self.engine, structure, reason = "pyro", None, ""
            try:
                if self.wanted != "pyro":
                    call = Call(args, kwargs)
                    structure = self._structure_of(call)
                    if (record := structure.record_for(self, call)) is not None:
                        return self._by_record(structure, record, call)
            except Untraceable as error:
                reason = str(error)
            if reason and reason not in self._logged:
                self._logged.add(reason)
                _log.log(logging.INFO if self.wanted == "auto" else logging.WARNING, "a step by Pyro: %s", reason)
            loss = super().step(*args, **kwargs)
            if structure is not None and structure.record is None and not structure.refused:
                structure.look(self.programs)
            return loss

    def _structure_of(self, call: Call) -> _Structure:
        """That of arguments; `Untraceable` if only Pyro can make a step with them."""
        if pyro_handlers():
            raise Untraceable("a handler of Pyro is active around the step")
        if not torch.is_grad_enabled() or torch.is_autocast_enabled() or torch.is_autocast_enabled("cpu"):
            raise Untraceable("gradients are off, or autocast is on")
        call.tensors = list[Tensor]()
        key = torch.get_default_dtype(), _structure((call.args, call.kwargs), call.tensors)
        if key not in self._structures:
            self._structures[key] = _Structure()
        return self._structures[key]

    def _by_record(self, structure: _Structure, record: _Record, call: Call) -> float:
        """A step of the record; `Untraceable` if Pyro has to make it."""
        if reason := record.changed(self):
            structure.forget()
            raise Untraceable(reason)
        if record.has_gradients():
            raise Untraceable("a parameter has a gradient before the step")
        record.steps += 1
        record.program.refresh()
        if is_due(record.steps):
            if unlike := record.recorded.differs(call):
                structure.record, structure.refused = None, UNSEEN
                never_used = record.steps <= record.recorded.compared + 1
                raise Untraceable(UNSEEN) if never_used else record.recorded.error(unlike)
            record.recorded.compared = record.steps
        before = random_states(record.device)
        loss = record.step(self.optim, call)
        if not math.isfinite(loss):
            set_random_states(before, record.device)
            raise Untraceable("the loss is not finite")
        self.engine = record.engine
        if record.pays_to_compile(self.wanted):
            try:
                record.compile(self.optim, call)
            except Untraceable as error:
                say = _log.info if self.wanted == "auto" else _log.warning
                say("steps are traced, not compiled: %s", error)
        return loss


class _Structure:
    """The state of recording for arguments of one structure.

    Attributes:
        record: the record of a step; None before there is one.
        refused: why there can be no record; empty if there can be.
    """

    def __init__(self) -> None:
        self.record: _Record | None = None
        self.refused = ""
        self._contents: Contents | None = None  # what model and guide read at the last step by Pyro
        self._quiet, self._patience = 0, 2  # steps by Pyro in turn before which nothing had changed: so far, and needed

    def look(self, programs: Sequence[Any]) -> None:
        """Note what programs read after a step by Pyro. If that step changed it, no step is recorded: it takes calls."""
        if self._contents is not None and self._quiet and (name := self._contents.changed()):
            self.refused = f"a call changes {name}, which a recording would read once"
        self._contents = Contents(*programs)

    def record_for(self, svi: CompiledSVI, call: Call) -> _Record | None:
        """The record, made after enough steps by Pyro without a change; None before. `Untraceable` if there can be none."""
        if self.record is None and not self.refused and self._contents is not None:
            self._quiet = 0 if self._contents.changed() else self._quiet + 1
            if self._quiet >= self._patience:
                devices = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
                try:
                    with torch.random.fork_rng(devices):
                        self.record = _Record(svi, call)
                except Untraceable as error:
                    self.refused = str(error)
                except Exception as error:  # Pyro's step, which comes next, raises it as well if it is the program's
                    self.refused = f"it cannot be evaluated twice: {type(error).__name__}: {error}"
        if self.refused:
            raise Untraceable(self.refused)
        return self.record

    def forget(self) -> None:
        """Drop the record. The next one is made after more steps by Pyro if this one was used for at most 100 steps."""
        assert self.record is not None
        self._patience = 1 if self.record.steps > _WORTH_A_RECORD else 2 * self._patience
        self.record, self._contents, self._quiet = None, None, 0


class _Record:
    """A step as a graph, recorded without side effects.

    Attributes:
        recorded: the loss with its recording.
        steps: number of steps made so far.
    """

    def __init__(self, svi: CompiledSVI, call: Call) -> None:
        objective: Any = svi.users_loss
        if not isinstance(objective, ELBO):
            objective = SimpleNamespace(loss=svi.loss, loss_and_grads=svi.loss_and_grads)
        self._objective = objective = OfPyro(objective, svi.model, svi.guide)
        with put_back(*svi.programs) as look, poutine.trace(param_only=True) as capture:
            objective.terms(call)
        sites = Parameter.of_sites(capture.trace.nodes)
        parameters = {name: each for name, each in sites.items() if each.unconstrained.requires_grad}
        self.leaves = [parameter.unconstrained for parameter in parameters.values()]
        self._frozen = [each.unconstrained for name, each in sites.items() if name not in parameters]
        self._tensors = [*self.leaves, *self._frozen]
        if not self.leaves:
            raise Untraceable("there is no parameter that a step changes")
        if len({leaf.device for leaf in self.leaves}) > 1:
            raise Untraceable("its parameters are on several devices")
        loss = Loss(objective, parameters, Buffers.moved(look, *svi.programs), look.changes)
        self.recorded = Recorded(loss, svi.programs)
        self.program = self.recorded.program(call)
        if not any(objective.reached):
            raise Untraceable("no parameter gets a gradient")
        self.device, self.steps, self.recorded.compared = self.leaves[0].device, 0, 1
        self._compiled: Callable[[list[Tensor]], Sequence[Tensor]] | None = None
        self._compiles, self._kinds = True, list[Any]()  # as far as is known; the settings that are compiled
        self._optimizers: _Optimizers | None = None
        self._of = svi.model, svi.guide, svi.loss_and_grads
        self._store = StoreAsItIs(set(map(id, self._tensors)))
        self._flags = Flags(modules_of(*svi.programs), self._store.before)
        known = set(map(id, self._flags.parameters.values()))
        if lost := [name for name, each in sites.items() if id(each.unconstrained) not in known]:
            raise Untraceable(
                f"the parameter {lost[0]} is neither in Pyro's store nor in a module that model or guide names"
            )
        self._zeros: list[tuple[Tensor | None, int]] = [(None, 0)] * len(self._tensors)

    def changed(self, svi: CompiledSVI) -> str:
        """Why the record is no longer valid, or an empty string."""
        if (svi.model, svi.guide, svi.loss_and_grads) != self._of:
            return "model, guide or loss has been replaced"
        if replaced := self._store.replaced():
            return f"the parameter {replaced[0]} has been replaced"
        name = self._flags.changed() or self.recorded.changed()
        return f"{name} has changed" if name else ""

    def has_gradients(self) -> bool:
        """Whether a parameter has a gradient other than 0 before the step."""
        for number, tensor in enumerate(self._tensors):
            gradient, (zero, version) = tensor.grad, self._zeros[number]
            if gradient is not None and (zero is not gradient or zero._version != version):
                if bool(gradient.any()):
                    return True
                self._zeros[number] = gradient, gradient._version
        return False

    @property
    def engine(self) -> EngineName:
        """The engine of the last step."""
        return "traced" if self._compiled is None else "compiled"

    def step(self, optim: PyroOptim, call: Call) -> float:
        """Make a step, unless its loss is not finite; returns the loss."""
        if self._compiled is not None:
            optimizers = self._of_optim(optim, self.leaves)
            moved = any(tensor.grad is not None for tensor in self._frozen)  # by their momentum
            if optimizers is not None and not moved and optimizers.kinds == self._kinds:
                return self._compiled_step(self._compiled, optimizers, call)
            self._compiled = None
        results = self.recorded.results(self.program, call)
        loss = results.terms[0].item()
        if math.isfinite(loss):
            self.recorded.loss.moving.take(results.buffers)
            gradients = [*results.gradients, *(tensor.grad for tensor in self._frozen)]  # 0, with its momentum
            self._update(optim, list(zip(self._tensors, gradients, strict=True)))
        return loss

    def _update(self, optim: PyroOptim, pairs: Sequence[tuple[Tensor, Any]]) -> None:
        """Update the parameters that have a gradient, by Pyro at this step or before, as `SVI.step` does."""
        reached = [*self._objective.reached, *(False for _ in self._frozen)]
        pairs = [pair for pair, now in zip(pairs, reached, strict=True) if now or pair[0].grad is not None]
        weights = [weight for weight, _ in pairs]
        optimizers = self._of_optim(optim, weights)
        if optimizers is not None:
            optimizers.step([gradient for _, gradient in pairs])
            return
        for weight, gradient in pairs:
            weight.grad = gradient.to(weight.dtype, copy=True, memory_format=torch.contiguous_format)
        everything = set(self._tensors)
        optim(everything)  # type: ignore[arg-type]  # as `SVI` calls it
        zero_grads(everything)

    def _of_optim(self, optim: PyroOptim, weights: Sequence[Tensor]) -> _Optimizers | None:
        """The optimisers of these parameters as one; None if only they themselves can make their steps."""
        if self._optimizers is None or not self._optimizers.holds(optim, weights):
            try:
                self._optimizers = _Optimizers(optim, weights)
            except Untraceable:
                self._optimizers = None
        return self._optimizers

    def pays_to_compile(self, engine: EngineName) -> bool:
        """Whether compiled steps would pay for their compilation in as many steps as have been made."""
        if engine == "traced" or not self._compiles or self._compiled is not None:
            return False
        due = self.steps >= 64 and self.steps & (self.steps - 1) == 0
        return engine == "compiled" or (due and worth_compiling(self.program, self.steps))

    def compile(self, optim: PyroOptim, call: Call) -> None:
        """Compile gradient and update; the program makes the steps from now on, unless Pyro does."""
        self._compiles = False
        if not all(self._objective.reached) or call.device != self.device:
            raise Untraceable("a parameter gets no gradient, or the arguments are not on its device")
        optimizers = _Optimizers(optim, self.leaves)
        whole = WholeStep(self.leaves, optimizers, self.recorded.buffers, _if_finite)
        self._compiled = whole.compiled(self.program, call, {})
        self._compiles, self._kinds = True, optimizers.kinds

    def _compiled_step(self, step: Callable[..., Sequence[Tensor]], optimizers: _Optimizers, call: Call) -> float:
        numbers = [1.0]
        states = optimizers.state.values()
        for rule, settings, state in zip(optimizers.rules, optimizers.param_groups, states, strict=True):
            numbers += rule.schedule(int(state["step"]) + 1, settings["lr"])
        program, written = self.program, [leaf.detach() for leaf in self.leaves]
        written += [*optimizers.moments, *self.recorded.buffers]
        rest = [*call.tensors, torch.tensor(numbers, dtype=written[0].dtype), *program.constants, *program.draw()]
        with torch.no_grad():
            terms = step([*written, *(rest if self.device.type == "cpu" else on(self.device, rest))])[0]
        torch.autograd.graph.increment_version(written)
        loss: float = terms[0].item()
        if math.isfinite(loss):
            optimizers.count()
        return loss


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


class _Optimizers:
    """The optimisers of a `PyroOptim`, one for each parameter, as one of `torch.optim` with a group for each.

    A step of each of Pyro's takes 50 microseconds of Python. Their states and settings are read and written where they are,
    so `get_state`, `save` and Pyro's steps see the present values.

    Raises:
        Untraceable: only the optimisers themselves can make their steps.
    """

    def __init__(self, optim: PyroOptim, weights: Sequence[Tensor]) -> None:
        self.weights, self._optim = list(weights), optim
        self.optimizers: list[Any] = [optim.optim_objs.get(weight) for weight in weights]
        self.rules = rules_of(self)
        if type(optim).__call__ is not PyroOptim.__call__ or len(self.rules) != len(weights):
            raise Untraceable(_NO_FORM)
        self.param_groups: list[Group] = [optimizer.param_groups[0] for optimizer in self.optimizers]
        self.state: dict[Tensor, Any] = {}
        self.moments: list[Tensor] = []
        self.kinds: list[Any] = []  # equal for parameters with the same settings but for the learning rate
        self._each: list[Any] = []
        for weight, optimizer, settings in zip(weights, self.optimizers, self.param_groups, strict=True):
            read = itemgetter(*sorted(settings.keys() - {"params", "lr", "initial_lr"}))
            state = self.state[weight] = optimizer.state.get(weight, {})
            moments = [state.get(name) for name in Rule.state]
            arrays = [isinstance(m, Tensor) and m.is_contiguous() and m.dtype == weight.dtype for m in moments]
            if not all(arrays) or not all(type(n) in _NUMBERS for n in (*read(settings), *settings["betas"])):
                raise Untraceable(_NO_FORM)
            self.moments += moments
            self.kinds.append((type(optimizer), weight.dtype, weight.device, read(settings)))
            hooks = [hook for name, hook in vars(optimizer).items() if name.endswith(("pre_hooks", "post_hooks"))]
            self._each.append((weight, optimizer, read, hooks))
        self._before = self._look()
        if not all(plain for plain, *_ in self._before):
            raise Untraceable(_NO_FORM)

    def holds(self, optim: PyroOptim, weights: Sequence[Tensor]) -> bool:
        """Whether these are still the optimisers of these parameters, with the same settings but for the learning rate."""
        same = optim is self._optim and list(map(id, weights)) == list(map(id, self.weights))
        return same and self._look() == self._before

    def _look(self) -> list[Any]:
        optim, looks = self._optim, []
        for weight, optimizer, read, hooks in self._each:
            settings, state = optimizer.param_groups[0], optimizer.state.get(weight, {})
            plain = (
                optim.optim_objs.get(weight) is optimizer
                and optim.grad_clip.get(weight) is None
                and type(settings["lr"]) in _NUMBERS
                and not any(hooks)
                and "step" not in optimizer.__dict__
                and weight.is_contiguous()
            )
            looks.append(
                (plain, id(settings), id(state), *[id(state.get(name)) for name in Rule.state], read(settings))
            )
        return looks

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Make a step of Adam, AdamW or ClippedAdam, for parameters with the same settings at once."""
        alike: dict[Any, list[int]] = {}
        states = list(self.state.values())
        for number, (kind, settings, state) in enumerate(zip(self.kinds, self.param_groups, states, strict=True)):
            alike.setdefault((kind, settings["lr"], state["step"] if "lrd" in settings else 0), []).append(number)
        with torch.no_grad():
            self.count()
            for numbers in alike.values():
                weights = [self.weights[number] for number in numbers]
                slopes = [gradients[number].to(self.weights[number].dtype).contiguous() for number in numbers]
                settings, of_all = self.param_groups[numbers[0]], [states[number] for number in numbers]
                eps, steps = settings["eps"], [state["step"] for state in of_all]
                if "lrd" in settings:  # ClippedAdam, which has eps outside of the bias correction
                    slopes = [slope.clamp(-settings["clip_norm"], settings["clip_norm"]) for slope in slopes]
                    eps /= math.sqrt(1 - settings["betas"][1] ** steps[0])
                    steps = [torch.tensor(float(steps[0]))] * len(weights)
                steps = [step.to(weights[0].device) for step in steps]
                adam_step({**settings, "eps": eps}, weights, slopes, of_all, steps)

    def count(self) -> None:
        """Count a step, and let the learning rate of ClippedAdam decay."""
        if tensors := [state["step"] for state in self.state.values() if isinstance(state["step"], Tensor)]:
            add_to_all(tensors, 1)
        for settings, state in zip(self.param_groups, self.state.values(), strict=True):
            if "lrd" in settings:
                settings["lr"] *= settings["lrd"]
                state["step"] += 1


def _if_finite(
    terms: Tensor, gradients: Sequence[Tensor], extra: Sequence[Tensor]
) -> Callable[[Tensor, Tensor], Tensor]:
    """The `Guard` by which a step changes nothing if its loss is not finite."""
    finite = torch.isfinite(terms[0])
    return lambda old, new: torch.where(finite, new, old)
