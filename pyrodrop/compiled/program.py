"""A function of tensors as a program: a graph that is recorded once, with what it reads and draws.

    (*inputs, *constants, *noise) -> results

Every random number becomes an input of the graph, and so does every other tensor that the recording meets (rates,
precisions, prior scales, standardisations), so that the graph contains no values. Results that depend only on such tensors
are computed once; they are the constants. A `Noise` draws a random number with the operation of the recorded function, in
the same order, so the same seed gives the same numbers; noise whose distribution depends on inputs stays in the graph.

A graph is simplified, with bitwise the same results:

    an operation that returns its argument unchanged     is replaced by the argument
    a value that is computed twice                       is computed once
    a small value that depends only on constants         moves into a separate graph, which is run once for many calls

No arithmetic is changed: x + 0 stays, and so does the order of every sum. Operations that draw random numbers, or share
memory with a tensor that the graph writes to, are not changed. A graph runs in TorchScript's interpreter, or where that
lacks an operation, as the code that `torch.fx` generates.
"""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from pyrodrop.changes import put_back
from pyrodrop.checks import first_line
from pyrodrop.compiled.record import (
    Untraceable,
    Value,
    base_of,
    is_random,
    recorded,
    users_line,
    written_by,
)
from pyrodrop.devices import has_drawn, outside_torch
from pyrodrop.distributions.coins import fill_stacked
from pyrodrop.private_apis import script, scripts_as_they_are, without_validation

_log = logging.getLogger("pyrodrop")

_A: Any = torch.ops.aten
NOISE = "noise_"  # prefix of the names of random inputs
_SAME = {_A.detach.default, _A.alias.default, _A.lift_fresh_copy.default, _A._to_copy.default, _A.clone.default}
_VIEWS = {
    _A.expand.default,
    _A.view.default,
    _A.reshape.default,
    _A._unsafe_view.default,
    _A.slice.Tensor,
    _A.t.default,
}
SMALL = 2**16  # bytes of a constant
_LIKE = {_A.ones_like.default: 1, _A.zeros_like.default: 0}


class Program:
    """A recorded function. Its inputs are the function's, followed by constants and noise.

    Args:
        whole: the recorded operations; its inputs are those of the function and the tensors that the recording met.
        met: the tensors that the recording met, by node and by reference.
        noise_of: function that returns the `Noise` of each random input, in the order in which Pyro draws them, from values
            of the tensors that were met.

    Attributes:
        constants: values of the constants, computed from the tensors that were met; `refresh` computes them again.
        draws_itself: the operations by which a call draws further random numbers, whose distributions depend on parameters.
    """

    def __init__(
        self,
        whole: fx.Graph,
        met: Mapping[fx.Node, Tensor],
        noise_of: Callable[[Sequence[Tensor]], list[Noise]] = lambda _: [],
    ) -> None:
        self.met: list[Tensor] = list(met.values())
        self.noise_of: Callable[[Sequence[Tensor]], list[Noise]] = noise_of
        self.graph: fx.Graph
        self.graph, once = simplified(whole, list(met))
        self.draws_itself: list[Any] = [node.target for node in self.graph.nodes if is_random(node)]
        self.once: Callable[..., Sequence[Tensor]] = _as_function(once)
        self._seen = list(map(_Seen, self.met))
        self.constants: list[Tensor] = self.constants_of(self.met)
        self.noise: list[Noise] = noise_of(self.met)

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        """The results for these inputs and new random numbers."""
        return self.evaluate(*inputs, *self.constants, *self.draw())

    def evaluate(self, *inputs: Tensor) -> Sequence[Tensor]:
        """The results for all inputs."""
        with torch.no_grad(), scripts_as_they_are():
            return self.run(*inputs)

    @functools.cached_property
    def module(self) -> Callable[..., Any]:
        """The function, called operation by operation from Python, with views that may copy (`_loosen_views`)."""
        module = fx.GraphModule({}, copy.deepcopy(self.graph))
        loosen_views(module)
        return module

    @functools.cached_property
    def run(self) -> Callable[..., Sequence[Tensor]]:
        """The function, called within `scripts_as_they_are`; the same operations as those of `module`."""
        return _as_function(self.graph)

    @functools.cached_property
    def text(self) -> str:
        """The operations of a call, as text that is equal for equal graphs."""
        return str(self.graph)

    @functools.cached_property
    def operations(self) -> int:
        """The number of operations of a call."""
        return sum(node.op == "call_function" for node in self.graph.nodes)

    @functools.cached_property
    def entries(self) -> int:
        """The number of entries of the results of all operations."""
        return sum(node.meta["val"].numel() for node in self.graph.nodes if _bytes(node) and node.op == "call_function")

    @property
    def bytes(self) -> int:
        """The largest memory that the results of the operations of a call take at a time."""
        ends = {used: node for node in self.graph.nodes for used in node.all_input_nodes}
        live = peak = 0
        for node in self.graph.nodes:
            live += _bytes(node)
            peak = max(peak, live)
            live -= sum(_bytes(used) for used in node.all_input_nodes if ends[used] is node)
        return peak

    def constants_of(self, met: Sequence[Tensor]) -> list[Tensor]:
        """The constants for other values of the tensors that were met."""
        with torch.no_grad(), scripts_as_they_are():
            return list(self.once(*met))

    def refresh(self) -> bool:
        """Recompute constants and noise if tensors that were met have changed. Returns whether they had."""
        if not any([seen.changed() for seen in self._seen]):  # noqa: C419  a list is faster
            return False
        self._seen = list(map(_Seen, self.met))
        self.constants, self.noise = self.constants_of(self.met), self.noise_of(self.met)
        return True

    def mapped(self, axes: Sequence[int | None]) -> Callable[..., Sequence[Tensor]]:
        """The function for many values of some inputs at once (`torch.vmap`), along these axes; None for one value."""
        return torch.vmap(lambda *inputs: tuple(self.module(*inputs)), in_dims=tuple(axes))  # type: ignore[no-any-return]

    def many(self, count: int, *inputs: Tensor, most_bytes: int) -> list[Tensor]:
        """The results of `count` calls, each with its own random numbers, ``[count, ...]``, in blocks of `most_bytes`.

        An operation that cannot be mapped raises any error.

        Args:
            inputs: of all calls, ``[count, ...]``.
        """
        axes = *(0 for _ in inputs), *(None for _ in self.constants), *(0 for _ in self.noise)
        mapped, size, blocks = self.mapped(axes), max(1, most_bytes // max(1, self.bytes)), []
        for first in range(0, count, size):
            rows = slice(first, min(first + size, count))
            noise = zip(*(self.draw() for _ in range(rows.stop - first)), strict=True)
            blocks.append(mapped(*(one[rows] for one in inputs), *self.constants, *map(torch.stack, noise)))
        return [torch.cat(values) for values in zip(*blocks, strict=True)]

    @property
    def is_random(self) -> bool:
        """Whether a call draws random numbers."""
        return bool(self.noise or self.draws_itself)

    def shapes(self) -> list[Tensor]:
        """Uninitialised tensors in the shapes of the random inputs."""
        return [noise.empty() for noise in self.noise]

    def draw(self) -> list[Tensor]:
        """Random numbers for one call, from torch's default generator, as Pyro would draw them."""
        return [noise.draw() for noise in self.noise]


class MappedProgram(Program):
    """A program with an axis of replicates on all inputs but the last, results, noise, and constants that differ.

    Convolutions of R replicates are mapped to one convolution with R groups, which is slower on a CPU than R convolutions.

    Args:
        program: of one replicate.
        state: for every replicate, the tensors of model and guide that are not parameters, by name.
        inputs: the number of inputs of the program.

    Attributes:
        one: the program of one replicate.

    Raises:
        Untraceable: replicates cannot draw their noise together.
    """

    def __init__(self, program: Program, state: Sequence[Mapping[str, Tensor]], inputs: int) -> None:
        if program.draws_itself:
            raise Untraceable(
                "it draws noise whose distribution depends on parameters or data, which replicates cannot draw together"
            )
        self.one, self.graph, self.draws_itself = program, program.graph, []
        names_of = {(v.data_ptr(), v.shape, v.dtype): name for name, v in reversed([*state[0].items()])}
        names = [names_of.get((tensor.data_ptr(), tensor.shape, tensor.dtype)) for tensor in program.met]
        distinct = {id(tensors): tensors for tensors in state}
        met = {
            key: [tensor if name is None else tensors[name] for tensor, name in zip(program.met, names, strict=True)]
            for key, tensors in distinct.items()
        }
        constants = {key: program.constants_of(row) for key, row in met.items()}
        self.constants, axes = [], list[int | None]()
        for column in zip(*(constants[id(tensors)] for tensors in state), strict=True):
            same = all(column[0] is other or torch.equal(column[0], other) for other in column[1:])
            self.constants.append(column[0] if same else torch.stack(column))
            axes.append(None if same else 0)
        self._axes = (*(0,) * (inputs - 1), None, *axes, *(0,) * len(program.noise))
        noises = {key: program.noise_of(row) for key, row in met.items()}
        self._alone: list[list[Noise]] = [noises[id(tensors)] for tensors in state]
        self.noise = [Noise.of_replicates(of_input) for of_input in zip(*self._alone, strict=True)]

    @functools.cached_property
    def module(self) -> Callable[..., Any]:
        return self.one.mapped(self._axes)

    def run(self, *inputs: Tensor) -> Sequence[Tensor]:  # type: ignore[override]
        return self.module(*inputs)  # type: ignore[no-any-return]

    @property
    def text(self) -> str:  # type: ignore[override]
        return f"{self.one.text} mapped over {self._axes}"

    def draw_alone(self, replicate: int) -> list[Tensor]:
        """Random numbers for one call of one replicate, as Pyro would draw them for it."""
        return [noise.draw() for noise in self._alone[replicate]]


class _Seen:
    """A tensor and its version and address, with its values if it is small: `Tensor.data` changes them without a version."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.inference = tensor, tensor.is_inference()
        self.version = 0 if self.inference else tensor._version
        self.address = tensor.data_ptr() if tensor.layout is torch.strided else 0
        small = tensor.nbytes <= SMALL and not tensor.is_cuda  # for whose values a step would wait
        self.values = tensor.clone() if small else None

    def changed(self) -> bool:
        """Whether the tensor has changed since."""
        tensor = self.tensor
        if (not self.inference and tensor._version != self.version) or (
            self.address and tensor.data_ptr() != self.address
        ):
            return True
        return self.values is not None and not torch.equal(tensor, self.values)


def _bytes(node: fx.Node) -> int:
    value = node.meta.get("val")
    return value.nbytes if isinstance(value, Value) else 0


def _as_function(graph: fx.Graph) -> Callable[..., Sequence[Tensor]]:
    """A graph as a function that is fast to call."""
    try:
        return script(graph)
    except NotImplementedError as error:
        _log.info("traced steps are called from Python, which is slower: %s", error)
        return fx.GraphModule({}, graph).forward  # type: ignore[no-any-return]


def pure(function: Callable[..., list[Tensor]], inputs: Sequence[Tensor], parts: Sequence[Any] = ()) -> Program:
    """Record a function of tensors as a graph, of which tensors that the function meets and random numbers are inputs.

    Args:
        function: called once with tensors whose values it cannot read, and again if it seems to draw outside torch.
        inputs: tensors of the shapes, dtypes and devices to record for.
        parts: the modules whose buffers and attributes must not change.

    Raises:
        Untraceable: the function does something that depends on the values of tensors, draws random numbers outside torch,
            or changes a tensor in place that is not an input.
    """
    outside = outside_torch()
    devices = list({tensor.device for tensor in inputs if tensor.is_cuda})
    with without_validation(), torch.random.fork_rng(devices), put_back(*parts) as look:
        try:
            with sdpa_kernel(SDPBackend.MATH):
                recording = recorded(function, inputs)
            drawn = has_drawn(outside, lambda: function(*(tensor.clone() for tensor in inputs)))
        except Exception as error:  # whatever a user's model raises when its tensors have no values
            raise Untraceable(f"it cannot be traced: {first_line(error)}{users_line(error)}") from error
    if look.replaced:
        raise Untraceable(f"a call replaces the parameter {look.replaced[0]} in Pyro's store")
    if drawn:
        raise Untraceable("it draws random numbers outside torch, which a trace would freeze")
    graph, constants = recording.graph, recording.constants
    for node in graph.nodes:  # a write to an argument or a constant, which is not part of the state of a training
        bases = {base_of(written) for written in written_by(node)}
        if bases & set(recording.inputs):
            raise Untraceable(f"it changes an argument in place, by {node.target}")
        if bases & set(constants):
            raise Untraceable(
                f"it changes a tensor in place, by {node.target}, that is no buffer of a module and that a trace would "
                "lose; register it with register_buffer"
            )
    if any(node.target is _A.mkldnn_rnn_layer.default for node in graph.nodes):
        raise Untraceable("nn.LSTM runs a kernel on this processor whose gradient cannot be replayed")
    noise_of = hoist(graph, [*recording.inputs, *constants][-1], constants)
    graph.eliminate_dead_code()
    return Program(graph, dict(zip(constants, recording.met, strict=True)), noise_of)


def make_flat(module: fx.GraphModule) -> None:
    """Give a module of `record` a flat list of inputs and of outputs, by copying only the operations of its graph."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    module.graph = graph


def loosen_views(module: fx.GraphModule) -> None:
    """Turn views into reshapes, which may copy: with an axis of replicates the strides differ from those of the trace."""
    graph = module.graph
    written = {base_of(node) for each in graph.nodes for node in written_by(each)}
    for view in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default):
        for node in graph.find_nodes(op="call_function", target=view):
            if base_of(node) not in written:
                node.target = torch.ops.aten.reshape.default
    module.recompile()


@dataclass(frozen=True)
class Noise:
    """How to draw one random input, of one fit or of replicates.

    Attributes:
        kind: the operation.
        like: a tensor of the input's shape, dtype and device; for masks, their probabilities, which broadcast to that shape.
        numbers: arguments of the operation, such as the bounds of uniform numbers.
        shape: shape of a mask (the kind ``coins``).
    """

    kind: str
    like: Tensor
    numbers: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()

    @classmethod
    def of_replicates(cls, noises: Sequence[Noise]) -> Noise:
        """The noise ``[R, ...]`` of replicates, whose noise may differ only in probabilities."""
        first, count = noises[0], len(noises)
        if first.kind == "coins":
            axes = (1,) * (len(first.shape) - first.like.dim())
            rates = torch.stack([noise.like.reshape(axes + noise.like.shape) for noise in noises])
            return cls("coins of replicates", rates, (), (count, *first.shape))
        if first.kind == "bernoulli":
            return cls(first.kind, torch.stack([noise.like for noise in noises]))
        return cls(first.kind, first.like.expand(count, *first.like.shape), first.numbers)

    def empty(self) -> Tensor:
        """An uninitialised tensor for a draw."""
        masks = self.kind.startswith("coins")
        shape, dtype = (self.shape, torch.uint8) if masks else (self.like.shape, self.like.dtype)
        return torch.empty(shape, dtype=dtype, device=self.like.device)

    def fill(self, place: Tensor) -> None:
        """Draw into a tensor of `empty`."""
        _FILL[self.kind](self, place)

    def draw(self) -> Tensor:
        """New random numbers for one step."""
        if self.kind == "coins":
            return torch.ops.pyrodrop.coins(self.like, self.shape)  # type: ignore[no-any-return]
        place = self.empty()
        self.fill(place)
        return place


def _permutations(_: Noise, place: Tensor) -> None:
    for row in place.view(-1, place.shape[-1]):
        torch.randperm(len(row), out=row)


_FILL: Mapping[str, Callable[[Noise, Tensor], object]] = {
    "normal": lambda noise, place: place.normal_(*noise.numbers),
    "uniform": lambda noise, place: place.uniform_(*noise.numbers),
    "bernoulli": lambda noise, place: place.copy_(torch.bernoulli(noise.like.expand_as(place))),
    "permutation": _permutations,
    "coins": lambda noise, place: place.copy_(noise.draw()),
    "coins of replicates": lambda noise, place: fill_stacked(place, noise.like),
}
_IN_PLACE = {_A.normal_.default, _A.uniform_.default}
_KINDS = {
    _A.randn.default: "normal",
    _A.randn_like.default: "normal",
    _A.normal_.default: "normal",
    _A.rand.default: "uniform",
    _A.rand_like.default: "uniform",
    _A.uniform_.default: "uniform",
    _A.bernoulli.default: "bernoulli",
    _A.randperm.default: "permutation",
    torch.ops.pyrodrop.coins.default: "coins",
}
# Operations that TorchInductor calls unchanged under `fallback_random`. For all others, a program draws other numbers.
AS_THEY_ARE = {
    _A._standard_gamma.default,
    _A._sample_dirichlet.default,
    _A.poisson.default,
    _A.binomial.default,
    _A.multinomial.default,
    _A.normal_.default,
    _A.randperm.default,
    _A.randn.default,
    _A.rand.default,
}


def hoist(graph: fx.Graph, last: fx.Node, constants: list[fx.Node]) -> Callable[[Sequence[Tensor]], list[Noise]]:
    """Turn random numbers into inputs after `last`. Returns a function from the values of the constants to their `Noise`.

    The graph itself draws random numbers whose distribution depends on parameters or data (a Gamma variate) or whose
    operation is not known here, and all random numbers after the first such draw, to keep the order.
    """
    recipes: list[Callable[[Sequence[Tensor]], Noise]] = []
    for node in list(graph.nodes):
        if not is_random(node):
            continue
        recipe = _recipe(node, constants)
        if recipe is None:
            break
        recipes.append(recipe)
        with graph.inserting_after(last):
            last = graph.placeholder(f"{NOISE}{len(recipes) - 1}")
        last.meta["val"] = node.meta.get("val")
        node.replace_all_uses_with(last)
        graph.erase_node(node)
    return lambda values: [recipe(values) for recipe in recipes]


def function_of(nodes: Sequence[fx.Node], inputs: Sequence[fx.Node]) -> Callable[..., Any] | None:
    """A function from the values of `inputs` to those of `nodes`; None if `nodes` depend on other nodes, too."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in inputs:
        copies[node] = graph.placeholder(node.name)

    def is_copied(node: fx.Node) -> bool:
        if node not in copies:
            if node.op != "call_function" or is_random(node) or not all(map(is_copied, node.all_input_nodes)):
                return False
            copies[node] = graph.node_copy(node, copies.__getitem__)
        return True

    if not all(map(is_copied, nodes)):
        return None
    graph.output([copies[node] for node in nodes])
    return fx.GraphModule({}, graph)


def _recipe(node: fx.Node, constants: Sequence[fx.Node]) -> Callable[[Sequence[Tensor]], Noise] | None:
    """A function from the values of the constants to the noise that `node` draws; None if it depends on other values."""
    kind = _KINDS.get(node.target)
    if kind is None:
        return None
    if kind in ("bernoulli", "coins"):
        rates = function_of([node.args[0]], constants)  # type: ignore[list-item]
        if rates is None:
            return None
        shape = tuple(node.args[1]) if kind == "coins" else ()  # type: ignore[arg-type]
        return lambda values: Noise(kind, rates(*values)[0], shape=shape)
    value = node.meta["val"]
    like = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    numbers: tuple[Any, ...] = node.args[1:] if node.target in _IN_PLACE else ()
    return lambda values: Noise(kind, like, numbers)


def simplified(graph: fx.Graph, constants: Collection[fx.Node]) -> tuple[fx.Graph, fx.Graph]:
    """Divide a graph into the graph of a call and the graph of constants, without unnecessary operations.

    Args:
        graph: a function of tensors, whose inputs come before all operations; it is not changed.

    Returns:
        The graph of a call, whose inputs are those of `graph` with the results of the other graph in place of the constants;
        and the graph that computes these results from the constants.
    """
    written = {base_of(target) for node in graph.nodes for target in written_by(node)}
    step, once = fx.Graph(), fx.Graph()
    new: dict[fx.Node, fx.Node] = {}  # in the graph of the step, or in that of the constants
    seen: dict[Any, fx.Node] = {}
    shared: dict[fx.Node, fx.Node] = {}  # from the graph of the constants to inputs of the step
    inputs: list[fx.Node] = []

    def kept(node: fx.Node) -> bool:
        """Whether a node has to stay as it is, since it draws, writes, or shares memory with what is written to."""
        touched = {base_of(node), *map(base_of, node.all_input_nodes)}
        return bool(touched & written or written_by(node)) or is_random(node)

    def of_step(node: fx.Node) -> fx.Node:
        """The node of the step for an old node or one of the constants' graph, which becomes an input of the step."""
        made = new[node]
        if made.graph is once and made not in shared:
            with step.inserting_after(inputs[-1] if inputs else None):
                shared[made] = step.placeholder(f"fixed_{len(shared)}")
            inputs.append(shared[made])
            shared[made].meta = dict(made.meta)
        return shared.get(made, made)

    def copied(to: fx.Graph, node: fx.Node) -> fx.Node:
        return to.node_copy(node, of_step if to is step else new.__getitem__)

    def filled(value: Value, number: float) -> fx.Node:
        """A tensor that has this number everywhere, whatever values it is made like."""
        key = repr(number), value
        if key not in seen:
            options: Any = {"dtype": value.dtype, "device": value.device}
            seen[key] = once.call_function(_A.full.default, (list(value.shape), number), options)
            seen[key].meta["val"] = value
        return seen[key]

    def simple(node: fx.Node) -> fx.Node:
        if kept(node):
            return copied(step, node)
        if (source := _source(node)) is not None and not (source.target is _A.t.default and kept(source)):
            return new[source.args[0] if node.target is _A.t.default else source]  # type: ignore[index]
        results = [node] if "val" in node.meta else [user for user in node.users if "val" in user.meta]
        small = all(result.meta["val"].nbytes <= SMALL for result in results)
        number = node.args[0] if node.target is _A._to_copy.default else _LIKE.get(node.target)
        if small and isinstance(number, int | float):
            value = node.meta["val"]
            if torch.empty(value.shape, device="meta").stride() == value.stride:
                return filled(value, number)
        to = once if small and all(new[used].graph is once for used in node.all_input_nodes) else step
        arguments = fx.node.map_arg((node.args, node.kwargs), of_step if to is step else new.__getitem__)
        key = f"{to is step} {node.target} {arguments!r}"  # in which numbers of different types differ
        if key not in seen:
            seen[key] = copied(to, node)
        return seen[key]

    for node in graph.nodes:
        if node.op == "placeholder":
            new[node] = copied(once if node in constants else step, node)
            if node not in constants and not node.name.startswith(NOISE):
                inputs.append(new[node])
    for node in graph.nodes:
        if node.op == "call_function":
            new[node] = simple(node)
        elif node.op == "output":
            step.output(fx.node.map_arg(node.args[0], of_step))
    once.output(list(shared))
    for each in (step, once):
        each.eliminate_dead_code()
    return step, once


def _source(node: fx.Node) -> fx.Node | None:
    """The argument that a node returns unchanged, or its transpose if the node transposes it back; None if it does not."""
    power = node.target is _A.pow.Tensor_Scalar and node.args[1] == 1
    source: Any = node.args[0] if power or node.target in _SAME | _VIEWS else None
    if not isinstance(source, fx.Node) or (node.target is _A.t.default and source.target is not _A.t.default):
        return None
    same: Any = source.args[0] if node.target is _A.t.default else source
    return source if same.meta.get("val") == node.meta["val"] else None
