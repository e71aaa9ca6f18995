"""Find the dropout calls of a network by running it.

The network runs on two and on three examples, within `DropoutCalls`, which intercepts every call that drops units. An axis
of a mask that has 2 entries in one run and 3 in the other indexes examples; an axis with 2 r and 3 r entries merges examples
with r rows each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from pyrodrop.devices import seeded
from pyrodrop.inputs import Inputs, mapped, num_rows, tensors_in
from pyrodrop.module_states import STAYS, undisturbed
from pyrodrop.networks.call import Output, Unfit, call
from pyrodrop.networks.checks import first_line, wrong_inputs
from pyrodrop.networks.dropout_calls import DropoutCall, DropoutCalls
from pyrodrop.networks.dropouts import Layout
from pyrodrop.networks.noise import random_module
from pyrodrop.networks.observe import check_output, close, few_rows
from pyrodrop.private_apis import intercepted

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


@dataclass(frozen=True)
class Found:
    """One call that drops units.

    Attributes:
        module: name of the module that makes the call; empty for the network itself.
        kind, drop_rate: kind and drop rate of the call.
        shape: shape of a mask that all examples share.
        layout: which axis of the call's own mask indexes examples, and how.
        when: position of the call in the sequence of the network's operations.
        scales: whether the call multiplies its input by the mask divided by the keep rate.
    """

    module: str
    kind: str
    drop_rate: float
    shape: torch.Size
    layout: Layout
    when: int
    scales: bool


class Trial:
    """A network with fixed parameters, which can be run with and without masks.

    Args:
        network: the network; only the modes of its modules change during a run.
        output: function that selects a tensor from the network's output; None if the output is a tensor.
    """

    def __init__(
        self,
        network: nn.Module,
        values: Mapping[str, Tensor],
        names: Mapping[str, tuple[str, ...]],
        x: Inputs,
        output: Output | None = None,
    ) -> None:
        self.network: nn.Module = network
        self.values: dict[str, Tensor] = dict(values)
        self.names: dict[str, tuple[str, ...]] = dict(names)
        self.x: Inputs = x
        self.output: Output | None = output
        self.attends: bool = any(isinstance(module, nn.MultiheadAttention) for module in network.modules())

    def __call__(
        self,
        masks: Sequence[Tensor | None] | None = None,
        *,
        values: Mapping[str, Tensor] | None = None,
        x: Inputs | None = None,
    ) -> Tensor:
        """The output with these masks, in the order of the calls; a call without a mask drops nothing."""
        given = iter(masks or ())
        with DropoutCalls(lambda _: next(given, None)):
            return self.plain(values=values, x=x)

    def plain(self, *, values: Mapping[str, Tensor] | None = None, x: Inputs | None = None) -> Tensor:
        """The output without intercepting dropout calls."""
        with undisturbed(self.network), torch.no_grad():
            weights = self.values if values is None else {**self.values, **values}
            given = self.x if x is None else x
            return call(self.network, weights, self.names, given, self.output, attends=self.attends)

    def in_double_precision(self) -> Trial:
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
        return Trial(self.network, values, names, x, self.output)


def find_dropouts(trial: Trial) -> tuple[list[Found], dict[str, list[int]]]:
    """Every call of the network that drops units, and when the network uses each parameter.

    Afterwards, as few modules as these calls require are in training mode, and all others in evaluation mode.

    Raises:
        ValueError: the network cannot be run on its inputs, or drops units in another way for another number of examples.
    """
    network = trial.network
    for module in network.modules():
        if isinstance(module, _NORMS):
            module.training = False
    whole = False
    try:
        two, three = few_rows(trial.x)
        small = _watch(trial, two)
        check_output(small.output, 2)
    except Unfit:
        raise
    except Exception as error:  # of any type: the network may need all rows
        whole, two = True, trial.x
        try:
            small = _watch(trial, two)
        except Exception:
            raise ValueError(_cannot_run(trial.x, error)) from error
        check_output(small.output, num_rows(two))
    with seeded(0, next(iter(trial.values.values())).device):
        _, culprit = random_module(network, lambda: trial(x=two))  # in training mode, before `_keep_modes`
    if culprit is not None:
        raise ValueError(
            f"the network draws random numbers that are not masks of dropout{culprit}: put "
            "that module in evaluation mode, or draw masks by torch.bernoulli with one rate"
        )
    _keep_modes(network, small, lambda: _watch(trial, two))
    small = _watch(trial, two)
    if whole:
        return [_found(seen, Layout(None)) for seen in small.calls], small.uses
    large = _watch(trial, three)
    check_output(large.output, 3)
    if [seen.what for seen in small.calls] != [seen.what for seen in large.calls]:
        raise ValueError(
            "the network drops units in other places for three examples than for two, so its dropout cannot be read: "
            f"{_list(small)} and {_list(large)}"
        )
    if not close(large.output[:2], small.output):  # examples affect each other, so masks are for all of x
        run = _watch(trial, trial.x)
        return [_found(seen, Layout(None)) for seen in run.calls], run.uses
    other = _watch(trial, mapped(lambda part: part[[0, 1, 0]], three))
    calls = [_found(s, _layout(s, m, o)) for s, m, o in zip(small.calls, large.calls, other.calls, strict=True)]
    return calls, small.uses


def _found(seen: _Seen, layout: Layout) -> Found:
    shape = seen.call.shape if layout.axis is None else layout.per_draw(seen.call.shape, 2)
    return Found(seen.module, seen.call.kind, seen.call.drop_rate, shape, layout, seen.when, seen.call.scales)


def _layout(two: _Seen, three: _Seen, other: _Seen) -> Layout:
    """Which axis of a mask indexes examples, and in which order.

    Args:
        two, three: the call in the runs with two and with three examples.
        other: the call with the third of three examples replaced.
    """
    a, b = two.call.shape, three.call.shape
    if len(a) != len(b) or two.call.merged:
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
    if three.call.input is None or other.call.input is None:
        return Layout(axis, None)
    differs = (three.call.input != other.call.input).movedim(axis, 0).flatten(1).any(1).nonzero()[:, 0].tolist()
    consecutive = {i // rows == 2 for i in differs} == {True}
    interleaved = {i % 3 == 2 for i in differs} == {True}
    if consecutive == interleaved:
        return Layout(axis, None)
    return Layout(axis, "examples" if consecutive else "rows")


@dataclass(frozen=True)
class _Seen:
    module: str
    call: DropoutCall
    when: int

    @property
    def what(self) -> tuple[str, str, float]:
        return self.module, self.call.kind, self.call.drop_rate


@dataclass
class _Run:
    """One run of the network: its output, its calls, the modules that make them, and when it uses each parameter."""

    output: Any
    calls: list[_Seen]
    callers: list[tuple[nn.Module, ...]]
    uses: dict[str, list[int]]


def _watch(trial: Trial, x: Inputs) -> _Run:
    uses = _Uses(trial.values)
    calls: list[_Seen] = []
    callers: list[tuple[nn.Module, ...]] = []
    with _stack(trial.network) as stack:

        def answer(call: DropoutCall) -> None:
            names, modules = zip(*stack, strict=True)
            kept = None if call.input is None else call.input.detach().clone()
            calls.append(_Seen(names[-1], replace(call, input=kept, like=call.like.new_empty(0)), uses.clock))
            callers.append(modules)

        with uses, DropoutCalls(answer):
            output = trial.plain(x=x)
    return _Run(output, calls, callers, uses.times)


class _Uses(TorchFunctionMode):
    """Counts operations, and records at which of them each parameter is an argument."""

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.clock = 0
        self.times: dict[str, list[int]] = {name: [] for name in values}
        self._names = {id(value): name for name, value in values.items()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.clock += 1
        for tensor in tensors_in((args, kwargs)):
            name = self._names.get(id(tensor))
            if name is not None:
                self.times[name].append(self.clock)
        return func(*args, **(kwargs or {}))


@contextmanager
def _stack(network: nn.Module) -> Iterator[list[tuple[str, nn.Module]]]:
    """The modules that are running, with their names, innermost last."""
    stack: list[tuple[str, nn.Module]] = []
    handles: list[Any] = []
    for name, module in network.named_modules():
        handles.append(module.register_forward_pre_hook(lambda module, _, name=name: stack.append((name, module))))
        handles.append(module.register_forward_hook(lambda *_: stack.pop() and None, always_call=True))
    try:
        yield stack
    finally:
        for handle in handles:
            handle.remove()


def _keep_modes(network: nn.Module, before: _Run, again: Any) -> None:
    """Leave as few modules as possible in training mode: those that drop units, or those and the modules around them."""
    modes = {module: module.training for module in network.modules()}
    innermost = {stack[-1] for stack in before.callers}
    around = {module for stack in before.callers for module in stack}
    for chosen in (innermost, around, set(modes)):
        for module, mode in modes.items():
            module.training = mode and module in chosen
        if [seen.what for seen in again().calls] == [seen.what for seen in before.calls]:
            break
    for module in network.modules():
        if module.training:
            module.__dict__[STAYS] = True


def _cannot_run(x: Inputs, error: Exception) -> str:
    text = first_line(error)
    said = isinstance(error, ValueError) and text.startswith(("the network", "a posterior"))
    return text if said else wrong_inputs(x, error)


def _list(run: _Run) -> str:
    return ", ".join(seen.module or "the network itself" for seen in run.calls) or "nowhere"


def masks_of_a_pass(trial: Trial) -> tuple[Tensor, list[Tensor]]:
    """The output of one pass in training mode, and the masks that PyTorch itself drew, in order.

    It intercepts PyTorch's elementary (ATen) operations, of which one random operation draws each mask. As it does not use
    `DropoutCalls`, it serves as a test of them on the user's network. The caller's random state does not change.
    """
    devices = {value.device for value in trial.values.values() if value.is_cuda}
    with torch.random.fork_rng(list(devices)), bernoulli_results() as masks, sdpa_kernel(SDPBackend.MATH):
        torch.manual_seed(0)
        with torch.backends.cudnn.flags(enabled=False):  # whose recurrent layers draw masks inside
            output = trial.plain()
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
