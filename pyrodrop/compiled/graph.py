"""The ELBO's terms and their gradient as one graph, traced once.

    (parameters, buffers, x, y, controls, constants, noise) -> ([nll, kl], gradients of the loss, buffers)

    loss = controls[0] nll + controls[1] kl(weights) + kl(hyperparameters)

Pyro runs its handlers at every step. Here they run once, and the tensor operations are recorded. Parameters are recognised
wherever Pyro, a module or a guide finds them. Every random number becomes an input of the graph, and so does every other
tensor that the trace meets (rates, precisions, prior scales, standardisations), so that the graph contains no values.
Results that depend only on such tensors are computed once; they are the constants. Buffers that a call updates (running
statistics) are inputs and outputs. The graph is a pure function.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NamedTuple

import torch
from pyro.infer import TraceEnum_ELBO
from torch import Tensor, fx

from pyrodrop.changes import put_back
from pyrodrop.compiled.against_pyro import Results, by_pyro, difference, size_of_terms
from pyrodrop.compiled.in_python import function_of_lines
from pyrodrop.compiled.noise import Noise, function_of, hoist, is_random
from pyrodrop.compiled.private_apis import costs_weighted, record, without_nan_warnings, without_validation
from pyrodrop.compiled.recorder import Recording, Value, recorded
from pyrodrop.compiled.script import script, scripts_as_they_are
from pyrodrop.compiled.simplify import SMALL, simplified
from pyrodrop.compiled.untraceable import Untraceable, first_line, users_line
from pyrodrop.compiled.writes import base_of, written_by
from pyrodrop.devices import drawn_outside_torch, outside_torch, seeded
from pyrodrop.recurrence import elementary
from pyrodrop.steps import Arguments, Buffers, Call, Objective, OfPyro

_log = logging.getLogger("pyrodrop")


class ReadNumbers(NamedTuple):
    """Whole numbers and truth values of arguments that a traced function has read.

    Attributes:
        values: the numbers that were read.
        of: function that computes the same numbers from other inputs of the traced function.
    """

    values: tuple[int, ...]
    of: Callable[..., Sequence[Tensor]]

    def now(self, inputs: Sequence[Tensor]) -> tuple[int, ...]:
        """The numbers for these inputs."""
        with torch.no_grad():
            return tuple([int(number) for number in self.of(*inputs)])


class Graph:
    """A traced function. Its inputs are those of the function, followed by constants and noise.

    Args:
        whole: the recorded operations; its inputs are those of the function and the tensors that the trace met.
        met: the tensors that the trace met, by node and by reference.
        noise_of: function that returns the `Noise` of each random input, in the order in which Pyro draws them, from values
            of the tensors that were met.
        read: the whole numbers of arguments for which the graph is valid; None if it has read none.

    Attributes:
        constants: values of the constants, computed from the tensors that were met; `refresh` computes them again.
        draws_itself: the operations by which a call draws further random numbers, whose distributions depend on parameters.
    """

    def __init__(
        self,
        whole: fx.Graph,
        met: Mapping[fx.Node, Tensor],
        noise_of: Callable[[Sequence[Tensor]], list[Noise]],
        read: ReadNumbers | None = None,
    ) -> None:
        self.read: ReadNumbers | None = read
        self.met: list[Tensor] = list(met.values())
        self.noise_of: Callable[[Sequence[Tensor]], list[Noise]] = noise_of
        self.graph: fx.Graph
        self.graph, once = simplified(whole, list(met))
        self.draws_itself: list[Any] = [node.target for node in self.graph.nodes if is_random(node)]
        self.once: Callable[..., Sequence[Tensor]] = as_program(once)
        self._seen = [_state(tensor) for tensor in self.met]
        self.constants: list[Tensor] = self.constants_of(self.met)
        self.noise: list[Noise] = noise_of(self.met)

    @functools.cached_property
    def module(self) -> fx.GraphModule:
        """The function, called operation by operation from Python."""
        return fx.GraphModule({}, self.graph)

    @functools.cached_property
    def program(self) -> Callable[..., Sequence[Tensor]]:
        """The function, called within `scripts_as_they_are`; the same operations as those of `module`."""
        return as_program(self.graph)

    def evaluate(self, *inputs: Tensor) -> Sequence[Tensor]:
        """The results for all inputs."""
        with torch.no_grad(), scripts_as_they_are():
            return self.program(*inputs)

    @functools.cached_property
    def text(self) -> str:
        """The operations of a call, as text that is equal for equal graphs."""
        return str(self.graph)

    @property
    def operations(self) -> list[fx.Node]:
        """The operations of a call."""
        return [node for node in self.graph.nodes if node.op == "call_function"]

    @property
    def entries(self) -> int:
        """The number of entries of the results of all operations."""
        return sum(node.meta["val"].numel() for node in self.operations if "val" in node.meta)

    def constants_of(self, met: Sequence[Tensor]) -> list[Tensor]:
        """The constants for other values of the tensors that were met."""
        with torch.no_grad(), scripts_as_they_are():
            return list(self.once(*met))

    def refresh(self) -> bool:
        """Recompute constants (in place) and noise if tensors that were met have changed. Returns whether they had."""
        now = [_state(tensor) for tensor in self.met]
        if all(
            version == before and torch.equal(a, b) for (version, a), (before, b) in zip(now, self._seen, strict=True)
        ):
            return False
        self._seen = now
        for old, new in zip(self.constants, self.constants_of(self.met), strict=True):
            if old.data_ptr() != new.data_ptr():  # else it is a tensor that was met, or a view of one
                _own_entries(old).copy_(_own_entries(new))
        self.noise = self.noise_of(self.met)
        return True

    @property
    def bytes(self) -> int:
        """The largest memory that the results of the operations of a call take at a time."""
        return peak(self.graph)

    def mapped(self, axes: Sequence[int | None]) -> Callable[..., Sequence[Tensor]]:
        """The function for many values of some inputs at once (`torch.vmap`), along these axes; None for one value."""
        loosen_views(self.module)
        return torch.vmap(lambda *inputs: tuple(self.module(*inputs)), in_dims=tuple(axes))  # type: ignore[no-any-return]

    def many(self, count: int, *inputs: Tensor, most_bytes: int) -> list[Tensor]:
        """The results of `count` calls, each with its own random numbers, ``[count, ...]``, in blocks of `most_bytes`.

        An operation that cannot be mapped raises any error.
        """
        fixed = [*inputs, *self.constants]
        if not self.noise:
            return [value.expand(count, *value.shape).clone() for value in self.module(*fixed)]
        mapped = self.mapped((*(None for _ in fixed), *(0 for _ in self.noise)))
        size, blocks = max(1, most_bytes // max(1, self.bytes)), []
        for first in range(0, count, size):
            noise = zip(*(self.draw() for _ in range(min(size, count - first))), strict=True)
            blocks.append(mapped(*fixed, *map(torch.stack, noise)))
        return [torch.cat(values) for values in zip(*blocks, strict=True)]

    def shapes(self) -> list[Tensor]:
        """Uninitialised tensors in the shapes of the random inputs."""
        return [noise.empty() for noise in self.noise]

    def draw(self) -> list[Tensor]:
        """Random numbers for one call, from torch's default generator, as Pyro would draw them."""
        return [noise.draw() for noise in self.noise]


def _state(tensor: Tensor) -> tuple[int, Tensor]:
    """The version of a tensor, and a copy if it is small, since `Tensor.data` changes values without a new version."""
    version = 0 if tensor.is_inference() else tensor._version
    return version, tensor.clone() if tensor.nbytes <= SMALL else tensor.new_empty(0)


def _own_entries(values: Tensor) -> Tensor:
    """The entries of a tensor in memory, without the repetitions of an expanded tensor."""
    sizes = [size if stride else min(size, 1) for size, stride in zip(values.shape, values.stride(), strict=True)]
    return values.as_strided(sizes, values.stride())


def as_program(graph: fx.Graph) -> Callable[..., Sequence[Tensor]]:
    """A graph as a function that is fast to call."""
    try:
        return script(graph)
    except Untraceable as error:
        _log.info("traced steps are called from Python, which is slower: %s", error)
        return function_of_lines(graph)


def trace(
    objective: Objective, parameters: Mapping[str, Tensor], batch: Arguments, moving: Buffers | None = None
) -> Graph:
    """Trace the gradient for minibatches in the shapes of `batch`. Model and guide do not change, even if it fails.

    Args:
        parameters: unconstrained parameters by name.
        moving: the buffers that a call updates, and the modules that must not change.

    Raises:
        Untraceable: model or guide does something that depends on the values of tensors, draws random numbers outside
            torch, updates tensors that are not buffers of a module, or the graph gives other numbers than Pyro; the loss is
            traced by `torch.jit`.
    """
    if objective.jitted:
        raise Untraceable("torch.jit traces the loss object itself")
    moving, leaves = moving or Buffers(), list(parameters.values())
    sizes = [len(leaves), len(moving), len(batch.tensors)]

    def gradient(*tensors: Tensor) -> list[Tensor]:
        given = iter(tensors)
        _, buffers, rows = ([next(given) for _ in range(size)] for size in sizes)  # Pyro finds the parameters by itself
        (controls,) = given
        with moving.replaced([buffer.clone() for buffer in buffers]) as moved, _whatever_the_values(objective):
            terms, gradients = objective.gradients(batch.filled(rows), controls, leaves)
            after = [buffer.detach() for buffer in moved()]
        return [terms, *gradients, *after]

    controls = torch.ones(2, dtype=leaves[0].dtype, device=leaves[0].device)
    rows = range(sum(sizes[:2]), sum(sizes)) if isinstance(batch, Call) else ()
    graph = pure(gradient, [*leaves, *moving.tensors(), *batch.tensors, controls], moving.parts, rows)
    with put_back():
        unlike = differs_from_pyro(graph, objective, parameters, batch, moving)
    if unlike:
        raise Untraceable(
            "its trace gives other numbers than Pyro does: something changes between calls that is no tensor"
        )
    return graph


def _whatever_the_values(objective: Objective) -> AbstractContextManager[Any]:
    """Let a loss object of Pyro make the same operations within the block for all values of tensors."""
    block = ExitStack()
    if isinstance(objective, OfPyro):
        block.enter_context(without_nan_warnings())
        if isinstance(objective.loss, TraceEnum_ELBO):
            block.enter_context(costs_weighted())
    return block


def differs_from_pyro(
    graph: Graph, objective: Objective, parameters: Mapping[str, Tensor], batch: Arguments, moving: Buffers
) -> str:
    """The first result of a graph that differs from Pyro's for the same random numbers, as `difference`; empty if none does.

    Compared are the loss, all gradients and the buffers, for up to three seeds: rounding may carry a value over the kink of
    a ReLU or a tie of a maximum, but not at the same place for other noise, while a wrong graph stays wrong.

    Raises:
        Untraceable: the graph cannot be replayed.
    """
    leaves, unlike, size = list(parameters.values()), "", 0.0
    for seed in (1, 2, 3):
        wanted = by_pyro(objective, leaves, batch, moving, seed)
        controls = torch.ones(2, dtype=leaves[0].dtype, device=leaves[0].device)
        inputs = [*(leaf.detach() for leaf in leaves), *moving.tensors(), *batch.tensors, controls]
        with seeded(seed, batch.device):
            try:
                terms, *results = graph.evaluate(*inputs, *graph.constants, *graph.draw())
            except Exception as error:  # such as a gradient that needs something a trace does not have
                raise Untraceable(f"its trace cannot be replayed: {first_line(error)}") from error
        found = Results(terms, results[: len(leaves)], results[len(leaves) :])
        unlike = difference(wanted, found, list(parameters), size)
        if unlike == "the loss" and not size:
            size = size_of_terms(objective, batch)
            unlike = difference(wanted, found, list(parameters), size)
        if not unlike:
            break
    return unlike


def pure(
    function: Callable[..., list[Tensor]],
    inputs: Sequence[Tensor],
    parts: Sequence[Any] = (),
    arguments: Collection[int] = (),
) -> Graph:
    """Record a function of tensors as a graph, of which tensors that the function meets and random numbers are inputs.

    Args:
        function: called once with tensors whose values it cannot read, and again if it seems to draw outside torch.
        inputs: tensors of the shapes, dtypes and devices to record for.
        parts: the modules whose buffers and attributes must not change.
        arguments: the positions of the inputs of which the function may read whole numbers: see `Graph.read`.

    Raises:
        Untraceable: the function does something that depends on the values of tensors, draws random numbers outside torch,
            or changes a tensor in place that is not an input.
    """
    outside = outside_torch()
    devices = list({tensor.device for tensor in inputs if tensor.is_cuda})
    with without_validation(), torch.random.fork_rng(devices), put_back(*parts) as look:
        try:
            with elementary():
                recording = recorded(function, inputs, arguments)
            drawn = drawn_outside_torch(outside, lambda: function(*(tensor.clone() for tensor in inputs)))
        except Exception as error:  # whatever a user's model raises when its tensors have no values
            raise Untraceable(f"it cannot be traced: {first_line(error)}{users_line(error)}") from error
    if look.replaced:
        raise Untraceable(f"a call replaces the parameter {look.replaced[0]} in Pyro's store")
    if drawn:
        raise Untraceable("it draws random numbers outside torch, which a trace would freeze")
    return _purify(recording)


def _purify(recording: Recording) -> Graph:
    """Turn random numbers into inputs."""
    graph, read = recording.graph, _read_numbers(recording)
    _refuse_writes(graph, set(recording.inputs), set(recording.constants))
    if any(node.target is torch.ops.aten.mkldnn_rnn_layer.default for node in graph.nodes):
        raise Untraceable("nn.LSTM runs a kernel on this processor whose gradient cannot be replayed")
    noise_of = hoist(graph, [*recording.inputs, *recording.constants][-1], recording.constants)
    graph.eliminate_dead_code()
    return Graph(graph, dict(zip(recording.constants, recording.met, strict=True)), noise_of, read)


def _read_numbers(recording: Recording) -> ReadNumbers | None:
    """The numbers that a recording has read, as a function of its inputs."""
    if not recording.read:
        return None
    function = function_of([node for node, _ in recording.read], recording.inputs)
    assert function is not None
    return ReadNumbers(tuple(int(number) for _, number in recording.read), function)


def make_flat(module: fx.GraphModule) -> None:
    """Give a module of `record` a flat list of inputs and of outputs, by copying only the operations of its graph."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    module.graph = graph


def _refuse_writes(graph: fx.Graph, inputs: set[fx.Node], constants: set[fx.Node]) -> None:
    """Raise `Untraceable` if the graph writes to an argument or a constant, which is not part of the state of a training."""
    for node in graph.nodes:
        bases = {base_of(written) for written in written_by(node)}
        if bases & inputs:
            raise Untraceable(f"it changes an argument in place, by {node.target}")
        if bases & constants:
            raise Untraceable(
                f"it changes a tensor in place, by {node.target}, that is no buffer of a module and that a trace would "
                "lose; register it with register_buffer"
            )


def record_function(function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> fx.GraphModule:
    """A function of tensors, which may call programs mapped over many values, as one graph.

    Raises:
        Untraceable: an operation cannot be recorded, or not be mapped.
    """
    try:
        return record(function, inputs)
    except Exception as error:  # whatever such an operation raises
        raise Untraceable(f"it cannot be recorded: {first_line(error)}") from error


def loosen_views(module: fx.GraphModule) -> None:
    """Turn views into reshapes, which may copy: with an axis of replicates the strides differ from those of the trace."""
    graph = module.graph
    written = {base_of(node) for each in graph.nodes for node in written_by(each)}
    for view in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default):
        for node in graph.find_nodes(op="call_function", target=view):
            if base_of(node) not in written:
                node.target = torch.ops.aten.reshape.default
    module.recompile()


def peak(graph: fx.Graph) -> int:
    """The largest number of bytes that the results of the graph's operations take at a time."""
    last = {used: node for node in graph.nodes for used in node.all_input_nodes}
    live = peak = 0
    ends: dict[fx.Node, list[fx.Node]] = {}
    for used, node in last.items():
        ends.setdefault(node, []).append(used)
    for node in graph.nodes:
        live += _bytes(node)
        peak = max(peak, live)
        live -= sum(_bytes(used) for used in ends.get(node, []))
    return peak


def _bytes(node: fx.Node) -> int:
    value = node.meta.get("val")
    return value.nbytes if isinstance(value, Value) else 0
