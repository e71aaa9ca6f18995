"""Find properties of a network by calling it on a few rows of x, before training and prediction.

    mode         weights                           rows       shows
    evaluation   w, with gradients                 a, b       uses of weights, derivatives, random numbers, gradients
    evaluation   0.9 w                             c, a, b    axes and rows of examples
    evaluation   w and 0.9 w, by `torch.vmap`      c, a, b    whether examples interact, and whether vmap maps over weights
    training     w, with gradients                 a, b       random numbers, parameters of others, what a call changes
    training     w                                 c, a, b    whether examples interact, and gradients matter

The first two calls have weights that record their uses, and are made by `record`; `pyrodrop.read` makes these two with the
network's own dropout (`pyrodrop.reading.found`). Every call starts from the same buffers and Python attributes, must return
one row per example and must not change its weights. If a call shows a problem, further calls find its cause. Networks that
need all rows of x are called on all rows. An axis of length 2 in one run and 3 in the other indexes examples; if the network
merges examples and their rows, no axis does. As a and b are at other places in the second call, examples also interact in a
network whose outputs depend on the places of rows.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from pyrodrop.changes import STAYS
from pyrodrop.changes import Look as Before
from pyrodrop.checks import Inputs, mapped, num_rows, parts
from pyrodrop.devices import has_drawn, outside_torch
from pyrodrop.networks.call import RECOMPUTES, Unfit
from pyrodrop.networks.checks import DETERMINISTIC, cannot_run, wrong_inputs
from pyrodrop.private_apis import in_function_transform, recomputation_refused
from pyrodrop.reparam.lazy import LazyDistribution, LazyReparam, LazyWeight
from pyrodrop.reparam.maps import LinearMap

_SOUGHT = 256  # number of rows that are searched for one that differs from the first, or on which weights must be used


@dataclass(frozen=True)
class Properties:
    """Properties of a network found by running it.

    Attributes:
        axes: for every weight, the axis of the input of its linear map that indexes examples. None if no single axis does,
            if the use is not a linear map, or if the weight is used several times.
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

    axes: dict[str, int | None]
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
    """What a call has shown.

    Attributes:
        probes: the uses of every weight, if it recorded them.
        differentiates: as in `Properties`.
        unused: names of the weights without a gradient, if the call had gradients.
        failed: the error of the backward pass, if it failed.
        others: all other tensors that got a gradient.
        seen: what `Trial.watching` returned.
    """

    output: Tensor
    probes: dict[str, _Probe]
    differentiates: bool
    unused: list[str]
    failed: Exception | None
    others: list[Tensor]
    seen: Any


class Trial:
    """Calls of a network, each from the same modes, buffers and Python attributes, without Pyro's handlers.

    `record` makes two calls that show most properties.

    Args:
        run: function of weights by site and inputs, which calls the network.
        weights: initial values of the weights.
        in_training: names of the modules that are in training mode while the network is trained.

    Attributes:
        other: other values of the weights.
        stays: modules that are in training mode in every call.
        watching: makes a context manager for every call.
        changed: whether a call changed buffers or attributes.
        maps: whether `torch.vmap` has not failed so far.
        small, large: what the two calls of `record` showed.
        two, three: their inputs: rows a and b, and rows c, a and b or a, b and c; both are all rows if `whole`.
        at: rows a and b of the second call.
        whole: whether the network runs only on all rows.
        draws: the error for a network that draws random numbers.
    """

    draws: str = (
        f"{DETERMINISTIC} a network that draws random numbers itself. Dropout and stochastic depth in evaluation mode, "
        "or at rate 0, draw none; pyrodrop.read reads those of a trained network as a posterior"
    )

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
        self.other = {name: value * 0.9 for name, value in weights.items()}
        self.stays = {module for module in network.modules() if STAYS in module.__dict__}
        self.watching: Callable[[], AbstractContextManager[Any]] = nullcontext
        self.changed = False
        self.maps = True
        self._in_training = in_training
        self._before = Before(network, code=False)

    def __call__(
        self,
        x: Inputs,
        weights: Mapping[str, Tensor] | None = None,
        *,
        training: bool = False,
        gradients: bool = False,
        probing: bool = False,
    ) -> Look:
        """One call.

        Args:
            probing: whether to record the uses of the weights.

        Raises:
            Unfit: the output does not have one row per example, the network changes its weights in place, or, with
                gradients, has hooks on saved tensors.
        """
        values = self.weights if weights is None else weights
        try:
            with self.restored(training=training), torch.set_grad_enabled(gradients), self.watching() as seen:
                # also within vmap
                leaves = {name: nn.Parameter(value.detach(), gradients) for name, value in values.items()}
                probes = {name: _Probe(name, leaf) for name, leaf in leaves.items()} if probing else {}
                versions = {name: value._version for name, value in values.items()}
                y = self.run(leaves | {name: LazyWeight(probe.of_weight) for name, probe in probes.items()}, x)
                rows = num_rows(x)
                if y.dim() < 2 or len(y) != rows:
                    hint = ": have forward return its output.unsqueeze(-1), [N, 1]" if y.shape == (rows,) else ""
                    raise Unfit(
                        "the network of a model must return one row per example, [N, outputs] or [N, ..., outputs]; got "
                        f"shape {tuple(y.shape)} for {rows} examples{hint}"
                    )
                changed = [name for name, version in versions.items() if values[name]._version != version]
                if changed:  # their density would be that of other values
                    raise Unfit(
                        "the network of a model must not change its weights when it is called; this network changes "
                        f"{', '.join(changed)} in place, as nn.Embedding(max_norm=...) does, so that its output would not "
                        "be that of the sampled weights. Remove max_norm, or scale a copy of the weight in the forward"
                    )
                differentiates = any(probe.differentiates for probe in probes.values())
                of_leaves: Any = [None] * len(leaves)
                failed = None
                if gradients and y.requires_grad:
                    try:
                        of_leaves = torch.autograd.grad(y.sum(), list(leaves.values()), allow_unused=True)
                    except Exception as error:  # of any type; a network without gradients can predict
                        failed = error
        except RuntimeError as error:
            if str(error) == RECOMPUTES:
                raise Unfit(RECOMPUTES) from error
            raise
        ours = {id(tensor) for tensor in (*leaves.values(), *parts(x))}
        return Look(
            y.detach(),
            probes,
            differentiates,
            unused=[name for name, gradient in zip(leaves, of_leaves, strict=True) if gradient is None],
            failed=failed,
            others=[leaf for leaf in _leaves(y) if id(leaf) not in ours],
            seen=seen,
        )

    def rows(self, x: Inputs, rows: Tensor) -> Any:
        """A copy of these rows of x on the weights' device, which the network may change in place."""
        device = next(iter(self.weights.values())).device
        return mapped(lambda part: part[rows.to(part.device)].to(device), x)

    def deterministic(self, **options: Any) -> Look:
        """A call on two rows; an `Unfit` if it draws random numbers.

        All noise of a model comes from its guide, so random numbers that its network draws would be no part of the
        posterior.
        """
        before = _random_states()
        look = self(self.two, **options)
        if has_drawn(before, lambda: self(self.two, **options), _random_states):
            raise Unfit(self.draws)
        return look

    def first(self) -> Look:
        """The first call of `record`."""
        return self.deterministic(gradients=True, probing=not self.whole)

    def record(self, x: Inputs) -> None:
        """Calls on two and three rows of x, or on all, whose weights record their uses. The first has gradients.

        Raises:
            ValueError: all fail, or one raises an `Unfit`.
        """
        size, unlike = num_rows(x), _unlike_the_first(x)
        a, b, c = 0, min(1, size - 1), int(unlike[-1]) if len(unlike) else size - 1  # c differs from a if any row does
        failed: Exception | None = None
        for rows, at in (([c, a, b], slice(1, 3)), ([a, b, c], slice(2)), (range(size), slice(None))):
            self.whole, self.at, self.three = at == slice(None), at, self.rows(x, torch.tensor(rows))
            # in the same memory, which shows a network that writes into its input
            self.two = mapped(lambda part, at=at: part[at], self.three)  # type: ignore[misc]
            try:
                self.small = self.first()
                self.large = self(self.three, self.other, probing=not self.whole)
            except Unfit:
                raise
            except Exception as error:  # of any type: rows may be in an order, or the network may need all of them
                failed = failed or error
            else:
                return
        assert failed is not None
        raise ValueError(wrong_inputs(x, failed)) from failed

    def properties(self, x: Inputs, *, mixes: bool, maps: bool) -> Properties:
        """The properties that the two calls showed; `x` are the inputs that the rows are of."""
        if self.whole:
            return Properties(dict.fromkeys(self.weights), (), mixes=True, whole=True, maps=maps, differed=True)
        axes = {name: probe.axis(self.large.probes[name]) for name, probe in self.small.probes.items()}
        several = [name for name, probe in self.small.probes.items() if any(rows > 2 for rows in probe.rows)]
        return Properties(
            axes,
            rows=tuple(name for name in several if axes[name] is not None),
            mixes=mixes,
            whole=False,
            maps=maps,
            differed=len(_unlike_the_first(x)) > 0,
            differentiates=self.small.differentiates,
        )

    def mixes(self, small: Look, *, training: bool = False, outputs: Tensor | None = None) -> bool:
        """Whether outputs at two rows differ from those at the same rows and a third; an `Unfit` if calls for two differ.

        Args:
            small: a call for two rows with gradients, in this mode.
            outputs: at three rows; of a further call if None.
        """
        try:
            outputs = self(self.three, training=training).output if outputs is None else outputs
        except Exception:  # of any type: in training mode it may need an even number of rows
            if not training:
                raise
        if outputs is not None and close(outputs[self.at], small.output):
            return False
        again = [self(self.two, training=training, gradients=on).output for on in (True, False)]
        gaps = [float((output - small.output).abs().max()) for output in again if not close(output, small.output)]
        if gaps:
            raise Unfit(
                f"{DETERMINISTIC} a network whose outputs change by up to {max(gaps):.2g} when it is called again with the "
                "same input, or without gradients: it must not depend on torch.is_grad_enabled(), nor write into its input"
            )
        return True

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
            self.changed |= bool(self._before.changed() or self._before.moves())
            self._before.undo()

    def each(self, run: Callable[[dict[str, Tensor]], Tensor], tensors: Mapping[str, Tensor]) -> Tensor:
        """The results of `run` for all sets of tensors ``[sets, ...]``, by `torch.vmap`, or one by one if that fails."""
        if self.maps:
            try:
                with self.restored(), torch.no_grad(), sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
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
        """A sentence about an attribute that a second call in training mode changes, empty if there is none.

        Attributes that only the first call sets, such as a cache, do not count.
        """
        with self.restored(training=True), torch.no_grad():
            self.run(self.weights, x)
            between = Before(self.network, code=False)
            self.run(self.weights, x)
            changed = between.changed()
        return f"its forward changes the attribute {changed}" if changed else ""


@torch.inference_mode(False)
def observe(trial: Trial, x: Inputs, *, training: bool = False) -> tuple[Properties, Tensor]:
    """Find the properties of a network by running it on a few rows of x.

    Args:
        training: whether to find those in training mode, too, and require that all weights have a gradient.

    Returns:
        The properties, and the outputs at a few rows in evaluation mode.

    Raises:
        ValueError: the network runs neither on a few rows of x nor on all of them, does not return a single tensor with one
            row per example, draws random numbers, or changes its weights in place. In training mode also if it cannot run in
            this mode or uses parameters that are not registered in it, or a weight has no gradient.
    """
    trial.record(x)
    both = {name: torch.stack([value, trial.other[name]]) for name, value in trial.weights.items()}
    outputs = trial.each(lambda weights: trial.run(weights, trial.three), both)
    maps = trial.maps and close(outputs[1], trial.large.output)
    mixed = not close(outputs[0][trial.at], trial.small.output) and trial.mixes(trial.small)
    if maps and mixed:
        maps = close(outputs[0], trial(trial.three).output)
    properties = trial.properties(x, mixes=mixed, maps=maps)
    if training:
        properties = _in_training(trial, properties)
        unused = trial.small.unused
        if unused and not trial.whole:  # a forward may branch on x
            unused = trial(trial.rows(x, torch.arange(_SOUGHT) % num_rows(x)), gradients=True).unused
        if unused:
            raise ValueError(
                f"these weights have a prior but no gradient: {', '.join(unused)}. The network does not use them, uses a "
                "copy of them, detaches them, or uses them in steps (argmax, topk, a comparison, rounding). Remove a layer "
                "that is never called, fix its weights (requires_grad_(False)), or make the output depend on them smoothly"
            )
    return properties, trial.small.output


def _in_training(trial: Trial, properties: Properties) -> Properties:
    """Add the properties of the network in training mode; raises as `observe`."""
    try:
        with recomputation_refused(RECOMPUTES):
            small = trial.deterministic(training=True, gradients=True)
        failed = small.failed or trial.small.failed
        if failed is not None:
            raise failed
        others = {id(leaf) for leaf in small.others}
        if others & {id(leaf) for leaf in trial.small.others}:
            # one that is there in every call, unlike what a forward makes to differentiate by
            raise Unfit(
                "the network of a model must have all parameters that it uses, as nothing would train others; this one "
                "uses some that are not its own, such as those of a layer in a plain list, of another module, or in "
                "`output`: register them in the network, or fix them (requires_grad_(False))"
            )
        mixed = trial.mixes(small, training=True)
        changes = trial.changes(trial.two) if trial.changed else ""
    except Unfit:
        raise
    except Exception as error:
        raise ValueError(cannot_run(trial.two, error, doing="be trained")) from error
    return replace(properties, mixes_in_training=properties.mixes or mixed, changes=changes)


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


def _random_states() -> tuple[Any, ...]:
    states = [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ())]
    return outside_torch(), *(state.numpy().tobytes() for state in states)


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


def close(a: Tensor, b: Tensor, *, largest: float | None = None) -> bool:
    """Whether shapes are equal, and values up to rounding: ``|a - b| <= 1e-4 |b| + 1e-5 max |b|``. NaN equals NaN.

    Args:
        largest: the tolerance ``|a - b| <= largest max |b|`` instead.

    The error of a sum of K terms in float32 is about sqrt(K) u of their size, with u = 2^-24; that of L such sums in a row
    is sqrt(K L) u. It is 6e-6 for ten thousand terms, the bound for entries that cancel, and 6e-5 for a hundred such layers,
    the bound for any entry. Networks in float64 may compute in float32 somewhere, so the bounds are the same for all dtypes.
    """
    a, b = a.detach(), b.detach()  # a forward may compute gradients
    scale = float(b.nan_to_num(0.0, 0.0, 0.0).abs().max()) if b.numel() else 0.0
    each, of_largest = (1e-4, 1e-5) if largest is None else (0.0, largest)
    return a.shape == b.shape and torch.allclose(a, b, rtol=each, atol=of_largest * scale, equal_nan=True)


def signature(x: Inputs) -> tuple[Any, ...]:
    """Key of inputs with the same properties: structure, shape of one example, dtypes."""
    names = tuple(x) if isinstance(x, dict) else isinstance(x, tuple)
    return (names, *((tuple(part.shape[1:]), part.dtype) for part in parts(x)))


def _unlike_the_first(x: Inputs) -> Tensor:
    unlike = [
        (part[:_SOUGHT] != part[:1]).flatten(1).any(1) if part.dim() > 1 else part[:_SOUGHT] != part[0]
        for part in parts(x)
    ]
    return torch.stack(unlike).any(0).nonzero()[:, 0]


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
        constant = dist.Normal(value, torch.ones_like(value), validate_args=False).to_event(value.dim())
        self.of_weight: LazyDistribution = LazyDistribution(constant, self, name)

    def axis(self, other: _Probe) -> int | None:
        """The axis of the input of the weight's only use whose length is 2 here and 3 there.

        None for a weight that has several uses (tied, recurrent): noise per example would differ between them, so such a
        weight must be sampled as a whole.
        """
        two, three = (probe.shapes[0] if len(probe.shapes) == 1 else None for probe in (self, other))
        if two is None or three is None or len(two) != len(three):
            return None
        unlike = [axis for axis, (a, b) in enumerate(zip(two, three, strict=True)) if a != b]
        return unlike[0] if len(unlike) == 1 and (two[unlike[0]], three[unlike[0]]) == (2, 3) else None

    def push(self, q: Any, at: LinearMap) -> Tensor:
        y = at.f(at.x, q.base_dist.loc)
        if in_function_transform():
            self._differentiated()
        elif y.requires_grad:
            y.register_hook(self._differentiated)  # called within the forward, or after it by `Trial`
        self.rows.append(y.numel() // y.shape[at.outputs])
        self.shapes.append(at.x.shape)
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
