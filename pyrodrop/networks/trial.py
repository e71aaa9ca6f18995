"""Find properties of a network by calling it on a few rows of x, before training and prediction.

    mode         weights                     rows    shows
    evaluation   that record their use       2, 3    axes and rows of examples, derivatives, whether examples interact,
                                                     random numbers
    evaluation   others, and both by vmap    2       whether `torch.vmap` can map over weights
    training     with gradients              2       random numbers, parameters of others, what a call changes
    training     without                     3       whether gradients matter, and whether examples interact
    evaluation   with gradients              2       weights that have no gradient

`Trial` makes the calls. `observe` makes the first four and `observe_training` the last three; `pyrodrop.read` makes the
first two with the network's own dropout (`pyrodrop.reading.passes`). The results are in `Properties`. Every call starts from
the same buffers and Python attributes, must return one row per example and must not change its weights. If a call shows a
problem, further calls find its cause. Networks that need all rows of x are called on all rows. An axis of length 2 in one
run and 3 in the other indexes examples; if the network merges examples and their rows, no axis does.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor, nn

from pyrodrop.changes import STAYS, Snapshot, say_changes
from pyrodrop.devices import drawn_outside_torch, outside_torch
from pyrodrop.inputs import Inputs, mapped, num_rows, parts
from pyrodrop.networks.call import RECOMPUTES, Unfit
from pyrodrop.networks.checks import DETERMINISTIC, cannot_run, wrong_inputs
from pyrodrop.private_apis import activations_kept, in_function_transform, intercepted
from pyrodrop.recurrence import elementary
from pyrodrop.reparam.lazy import LazyDistribution, LazyReparam, LazyWeight
from pyrodrop.reparam.maps import LinearMap

_log = logging.getLogger("pyrodrop")
T = TypeVar("T")

_SOUGHT = 256  # number of rows that are searched for one that differs from the first, or on which weights must be used


@dataclass(frozen=True)
class Properties:
    """Properties of a network found by running it.

    Attributes:
        axes: for every weight and each of its uses, the axis of the linear map's input that indexes examples. None if no
            single axis does, if the use is not a linear map, or if the weight is used several times.
        rows: names of the weights that are applied to several rows per example: tokens, nodes, positions of a convolution.
        mixes: whether the output of one example depends on other examples.
        whole: whether the network runs only on all rows of its data at once, not on a part of them.
        maps: whether `torch.vmap` over weights gives the same outputs as separate calls.
        differed: whether the rows that it ran on differed. Equal rows cannot show whether one example affects another.
        differentiates: whether it computes derivatives, or transforms functions by `torch.func`, within its forward. With
            noise per activation, such a derivative would not be that for a sample of the weights.
        mixes_in_training: as `mixes`, but in training mode, such as under BatchNorm; None if it was not run in this mode.
        changes: a sentence about the Python attributes that calls in training mode change; empty if there are none.
    """

    axes: dict[str, tuple[int | None, ...]]
    rows: tuple[str, ...]
    mixes: bool
    whole: bool
    maps: bool
    differed: bool
    differentiates: bool = False
    mixes_in_training: bool | None = None
    changes: str = ""


@dataclass(frozen=True)
class Look:
    """A call with weights that record their uses."""

    output: Tensor
    probes: dict[str, _Probe]


class Trial:
    """Calls of a network, each from the same modes, buffers and Python attributes, without Pyro's handlers.

    Args:
        run: function of weights by site and inputs, which calls the network.
        weights: initial values of the weights.
        in_training: names of the modules that are in training mode while the network is trained.

    Attributes:
        stays: modules that are in training mode in every call.
        changed: whether a call changed buffers or attributes.
        maps: whether `torch.vmap` has not failed so far.
    """

    def __init__(
        self,
        network: nn.Module,
        run: Callable[[Mapping[str, Tensor], Inputs], Tensor],
        weights: Mapping[str, Tensor],
        in_training: Collection[str] = (),
    ) -> None:
        self.network: nn.Module = network
        self.run = run
        self.weights: Mapping[str, Tensor] = weights
        self.stays = {module for module in network.modules() if STAYS in module.__dict__}
        self.changed = False
        self.maps = True
        self._in_training = in_training
        self._before = self._now()

    def __call__(self, x: Inputs, weights: Mapping[str, Tensor] | None = None, *, training: bool = False) -> Tensor:
        """The output, without gradients.

        Raises:
            Unfit: the output does not have one row per example, or the network changes its weights in place.
        """
        with self.restored(training=training), torch.no_grad():
            return self._output(self.weights if weights is None else weights, x)

    def look(self, x: Inputs) -> Look:
        """A call with weights that record their uses; raises as a call."""
        probes = {name: _Probe(name, value) for name, value in self.weights.items()}
        return Look(self(x, {name: LazyWeight(probe.of_weight) for name, probe in probes.items()}), probes)

    def _output(self, weights: Mapping[str, Tensor], x: Inputs) -> Tensor:
        versions = {name: value._version for name, value in self.weights.items()}
        y = self.run(weights, x)
        check_output(y, num_rows(x))
        changed = [name for name, version in versions.items() if self.weights[name]._version != version]
        if changed:  # their density would be that of other values
            raise Unfit(
                "the network of a model must not change its weights when it is called; this network changes "
                f"{', '.join(changed)} in place, as nn.Embedding(max_norm=...) does, so that its output would not be that "
                "of the sampled weights. Remove max_norm, or scale a copy of the weight in the forward"
            )
        return y

    def few(self, x: Inputs) -> tuple[Any, Any]:
        """Two rows of x, and the same two, in the same memory, followed by a third; on the weights' device."""
        size = num_rows(x)
        unlike = _unlike_the_first(x)
        last = int(unlike[-1]) if len(unlike) else size - 1  # a row that differs from the first if any does
        three = self._rows(x, torch.tensor([0, min(1, size - 1), last]))
        return mapped(lambda part: part[:2], three), three

    def many(self, x: Inputs) -> Any:
        """The first 256 rows of x, repeated if there are fewer, on the weights' device."""
        return self._rows(x, torch.arange(_SOUGHT) % num_rows(x))

    def all(self, x: Inputs) -> Any:
        """A copy of x on the weights' device, which the network may change in place."""
        return self._rows(x, torch.arange(num_rows(x)))

    def _rows(self, x: Inputs, rows: Tensor) -> Any:
        device = next(iter(self.weights.values())).device
        return mapped(lambda part: part[rows.to(part.device)].to(device), x)

    @contextmanager
    def restored(self, *, training: bool = False) -> Iterator[None]:
        """Put the network in evaluation or training mode; restore modes, buffers and attributes after the block."""
        modes = {
            module: module in self.stays or (training and name in self._in_training)
            for name, module in self.network.named_modules()
        }
        others = [module for module, mode in modes.items() if module.training != mode]  # as threads may share a model
        for module in others:
            module.training = modes[module]
        try:
            with poutine.block():
                yield
        finally:
            for module in others:
                module.training = not modes[module]
            self.changed |= self._before.restore()

    def with_gradients(self, x: Inputs, *, training: bool = False) -> tuple[Tensor, list[str], list[Tensor]]:
        """The output, the names of the weights without a gradient, and all other tensors that get a gradient.

        Raises:
            Unfit: as a call, or the network has hooks on saved tensors.
        """
        leaves = {name: value.detach().requires_grad_() for name, value in self.weights.items()}
        try:
            with self.restored(training=training), torch.enable_grad():
                y = self._output(leaves, x)
                total = y.sum()
                gradients: Any = [None] * len(leaves)
                if total.requires_grad:
                    gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
        except RuntimeError as error:
            if str(error) == RECOMPUTES or "use_reentrant" in str(error):
                raise Unfit(RECOMPUTES) from error
            raise
        unused = [name for name, gradient in zip(leaves, gradients, strict=True) if gradient is None]
        ours = {id(tensor) for tensor in (*leaves.values(), *parts(x))}
        return y.detach(), unused, [leaf for leaf in _leaves(y) if id(leaf) not in ours]

    def each(self, run: Callable[[dict[str, Tensor]], Tensor], tensors: Mapping[str, Tensor]) -> Tensor:
        """The results of `run` for all sets of tensors ``[sets, ...]``, by `torch.vmap`, or one by one if that fails."""
        if self.maps:
            try:
                with self.restored(), torch.no_grad(), elementary(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    return torch.vmap(run)(dict(tensors))
            except Exception:  # torch raises many types where vmap is not supported
                self.maps = False
        results = []
        for number in range(len(next(iter(tensors.values())))):
            with self.restored(), torch.no_grad():
                results.append(run({name: tensor[number] for name, tensor in tensors.items()}))
        return torch.stack(results)

    def changes(self, x: Inputs) -> str:
        """A sentence about the attributes that a second call in training mode changes, empty if there are none.

        Attributes that only the first call sets, such as a cache, do not count.
        """
        with self.restored(training=True), torch.no_grad():
            self.run(self.weights, x)
            between = self._now()
            self.run(self.weights, x)
            return say_changes([name for _, name in between.changed()])

    def _now(self) -> Snapshot:
        return Snapshot(dict(self.network.named_modules()))


def on_few_or_all(trial: Trial, x: Inputs, few: Callable[[Any, Any], T], whole: Callable[[Any], T]) -> T:
    """The result of `few` for two and three rows of x; if it fails, the result of `whole` for all rows.

    Raises:
        ValueError: both fail, or either raises an `Unfit`.
    """
    failed: Exception | None = None
    for call in (lambda: few(*trial.few(x)), lambda: whole(trial.all(x))):
        try:
            return call()
        except Unfit:
            raise
        except Exception as error:  # of any type: the network may need all rows
            failed = failed or error
    assert failed is not None
    raise ValueError(wrong_inputs(x, failed)) from failed


def observe(trial: Trial, x: Inputs) -> Properties:
    """Find the properties of a network by running it on a few rows of x, in evaluation mode and without gradients.

    Raises:
        ValueError: the network runs neither on a few rows of x nor on all of them, does not return a single tensor with one
            row per example, draws random numbers, or changes its weights in place.
    """

    def few(two: Any, three: Any) -> tuple[Any, Look, Look | None]:
        return two, _deterministic(trial, lambda: trial.look(two)), trial.look(three)

    def whole(rows: Any) -> tuple[Any, Look, None]:
        look = _deterministic(trial, lambda: Look(trial(rows), {}))
        _check_same(look.output, trial(rows))
        return rows, look, None

    rows, small, large = on_few_or_all(trial, x, few, whole)
    mixed = large is None or mixes(small.output, large.output, lambda: trial.look(rows).output)
    other = {name: value * 0.9 for name, value in trial.weights.items()}
    both = {name: torch.stack([value, other[name]]) for name, value in trial.weights.items()}
    alone = torch.stack([small.output, trial(rows, other)])
    same = close(trial.each(lambda weights: trial.run(weights, rows), both), alone)
    return properties_of(trial, x, small, large, mixes=mixed, maps=same and trial.maps)


def properties_of(trial: Trial, x: Inputs, small: Look, large: Look | None, *, mixes: bool, maps: bool) -> Properties:
    """The properties that calls on two and on three rows of x show; `large` is None for a network that needs all rows."""
    if large is None:
        return Properties(dict.fromkeys(trial.weights, ()), (), mixes=True, whole=True, maps=maps, differed=True)
    axes = {name: probe.axes(large.probes[name]) for name, probe in small.probes.items()}
    return Properties(
        axes,
        rows=tuple(n for n, probe in small.probes.items() if None not in axes[n] and any(r > 2 for r in probe.rows)),
        mixes=mixes,
        whole=False,
        maps=maps,
        differed=len(_unlike_the_first(x)) > 0,
        differentiates=any(probe.differentiates for probe in small.probes.values()),
    )


def observe_training(trial: Trial, x: Inputs, properties: Properties) -> tuple[Properties, Tensor]:
    """Add the properties of the network in training mode and with gradients.

    Args:
        properties: the result of `observe`.

    Returns:
        The completed properties, and the outputs at a few rows in evaluation mode.

    Raises:
        ValueError: the network cannot run in training mode, draws random numbers, uses parameters that are not registered in
            it, has no gradient, or has other outputs without gradients; a weight has no gradient in evaluation mode.
    """
    two, three = (trial.all(x),) * 2 if properties.whole else trial.few(x)
    with _training(two), activations_kept() as recomputation:
        before = recomputation.calls
        y, _, others = _deterministic(trial, lambda: trial.with_gradients(two, training=True))
        recomputes = recomputation.calls > before
    if recomputes:
        _log.warning(
            "the network recomputes activations (torch.utils.checkpoint), which would be with other weights and noise: they "
            "are kept instead, so training takes the memory of the network without checkpointing"
        )
    if others and {id(leaf) for leaf in others} & {id(leaf) for leaf in trial.with_gradients(two, training=True)[2]}:
        # one that is there in every call, unlike what a forward makes to differentiate by
        raise Unfit(
            "the network of a model must have all parameters that it uses, as nothing would train others; this one uses "
            "some that are not its own, such as those of a layer in a plain list, of another module, or in `output`: "
            "register them in the network, or fix them (requires_grad_(False))"
        )
    try:
        mixes = not close(trial(three, training=True)[: len(y)], y)
    except Exception:  # of any type: it may need an even number of rows
        mixes = True
    if mixes:
        with _training(two):
            predicted = trial(two, training=True)
        if not close(predicted, y):
            _check_same(y, trial.with_gradients(two, training=True)[0])
            raise Unfit(
                "the network of a model must not depend on torch.is_grad_enabled(), as training and prediction would use "
                f"different functions; its outputs differ by up to {float((predicted - y).abs().max()):.2g}"
            )
    changes = trial.changes(two) if trial.changed else ""
    output, unused, _ = trial.with_gradients(two)
    if unused:
        _check_used(trial, two if properties.whole else trial.many(x))  # a forward may branch on x
    return replace(properties, mixes_in_training=properties.mixes or mixes, changes=changes), output


def _check_used(trial: Trial, x: Inputs) -> None:
    """Raise a ValueError for weights without a gradient; the message says whether they change the output."""
    y, unused, _ = trial.with_gradients(x)
    if not unused:
        return
    negated = {name: {**trial.weights, name: -trial.weights[name]} for name in unused}
    stepped = [name for name in unused if not torch.equal(trial(x, negated[name]), y)]
    if stepped:
        raise ValueError(
            f"these weights have a prior and change the output, but have no gradient: {', '.join(stepped)}. The network "
            "uses them in steps (argmax, topk, a comparison, rounding) or detaches them, so that training cannot learn "
            "them: fix them (requires_grad_(False)), or make the output depend on them smoothly"
        )
    owners = {trial.network.get_submodule(name.rpartition(".")[0]) for name in unused}
    recurrent = sorted({type(owner).__name__ for owner in owners if isinstance(owner, nn.RNNBase)})
    hints = [f"; instead of nn.{name}, call nn.{name}Cell for every step" for name in recurrent]
    raise ValueError(
        f"these weights have a prior but do not affect the output: {', '.join(unused)}. Remove a layer that is never "
        "called, or fix its weights (requires_grad_(False)); a layer that computes with a copy of its weights ignores the "
        f"sampled ones{''.join(hints)}"
    )


@contextmanager
def _training(x: Inputs) -> Iterator[None]:
    """Turn errors of a network on x in training mode into a ValueError, except an `Unfit`, whose message says more."""
    try:
        yield
    except Unfit:
        raise
    except Exception as error:
        raise ValueError(cannot_run(x, error, doing="be trained")) from error


def _deterministic(trial: Trial, call: Callable[[], T]) -> T:
    """The result of a call; an `Unfit` if it draws random numbers."""
    result, culprit = random_module(trial.network, call)
    if culprit is not None:
        raise Unfit(
            f"{DETERMINISTIC} a network that draws random numbers itself{culprit}. Dropout and stochastic depth in "
            "evaluation mode, or at rate 0, draw none; pyrodrop.read reads those of a trained network as a posterior"
        )
    return result


def random_module(network: nn.Module, call: Callable[[], T]) -> tuple[T, str | None]:
    """The result of a call; and ``, in`` with the innermost module that draws in it, empty if unknown, None if none does.

    All noise of a model comes from its guide, so random numbers that its network draws would be no part of the posterior.

    Args:
        call: runs the network once; called again if random states have changed, since another thread may have drawn.
    """
    before, before_outside = _random_states(), outside_torch()
    result = call()
    moved = _random_states() != before
    outside = drawn_outside_torch(before_outside, call)
    if not moved and not outside:
        return result, None
    drawing: list[str] = []
    before_outside = outside_torch()

    def watch(operation: Any, args: Any, kwargs: Any) -> Any:
        """Note the module that runs when a state changes; a draw outside torch is that of the next operation's module."""
        nonlocal before_outside
        seeded = torch.Tag.nondeterministic_seeded in operation.tags  # also of operations that may not draw
        before = _random_states() if seeded else []
        value = operation(*args, **kwargs)
        if (seeded and _random_states() != before) or (outside and outside_torch() != before_outside):
            name, module = next(iter(running(network)), ("its backward pass", None))
            kind = type(module).__name__
            drawing.append(name if module is None else f"{name!r} ({kind})" if name else kind)
            before_outside = outside_torch()
        return value

    with intercepted(watch):
        call()
    if drawing:
        return result, f", in {drawing[0]}"
    return result, "" if outside else None


def running(network: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules of a network whose methods are running, with their names, innermost first."""
    names = {module: name for name, module in network.named_modules()}
    modules: dict[nn.Module, str] = {}
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module) and module in names:
            modules.setdefault(module, names[module])
    return [(name, module) for module, name in modules.items()]


def _random_states() -> list[bytes]:
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    states = [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]
    return [state.numpy().tobytes() for state in states]


def mixes(two: Tensor, three: Tensor, again: Callable[[], Tensor]) -> bool:
    """Whether outputs at two rows differ from those at the same rows and a third; an `Unfit` if calls for two differ."""
    if close(three[:2], two):
        return False
    _check_same(two, again())
    return True


def _check_same(first: Tensor, second: Tensor) -> None:
    """Raise an `Unfit` unless two calls gave the same outputs."""
    if not close(first, second):
        gap = float((first - second).abs().max())
        raise Unfit(
            f"{DETERMINISTIC} a network whose outputs change by up to {gap:.2g} when it is called again with the same input"
        )


def _leaves(output: Tensor) -> list[Tensor]:
    """The tensors that the gradient of an output would reach."""
    leaves, seen, nodes = [], set(), [output.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [before for before, _ in node.next_functions]
            leaves += [node.variable] if hasattr(node, "variable") else []
    return leaves


def close(a: Tensor, b: Tensor) -> bool:
    """Whether shapes are equal, and values up to rounding: ``|a - b| <= 1e-4 |b| + 1e-5 max |b|``. NaN equals NaN.

    The error of a sum of K terms in float32 is about sqrt(K) u of their size, with u = 2^-24; that of L such sums in a row
    is sqrt(K L) u. It is 6e-6 for ten thousand terms, the bound for entries that cancel, and 6e-5 for a hundred such layers,
    the bound for any entry. Networks in float64 may compute in float32 somewhere, so the bounds are the same for all dtypes.
    """
    a, b = a.detach(), b.detach()  # a forward may compute gradients
    scale = float(b.nan_to_num(0.0, 0.0, 0.0).abs().max()) if b.numel() else 0.0
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-5 * scale, equal_nan=True)


def signature(x: Inputs) -> tuple[Any, ...]:
    """Key of inputs with the same properties: structure, shape of one example, dtypes."""
    names = tuple(x) if isinstance(x, dict) else isinstance(x, tuple)
    return (names, *((tuple(part.shape[1:]), part.dtype) for part in parts(x)))


def check_output(y: Tensor, rows: int) -> None:
    """Raise an `Unfit` unless y has this number of rows and at least two axes."""
    if y.dim() < 2 or len(y) != rows:
        hint = ": have forward return its output.unsqueeze(-1), [N, 1]" if y.shape == (rows,) else ""
        raise Unfit(
            "the network of a model must return one row per example, [N, outputs] or [N, ..., outputs]; got shape "
            f"{tuple(y.shape)} for {rows} examples{hint}"
        )


def _unlike_the_first(x: Inputs) -> Tensor:
    unlike = [
        (part[:_SOUGHT] != part[:1]).flatten(1).any(1) if part.dim() > 1 else part[:_SOUGHT] != part[0]
        for part in parts(x)
    ]
    return torch.stack(unlike).any(0).nonzero()[:, 0]


def _axis(two: torch.Size, three: torch.Size) -> int | None:
    if len(two) != len(three):
        return None
    other = [axis for axis, (a, b) in enumerate(zip(two, three, strict=True)) if a != b]
    return other[0] if len(other) == 1 and (two[other[0]], three[other[0]]) == (2, 3) else None


class _Probe(LazyReparam):
    """Uses the value of a weight without noise, and records the inputs that the weight is applied to.

    Attributes:
        shapes: shape of the input of every use; None for a use that is not a linear map.
        rows: number of rows of the output of every use, all examples together.
        differentiates: whether the network differentiates or transforms a function of the weight in its forward.
    """

    one_weight = True

    def __init__(self, name: str, value: Tensor) -> None:
        self.shapes: list[torch.Size | None] = []
        self.rows: list[int] = []
        self.differentiates = False
        self._repeated: torch.Size | None = None  # the shape of the input at every step of a recurrent layer
        constant = dist.Normal(value, torch.ones_like(value), validate_args=False).to_event(value.dim())
        self.of_weight: LazyDistribution = LazyDistribution(constant, self, name)

    def axes(self, other: _Probe) -> tuple[int | None, ...]:
        """The axis, per use of the weight, whose length is 2 here and 3 there.

        None for every use of a weight that has several (tied, recurrent): noise per example would differ between them, so
        such a weight must be sampled as a whole. All steps of a call of a recurrent layer are one use, but several calls may
        have the examples in other orders.
        """
        if self.of_weight.layers > 1:
            return (None,)
        uses = max(len(self.shapes), len(other.shapes))
        if len(self.shapes) != 1 or len(other.shapes) != 1 or self.shapes[0] is None or other.shapes[0] is None:
            return (None,) * uses
        return (_axis(self.shapes[0], other.shapes[0]),)

    def keeps(self, q: Any) -> bool:
        return True

    def push(self, q: Any, at: LinearMap) -> Tensor:
        y = at.f(at.x, q.base_dist.loc)
        if in_function_transform():
            self._differentiated()
        elif y.requires_grad:
            y.register_hook(self._differentiated)
        if not at.repeated:
            self.rows.append(y.numel() // y.shape[at.outputs])
        if not at.repeated or at.x.shape != self._repeated:
            self.shapes.append(at.x.shape)
        self._repeated = at.x.shape if at.repeated else self._repeated
        return y

    def bias(self, q: Any, at: LinearMap) -> Tensor:
        return at.over_outputs(q.base_dist.loc)

    def whole(self, q: Any) -> Tensor:
        if in_function_transform():
            self._differentiated()
        self.shapes.append(None)
        return q.base_dist.loc  # type: ignore[no-any-return]

    def _differentiated(self, _: object = None) -> None:
        self.differentiates = True
