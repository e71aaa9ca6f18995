"""The ELBO's terms and their gradient as one graph, traced once.

    (parameters, buffers, x, y, controls, constants, noise) -> ([nll, kl], gradients of the loss, buffers)

    loss = controls[0] nll + controls[1] kl(weights) + kl(hyperparameters)

Pyro runs its handlers at every step. Here they run once, under `make_fx`, with the parameters substituted, and the tensor
operations are recorded. Every tensor that the trace meets (rates, precisions, prior scales, standardisations) becomes an
input of the graph, so no value is fixed in it, and so does every random number. Buffers that a call updates (running
statistics) are inputs and outputs. The graph is a pure function.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyro
import torch
from pyro import poutine
from torch import Tensor, fx
from torch.distributions import constraints, transform_to
from torch.nn.attention import SDPBackend, sdpa_kernel

from pyrodrop.elbo import Terms, elbo_terms
from pyrodrop.engines.moving import Moving
from pyrodrop.engines.noise import Noise, hoist, sources
from pyrodrop.engines.untraceable import Untraceable, needs_private_apis
from pyrodrop.inputs import Inputs, mapped, parts, rebuilt
from pyrodrop.networks.modes import undisturbed
from pyrodrop.networks.noise import drawn_outside_torch, outside_torch
from pyrodrop.private_apis import MissingApi, arguments_of, record

Shapes = tuple[torch.Size, ...]


class Parameter(NamedTuple):
    """A parameter as the optimiser sees it, without constraint, and the constraint of its value."""

    unconstrained: Tensor
    constraint: constraints.Constraint


class Batch(NamedTuple):
    """The arguments of model and guide: x, y, and num_data where they are a part of the data set."""

    x: Inputs
    y: Tensor
    kwargs: dict[str, int]

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors of x and y, in the order in which graphs take them."""
        return [*parts(self.x), self.y]

    @property
    def shapes(self) -> Shapes:
        """The shapes of `tensors`; there is one graph per value."""
        return tuple(tensor.shape for tensor in self.tensors)

    @property
    def device(self) -> torch.device:
        return self.y.device

    def at(self, index: int | slice) -> Batch:
        """Every tensor at an index of its first axis: the batch of a replicate, or a part of the rows."""
        return Batch(mapped(lambda tensor: tensor[index], self.x), self.y[index], self.kwargs)


@dataclass
class Graph:
    """A traced gradient. Call ``module(*parameters, *buffers, *x, y, controls, *constants, *noise)``.

    Attributes:
        module: the graph; its outputs are ``[nll, kl]``, the gradient of every parameter and the updated buffers.
        constants: the tensors that the trace met, by reference.
        noise_of: from values of the constants to the `Noise` of each random input, in the order in which Pyro draws them.
    """

    module: fx.GraphModule
    constants: list[Tensor]
    noise_of: Callable[[Sequence[Tensor]], list[Noise]]
    noise: list[Noise] = field(init=False)

    def __post_init__(self) -> None:
        self.noise = self.noise_of(self.constants)
        self._sources = sources([[noise] for noise in self.noise], [None])

    def shapes(self) -> list[Tensor]:
        """Uninitialised tensors in the shapes of the random inputs."""
        return [noise.empty() for noise in self.noise]

    def draw(self) -> list[Tensor]:
        """Random numbers for one step, from torch's default generator, as Pyro would draw them."""
        return [drawn[0] for source in self._sources for drawn in source.draw()]


def evaluate(
    model: Callable[..., Any], guide: Callable[..., Any], batch: Batch, precision: torch.dtype | None = None
) -> Terms:
    """The terms of the ELBO, by Pyro; `precision` is the dtype of matrix products, that of the parameters if None."""
    with torch.autocast(batch.device.type, dtype=precision, enabled=precision is not None):
        return elbo_terms(model, guide, batch.x, batch.y, **batch.kwargs)


@needs_private_apis()
def trace(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    parameters: Mapping[str, Parameter],
    batch: Batch,
    precision: torch.dtype | None = None,
    moving: Moving | None = None,
    *,
    verify: bool = True,
) -> Graph:
    """Trace the gradient for minibatches in the shapes of `batch`. Model and guide do not change, even if it fails.

    Args:
        model, guide: with the estimator applied.
        parameters: to differentiate by.
        batch: one minibatch.
        precision: of matrix products.
        moving: the buffers that a call updates, and the modules that must not change.
        verify: whether to compare the graph with Pyro, which takes as much memory as a step.

    Raises:
        Untraceable: model or guide does something that depends on the values of tensors, draws random numbers outside
            torch, draws noise whose distribution depends on parameters or data, updates tensors that are not buffers of a
            module, or the graph gives other numbers than Pyro.
    """
    moving = moving or Moving()
    sizes = [len(parameters), len(moving), len(batch.tensors) - 1]

    def gradient(*tensors: Tensor) -> list[Tensor]:
        given = iter(tensors)
        values, buffers, xs = ([next(given) for _ in range(size)] for size in sizes)
        y, controls = given
        x = rebuilt(batch.x, xs)
        values = [value.detach().requires_grad_() for value in values]
        constrained = {
            name: transform_to(p.constraint)(value) for (name, p), value in zip(parameters.items(), values, strict=True)
        }
        with poutine.substitute(data=constrained), moving.replaced([buffer.clone() for buffer in buffers]) as moved:
            terms = evaluate(model, guide, Batch(x, y, batch.kwargs), precision)
            after = [buffer.detach() for buffer in moved()]
        loss = controls[0] * terms.nll + controls[1] * terms.kl_weights + terms.kl_hyper
        gradients = torch.autograd.grad(loss, values, allow_unused=True, materialize_grads=True)
        return [torch.stack([terms.nll.detach(), terms.kl.detach()]), *gradients, *after]

    values = [p.unconstrained.detach() for p in parameters.values()]
    controls = torch.ones(2, dtype=values[0].dtype, device=values[0].device)
    graph = pure_graph(gradient, [*values, *moving.tensors(), *batch.tensors, controls], moving.parts)
    if verify:
        _verify(graph, model, guide, parameters, batch, controls, precision, moving)
    return graph


@needs_private_apis()
def pure_graph(function: Callable[..., list[Tensor]], inputs: Sequence[Tensor], parts: Sequence[Any] = ()) -> Graph:
    """Record a function of tensors as a graph without constants: tensors that it meets, and random numbers, are inputs.

    Args:
        function: called once, with tensors that have no values.
        inputs: tensors of the shapes, dtypes and devices to record for.
        parts: the modules whose buffers and attributes must not change.

    Raises:
        Untraceable: the function does something that depends on the values of tensors, draws random numbers outside torch,
            draws noise whose distribution depends on its inputs, or changes a tensor in place that is not an input.
    """
    outside = outside_torch()
    devices = list({tensor.device for tensor in inputs if tensor.is_cuda})
    with pyro.validation_enabled(False), torch.random.fork_rng(devices), undisturbed(*parts):
        try:
            with sdpa_kernel(SDPBackend.MATH):  # attention by elementary operations, which can be mapped and compiled
                module = record(function, inputs)
            drawn = drawn_outside_torch(outside, lambda: function(*(tensor.clone() for tensor in inputs)))
        except MissingApi:
            raise
        except Exception as error:  # whatever a user's model raises when its tensors have no values
            raise Untraceable(f"it cannot be traced: {_first_line(error)}") from error
    if drawn:
        raise Untraceable("it draws random numbers outside torch, which a trace would freeze")
    return _purify(module, len(inputs))


def near(want: Tensor, got: Tensor, tolerance: float, least: float = 0.0) -> bool:
    """Whether two tensors agree up to rounding, relative to the largest entry or to `least` if that is larger.

    Integers must be equal. Tensors that are not finite are not compared.
    """
    if want.shape != got.shape or not (want.is_floating_point() and want.numel()):
        return torch.equal(want, got)
    scale = want.abs().max().clamp_min(max(least, torch.finfo(want.dtype).tiny))
    return bool(((want - got).abs().max() <= tolerance * scale) | ~torch.isfinite(scale))


def _purify(module: fx.GraphModule, inputs: int) -> Graph:
    """Turn the graph's constants and random numbers into inputs."""
    make_flat(module)
    graph = module.graph
    last = [node for node in graph.nodes if node.op == "placeholder"][inputs - 1]
    held: dict[str, fx.Node] = {}
    constants: list[Tensor] = []
    for node in list(graph.nodes):
        if node.op == "get_attr":
            if node.target not in held:
                with graph.inserting_after(last):
                    last = held[node.target] = graph.placeholder(f"constant_{len(held)}")
                constants.append(getattr(module, node.target).detach())
                last.meta["val"] = constants[-1]
            node.replace_all_uses_with(held[node.target])
            graph.erase_node(node)
    _refuse_writes(graph, set(held.values()))
    if any(node.target is torch.ops.aten.mkldnn_rnn_layer.default for node in graph.nodes):
        raise Untraceable("nn.LSTM runs a kernel on this processor whose gradient cannot be replayed")
    noise_of = hoist(graph, last, list(held.values()))
    graph.eliminate_dead_code()
    module.recompile()
    return Graph(module, constants, noise_of)


def make_flat(module: fx.GraphModule) -> None:
    """Give a module of `record` a flat list of inputs and of outputs, by a copy of its graph without anything else."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    module.graph = graph


def _refuse_writes(graph: fx.Graph, constants: set[fx.Node]) -> None:
    """Raise `Untraceable` if the graph writes to a constant, which is not part of the state that training saves."""
    for node in graph.nodes:
        if any(_base(written) in constants for written in _written(node)):
            raise Untraceable(
                f"it changes a tensor in place, by {node.target}, that is no buffer of a module and that a trace would "
                "lose; register it with register_buffer"
            )


def _written(node: fx.Node) -> list[fx.Node]:
    """The arguments that an operation writes to."""
    if node.op != "call_function" or not isinstance(node.target, _OPERATION):
        return []
    if node.target in _BATCH_NORMS:  # they write to running statistics, which their signatures do not say
        return [arg for arg in node.args[3:5] if isinstance(arg, fx.Node) and node.args[5]]  # in training mode
    arguments = arguments_of(node.target)
    given = [
        *zip(arguments, node.args, strict=False),
        *((a, node.kwargs[a.name]) for a in arguments if a.name in node.kwargs),
    ]
    return [
        value
        for argument, value in given
        if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, fx.Node)
    ]


def _base(node: fx.Node) -> fx.Node:
    """The base tensor of a view, which may be one of several, as of `torch.chunk`."""
    while node.op == "call_function" and (node.target is operator.getitem or getattr(node.target, "is_view", False)):
        node = node.args[0]  # type: ignore[assignment]
    return node


def loosen_views(module: fx.GraphModule) -> None:
    """Turn views into reshapes, which may copy: with an axis of replicates the strides differ from those of the trace."""
    graph = module.graph
    written = {_base(node) for each in graph.nodes for node in _written(each)}
    for view in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default):
        for node in graph.find_nodes(op="call_function", target=view):
            if _base(node) not in written:
                node.target = torch.ops.aten.reshape.default
    module.recompile()


_OPERATION: Any = type(torch.ops.aten.add.Tensor)
_BATCH_NORMS = {torch.ops.aten.native_batch_norm.default, torch.ops.aten.cudnn_batch_norm.default}


def _verify(
    graph: Graph,
    model: Callable[..., Any],
    guide: Callable[..., Any],
    parameters: Mapping[str, Parameter],
    batch: Batch,
    controls: Tensor,
    precision: torch.dtype | None,
    moving: Moving,
) -> None:
    """Compare the graph with Pyro on new noise: a value that Python computed during the trace must not be fixed in it."""
    leaves = [p.unconstrained for p in parameters.values()]
    with pyro.validation_enabled(False), torch.random.fork_rng(_devices(batch)):
        torch.manual_seed(1)
        with undisturbed(*moving.parts):
            terms = evaluate(model, guide, batch, precision)
            wanted = torch.autograd.grad(terms.loss, leaves, allow_unused=True, materialize_grads=True)
            moved = [buffer.detach().clone() for buffer in moving.tensors()]
        torch.manual_seed(1)
        inputs = [*(leaf.detach() for leaf in leaves), *moving.tensors(), *batch.tensors, controls]
        try:
            ours = graph.module(*inputs, *graph.constants, *graph.draw())
        except Exception as error:  # such as a gradient that needs something a trace does not have
            raise Untraceable(f"its trace cannot be replayed: {_first_line(error)}") from error
    tolerance = 1e-3 if leaves[0].dtype == torch.float32 else 1e-7
    tolerance = max(tolerance, 0.0 if precision is None else 0.05)
    first = torch.stack([terms.nll, terms.kl]).detach()
    # A gradient may be 0 up to rounding, such as that of the key bias of attention: errors are relative to the others.
    sizes = [float(gradient.abs().max()) for gradient in wanted if gradient.numel()]
    least = 1e-3 * max((size for size in sizes if math.isfinite(size)), default=0.0)
    small = [0.0, *(least for _ in wanted), *(0.0 for _ in moved)]
    for want, got, size in zip([first, *wanted, *moved], ours, small, strict=True):
        if not near(want, got, tolerance, size):
            raise Untraceable(
                "its trace gives other numbers than Pyro does: something changes between calls that is no tensor"
            )


def _devices(batch: Batch) -> list[torch.device]:
    return [batch.device] if batch.y.is_cuda else []


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"


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
    return value.numel() * value.element_size() if isinstance(value, Tensor) else 0
