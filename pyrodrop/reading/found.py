"""Find the dropout calls of a network by running it.

The network runs on two and on three examples, within `DropoutCalls`, which intercepts every call that drops units. An axis
of a mask that has 2 entries in one run and 3 in the other indexes examples; an axis with 2 r and 3 r entries merges examples
with r rows each, whose order a run on three examples with another third one shows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from pyrodrop.devices import seeded
from pyrodrop.inputs import Inputs, mapped, tensors_in
from pyrodrop.networks.call import Output, Unfit, call
from pyrodrop.networks.dropout_calls import DropoutCall, DropoutCalls
from pyrodrop.networks.dropouts import Dropout, Layout
from pyrodrop.networks.trial import (
    Look,
    Properties,
    Trial,
    close,
    mixes,
    on_few_or_all,
    properties_of,
    random_module,
    running,
)
from pyrodrop.private_apis import intercepted
from pyrodrop.reparam.lazy import LazyWeight

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


@dataclass(frozen=True)
class Found:
    """The calls of a network that drop units, in order.

    Attributes:
        dropouts: the calls, as if no weight carried their masks.
        times: position of every call in the sequence of the network's operations.
        uses: positions of the operations that use a weight, by its name.
        properties: properties of the network in the modes that `Passes.stays` has now.
    """

    dropouts: list[Dropout]
    times: list[int]
    uses: dict[str, list[int]]
    properties: Properties


class Passes(Trial):
    """Calls of a network that drops units.

    Args:
        values, names: values of all parameters by first name, and all of their names.
        sites: names of the parameters that have a prior.
        x: the inputs, in the dtype of the parameters.
        output: function that selects a tensor from the network's output; None if the output is a tensor.
    """

    def __init__(
        self,
        network: nn.Module,
        values: Mapping[str, Tensor],
        names: Mapping[str, tuple[str, ...]],
        sites: Sequence[str],
        x: Inputs,
        output: Output | None = None,
    ) -> None:
        attends, recurs = (
            any(isinstance(m, kind) for m in network.modules()) for kind in (nn.MultiheadAttention, nn.RNNBase)
        )

        def run(weights: Mapping[str, Tensor], x: Inputs) -> Tensor:
            return call(network, {**values, **weights}, names, x, output, attends=attends, recurs=recurs)

        super().__init__(network, run, {name: values[name] for name in sites})
        self.values, self.names, self.x, self.output = dict(values), dict(names), x, output

    def masked(self, sets: Sequence[tuple[Sequence[Tensor | None], Mapping[str, Tensor]]]) -> Tensor:
        """The outputs ``[sets, N, ...]`` for several sets of masks, in the order of the calls, and of values of parameters.

        A call whose mask is None in all sets drops nothing, and parameters that no set has keep their value.
        """
        names = {name for _, values in sets for name in values}
        tensors = {name: torch.stack([values.get(name, self.values[name]) for _, values in sets]) for name in names}
        of_calls = dict(enumerate(zip(*(masks for masks, _ in sets), strict=True)))
        tensors |= {f"mask {number}": torch.stack(masks) for number, masks in of_calls.items() if masks[0] is not None}

        def run(tensors: Mapping[str, Tensor]) -> Tensor:
            masks = iter([tensors.get(f"mask {number}") for number in of_calls])
            with DropoutCalls(lambda _: next(masks, None)):
                return self.run({name: tensors[name] for name in names}, self.x)

        return self.each(run, tensors)

    def in_double_precision(self) -> Passes:
        """The same network in float64, with weights that are perturbed a little, so that no layer is exactly 0."""
        generator = torch.Generator().manual_seed(0)

        def changed(value: Tensor) -> Tensor:
            noise = torch.randn(value.shape, generator=generator, dtype=torch.float32).to(value.device)
            exact = value.detach().to(torch.float64, copy=True)
            size = float(exact.norm()) / math.sqrt(exact.numel()) or 1 / math.sqrt(max(1, value[0].numel()))
            return exact.add_(noise, alpha=0.3 * size)

        values = {name: changed(value) for name, value in self.values.items()}
        names = dict(self.names)
        for name, buffer in self.network.named_buffers(remove_duplicate=False):
            if buffer.is_floating_point() and name not in names:
                values[name], names[name] = buffer.detach().double(), (name,)
        x = mapped(lambda part: part.double() if part.is_floating_point() else part, self.x)
        exact = Passes(self.network, values, names, list(self.weights), x, self.output)
        exact.stays, exact.maps = self.stays, self.maps
        return exact


class _Watch(DropoutCalls):
    """Records the calls that drop units, which drop nothing, and the operations that use weights.

    Attributes:
        calls: each with the modules that make it, innermost first, and the number of operations before.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__(self._record)
        self.calls: list[tuple[DropoutCall, list[tuple[str, nn.Module]], int]] = []
        self.inputs: list[Tensor | None] = []
        self.uses: dict[str, list[int]] = {}
        self._network, self._clock = network, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._clock += 1
        for tensor in tensors_in((args, kwargs)):
            if isinstance(tensor, LazyWeight):
                self.uses.setdefault(tensor.distribution.name, []).append(self._clock)
        return super().__torch_function__(func, types, args, kwargs)

    def _record(self, call: DropoutCall) -> None:
        self.calls.append((call, running(self._network), self._clock))
        lazy = call.input is None or isinstance(call.input, LazyWeight)
        self.inputs.append(None if lazy else call.input.clone())  # type: ignore[union-attr]

    @property
    def places(self) -> list[tuple[str, str, float]]:
        """Name of the module, kind and drop rate of every call."""
        return [(modules[0][0], call.kind, call.drop_rate) for call, modules, _ in self.calls]


def find_dropouts(passes: Passes) -> Found:
    """Every call of the network that drops units, and when the network uses each weight.

    Afterwards, ``passes.stays`` has as few modules as these calls require to be in training mode.

    Raises:
        ValueError: the network cannot be run on its inputs, or drops units in another way for another number of examples.
    """
    network = passes.network
    passes.stays = {module for module in network.modules() if module.training and not isinstance(module, _NORMS)}

    def watched(rows: Inputs, look: Callable[[Inputs], Look] = passes.look) -> tuple[Look, _Watch]:
        with _Watch(network) as watch:
            return look(rows), watch

    def first_and_last(two: Inputs, three: Inputs, *look: Any) -> tuple[tuple[Look, _Watch], tuple[Look, _Watch]]:
        """Runs in all modes, which must draw nothing but masks, and in those that the calls require."""
        first, culprit = random_module(network, lambda: watched(two, *look))
        if culprit is not None:
            raise Unfit(
                f"the network draws random numbers that are not masks of dropout{culprit}: put "
                "that module in evaluation mode, or draw masks by torch.bernoulli with one rate"
            )
        modes, callers = passes.stays, [[module for _, module in modules] for _, modules, _ in first[1].calls]
        for stays in ({modules[0] for modules in callers}, {m for modules in callers for m in modules}, modes):
            passes.stays = modes & stays
            last = watched(three, *look)
            if first[1].places == last[1].places:
                return first, last
        raise Unfit(
            "the network drops units in other places for three examples than for two, so its dropout cannot be read: "
            f"{_list(first[1])} and {_list(last[1])}"
        )

    def few(two: Inputs, three: Inputs) -> Found:
        (small, watch), (large, other) = first_and_last(two, three)
        if not close(large.output[:2], small.output):
            small, watch = watched(two)
        mixed = mixes(small.output, large.output, lambda: watched(two)[0].output)
        properties = properties_of(passes, passes.x, small, large, mixes=mixed, maps=True)
        if mixed:  # masks are for all of x
            watch = watched(passes.x)[1]
            return _found(watch, [Layout(None)] * len(watch.calls), properties)
        permuted = functools.cache(lambda: watched(mapped(lambda part: part[[0, 1, 0]], three))[1].inputs)
        layouts = [
            _layout(a, b, lambda number=number: (other.inputs[number], permuted()[number]))  # type: ignore[misc]
            for number, ((a, *_), (b, *_)) in enumerate(zip(watch.calls, other.calls, strict=True))
        ]
        return _found(watch, layouts, properties)

    def whole(rows: Inputs) -> Found:
        _, (look, watch) = first_and_last(rows, rows, lambda rows: Look(passes(rows), {}))
        properties = properties_of(passes, rows, look, None, mixes=True, maps=True)
        return _found(watch, [Layout(None)] * len(watch.calls), properties)

    with seeded(0, next(iter(passes.values.values())).device):
        return on_few_or_all(passes, passes.x, few, whole)


def _found(watch: _Watch, layouts: Sequence[Layout], properties: Properties) -> Found:
    """The calls of a run, of two examples where an axis indexes them; a number tells calls of one module apart."""
    names = [place[0] or "forward" for place in watch.places]
    dropouts = []
    for number, ((made, *_), layout, name) in enumerate(zip(watch.calls, layouts, names, strict=True)):
        which = f" {names[:number].count(name) + 1}" if names.count(name) > 1 else ""
        shape = layout.per_draw(made.shape, 2)
        dropouts.append(Dropout(f"dropout {name}{which}", made.kind, made.drop_rate, shape, layout))
    return Found(dropouts, [time for *_, time in watch.calls], watch.uses, properties)


def _layout(two: DropoutCall, three: DropoutCall, inputs: Callable[[], Sequence[Tensor | None]]) -> Layout:
    """Which axis of a mask indexes examples, and in which order.

    Args:
        two, three: the call in the runs with two and with three examples.
        inputs: the inputs of the call with three examples, and with the third of them replaced.
    """
    a, b = two.shape, three.shape
    if len(a) != len(b) or two.merged:
        return Layout(0, None)
    axes = [axis for axis in range(len(a)) if a[axis] != b[axis]]
    if not axes:
        return Layout(None)
    axis = axes[0]
    if len(axes) > 1 or 3 * a[axis] != 2 * b[axis]:
        return Layout(axis, None)
    rows = a[axis] // 2
    if rows == 1:
        return Layout(axis)
    x, other = inputs()
    if x is None or other is None:
        return Layout(axis, None)
    differs = (x != other).movedim(axis, 0).flatten(1).any(1).nonzero()[:, 0].tolist()
    consecutive = {i // rows == 2 for i in differs} == {True}
    interleaved = {i % 3 == 2 for i in differs} == {True}
    if consecutive == interleaved:
        return Layout(axis, None)
    return Layout(axis, "examples" if consecutive else "rows")


def _list(watch: _Watch) -> str:
    return ", ".join(name or "the network itself" for name, *_ in watch.places) or "nowhere"


def masks_of_a_pass(passes: Passes) -> tuple[Tensor, list[Tensor]]:
    """The output of one pass in training mode, and the masks that PyTorch itself drew, in order.

    It intercepts PyTorch's elementary (ATen) operations, of which one random operation draws each mask. As it does not use
    `DropoutCalls`, it serves as a test of them on the user's network. The caller's random state does not change.
    """
    devices = {value.device for value in passes.values.values() if value.is_cuda}
    with torch.random.fork_rng(list(devices)), bernoulli_results() as masks, sdpa_kernel(SDPBackend.MATH):
        torch.manual_seed(0)
        with torch.backends.cudnn.flags(enabled=False):  # whose recurrent layers draw masks inside
            output = passes(passes.x)
    return output, masks


@contextmanager
def bernoulli_results() -> Iterator[list[Tensor]]:
    """Copies of all Bernoulli masks that PyTorch draws within the block, in order, by any function.

    Uniform numbers that are rounded or compared also count as masks. For comparisons, the less probable result is 0.
    """
    results: list[Tensor] = []
    aten: Any = torch.ops.aten
    uniform: dict[int, Tensor] = {}  # kept, so that no other tensor gets the same id
    below, above = (aten.lt, aten.le), (aten.gt, aten.ge)

    def watch(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = func(*args, **kwargs)
        packet = getattr(func, "overloadpacket", None)
        if packet in (aten.bernoulli, aten.bernoulli_):
            results.append(result.clone())
        elif packet is aten.native_dropout:
            results.append(result[1].to(result[0].dtype))
        elif packet in (aten.rand, aten.rand_like):
            uniform[id(result)] = result
        elif args and id(args[0]) in uniform:
            if packet in (aten.floor, aten.floor_):
                results.append(result.clone())
            elif packet in (*below, *above):
                mask = result.to(args[0].dtype)
                results.append(mask if (args[1] >= 0.5) == (packet in below) else 1 - mask)
            else:
                uniform[id(result)] = result
        return result

    with intercepted(watch):
        yield results
