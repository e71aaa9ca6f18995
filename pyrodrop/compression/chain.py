"""Conversion of a network to a chain of steps, layers in sequence where each gets its input only from the previous one.

Supported are dense layers, convolutions (zero padding, one group), batch normalisation directly after them in evaluation
mode, elementwise activations, pooling and flattening, as modules or as function calls. Every unit in such a chain has a
single consumer, the next layer, so a unit can be removed by correcting that layer.

The code does not assume any shapes. It runs the network on example inputs and passes the indices of the units of each layer
through the operations up to the next layer. This gives the unit that each input of the next layer comes from. A network is
not a chain if an input of a layer does not always come from the same unit (as in a dense layer over the positions of a
convolution). Finally, the chain is run on the example inputs and refused if its outputs differ from those of the network.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from pyrodrop.compression.layers import POOLS, plain_call, plain_layer
from pyrodrop.compression.steps import Affine, Plain, Step, network_of, units_of_x, units_of_y
from pyrodrop.inputs import Inputs
from pyrodrop.networks.modes import evaluating
from pyrodrop.threads import Tracer

_CONVOLUTIONS = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_ROWS = 2  # number of example rows
_LONGEST = 512  # the largest image or sequence that is tried if no example is given


class NoChain(TypeError):
    """Raised for a network that is not a chain of supported layers."""


@dataclass(frozen=True)
class Chain:
    """A network as a list of steps.

    Attributes:
        steps: the steps from x to f, both in their original units.
        x: example inputs, ``[2, ...]``.
        f: the outputs of the original network for `x`.
    """

    steps: list[Step]
    x: Tensor
    f: Tensor

    def network(self, steps: Sequence[Step]) -> fx.GraphModule:
        """The module of these steps, after a check that it gives the same outputs as the original network.

        Raises:
            NoChain: the outputs differ.
        """
        made = network_of(steps)
        with torch.no_grad():
            f = made(self.x.to(self.f.dtype))
        scale = float(self.f.abs().max()) if self.f.numel() else 1.0
        if f.shape != self.f.shape or not torch.allclose(f, self.f, rtol=1e-3, atol=1e-4 * scale, equal_nan=True):
            raise NoChain(
                f"{_CHAINS}; the output of this one is not that of its layers in sequence, for example because of a hook"
            )
        return made


def chain_of(model: Any, weights: Mapping[str, Tensor], x: Inputs | None = None) -> Chain:
    """Convert the network of a model with the given weights to a chain.

    Args:
        model: a network model of `pyrodrop.models`; it is run in evaluation mode.
        x: example inputs, of which the first rows are used. If None, suitable shapes are tried.

    Raises:
        NoChain: the network is not a chain of supported layers; the message names the step.
        ValueError: the network was read with its own dropout (`pyrodrop.read`).
        TypeError: the model has no network, or f of its likelihood is not a linear rescaling of the outputs of the network.
    """
    if not hasattr(model, "network"):
        raise TypeError(
            f"compression needs a model of pyrodrop.models, which has a network; got a {type(model).__name__}"
        )
    if getattr(model, "dropouts", None) is not None:
        raise ValueError(
            "the network of this model was read with its own dropout (pyrodrop.read), which a plain copy of it would draw "
            "again: guides.to_module(run) gives the network with its trained weights"
        )
    if getattr(model, "output", None) is not None:
        raise NoChain(f"{_CHAINS}; the outputs of this one are taken out of what it returns, by output=")
    weights = {name: value.detach() for name, value in weights.items()}
    like = next(iter(weights.values()))
    with evaluating(model), torch.no_grad():
        nodes = _nodes(model.network)
        seen = _seen(model, weights, nodes, x)
        steps = _steps(nodes, seen)
        missing = [name for name, value in weights.items() if not any(value is tensor for tensor in seen.used)]
        if missing:
            raise NoChain(f"{_CHAINS}; {', '.join(missing)} is not the weight or bias of such a layer")
        f = model.likelihood.location(seen.output, model.targets).detach()
        return Chain([*units_of_x(model, like), *steps, *units_of_y(model, seen.output)], seen.x, f)


_CHAINS = (
    "compression needs a network that is a chain of dense layers, convolutions, elementwise activations, pooling and "
    "flattening (structured=False works for every network and keeps its shape)"
)


@dataclass
class _Nodes:
    """The operations of a network in order, each applied to the result of the previous one, and its modules by name."""

    graph: fx.Graph
    chain: list[fx.Node]
    modules: dict[str, Any]


@dataclass
class _Seen:
    """The record of a run of the network on example inputs.

    Attributes:
        x: inputs, in the units of the model.
        output: outputs of the network, in its own standardised units.
        shapes: shape of the result of every operation.
        values: weight and bias of every operation that has them.
        used: all of these weights and biases.
    """

    x: Tensor
    output: Tensor
    shapes: dict[fx.Node, torch.Size]
    values: dict[fx.Node, tuple[Tensor | None, Tensor | None]]
    used: list[Tensor]


def _nodes(network: nn.Module) -> _Nodes:
    try:
        graph = Tracer().trace(network)
    except Exception as error:  # any operation that needs concrete values
        raise NoChain(f"{_CHAINS}; torch.fx cannot trace this one: {error}") from error
    chain: list[fx.Node] = []
    asides: set[fx.Node] = set()  # parameters, and operations that only compute sizes
    for node in graph.nodes:
        if node.op == "placeholder" and not chain:
            chain.append(node)
        elif node.op == "get_attr" or _asks_shape(node, asides):
            asides.add(node)
        elif node.op == "output":
            if node.args[0] is not chain[-1]:
                raise NoChain(f"{_CHAINS}; this one returns {node.args[0]}")
        elif node.op == "placeholder":
            if node.users:
                raise NoChain(f"{_CHAINS}; this one has several inputs")
        else:
            last = chain[-1]
            fed_by = [source for source in node.all_input_nodes if source not in asides]
            readers = [user for user in last.users if not _asks_shape(user, asides)]
            if fed_by != [last] or readers != [node]:
                raise NoChain(f"{_CHAINS}; here {node.name} is not fed by {last} alone")
            chain.append(node)
    return _Nodes(graph, chain, dict(network.named_modules()))


def _asks_shape(node: fx.Node, asides: set[fx.Node]) -> bool:
    """Whether a node only computes sizes, as in ``x.view(x.size(0), -1)``."""
    if node.op == "call_method" and node.target in ("size", "dim"):
        return True
    if node.op == "call_function" and node.target is getattr:
        return node.args[1] in ("shape", "ndim")
    return (
        node.op == "call_function"
        and bool(node.all_input_nodes)
        and all(n in asides and n.op != "get_attr" for n in node.all_input_nodes)
    )


def _seen(model: Any, weights: Mapping[str, Tensor], nodes: _Nodes, x: Inputs | None) -> _Seen:
    like = next(iter(weights.values()))
    if x is not None:
        if not isinstance(x, Tensor):
            raise NoChain(f"{_CHAINS}; this one has several inputs")
        few = x[torch.arange(_ROWS, device=x.device) % len(x)].to(like.device)
        return _run(model, weights, nodes, few)
    generator = torch.Generator().manual_seed(0)
    last: Exception | None = None
    for shape in _shapes_of_x(model, nodes):
        try:
            return _run(model, weights, nodes, torch.randn(_ROWS, *shape, generator=generator).to(like))
        except NoChain:
            raise
        except Exception as error:  # this is not the shape of the network's inputs; try the next one
            last = error
    raise NoChain(f"{_CHAINS}; the shape of the inputs of this one is unknown: pass example inputs as x=") from last


def _shapes_of_x(model: Any, nodes: _Nodes) -> Iterator[tuple[int, ...]]:
    """Shapes of one example that the first layer may accept."""
    width = getattr(model, "in_features", None)
    if width is not None:
        yield width if isinstance(width, tuple) else (width,)
    first = next((s for node in nodes.chain if (s := _first_sizes(node, model.network, nodes)) is not None), None)
    if first is None:
        return
    channels, dims = first
    if dims == 0:
        yield (channels,)
        yield from ((length, channels) for length in range(1, _LONGEST))
    else:
        yield from ((channels, *(size,) * dims) for size in range(1, _LONGEST))


def _first_sizes(node: fx.Node, network: nn.Module, nodes: _Nodes) -> tuple[int, int] | None:
    """Number of inputs of a layer and number of axes of its kernel; None for an operation without weights."""
    weight, _ = _own_values(node, network, nodes.modules)
    if weight is None or weight.dim() < 2:
        return None
    layer = nodes.modules.get(str(node.target)) if node.op == "call_module" else None
    return getattr(layer, "in_channels", weight.shape[1]), weight.dim() - 2


def _run(model: Any, weights: Mapping[str, Tensor], nodes: _Nodes, x: Tensor) -> _Seen:
    """Call the model once and record all of its layers while its network has the given weights."""
    network: nn.Module = model.network
    shapes: dict[fx.Node, torch.Size] = {}
    values: dict[fx.Node, tuple[Tensor | None, Tensor | None]] = {}
    used: list[Tensor] = []

    def look(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if kwargs or len(args) != 1:
            raise NoChain(f"{_CHAINS}; this one has several inputs")
        run = Shapes(network, nodes.graph)
        run.run(args[0].clone())
        shapes.update(run.shapes)
        for node in nodes.chain:
            values[node] = _own_values(node, network, nodes.modules)
            used.extend(value for value in values[node] if value is not None)

    handle = network.register_forward_pre_hook(look, with_kwargs=True)
    try:
        output = model.outputs(weights, x.clone()).detach()
    finally:
        handle.remove()
    return _Seen(x, output, shapes, values, used)


class Shapes(fx.Interpreter):
    """Runs a graph and stores the shape of every result."""

    def __init__(self, network: nn.Module, graph: fx.Graph) -> None:
        super().__init__(network, graph=graph)
        self.shapes: dict[fx.Node, torch.Size] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.shapes[n] = result.shape
        return result


def _own_values(node: fx.Node, network: nn.Module, modules: Mapping[str, Any]) -> tuple[Tensor | None, Tensor | None]:
    if node.op == "call_module" and type(modules[str(node.target)]) in (nn.Linear, *_CONVOLUTIONS, *_NORMS):
        layer = modules[str(node.target)]
        return layer.weight, layer.bias
    if node.op == "call_function" and node.target is F.linear:
        call = {**dict(zip(("input", "weight", "bias"), node.args, strict=False)), **node.kwargs}
        tensors = [call.get("weight"), call.get("bias")]
        if all(read is None or (isinstance(read, fx.Node) and read.op == "get_attr") for read in tensors):
            weight, bias = (
                None if read is None else operator.attrgetter(str(read.target))(network)  # type: ignore[union-attr]
                for read in tensors
            )
            return weight, bias
    return None, None


def _steps(nodes: _Nodes, seen: _Seen) -> list[Step]:
    steps: list[Step] = []
    # for every activation, the index of the unit of the last layer with weights that it comes from
    units: Tensor | None = None
    for before, node in zip(nodes.chain, nodes.chain[1:], strict=False):
        shape = seen.shapes[before]
        if node not in seen.shapes:
            raise NoChain(f"{_CHAINS}; here {node.format_node()}")
        layer = nodes.modules[str(node.target)] if node.op == "call_module" else None
        if type(layer) in _NORMS:
            steps[-1:] = [_normalised(node, layer, steps[-1] if steps else None, shape, seen)]
            continue
        if seen.values[node][0] is not None:
            step = _affine(node, layer, seen, shape, units)
            units = _numbered(len(step.bias), seen.shapes[node], -1 if step.dense else 1)
            steps.append(step)
            continue
        plain = _plain(node, layer, nodes, shape, seen.shapes[node])
        if plain.kind is not nn.Identity:
            units = None if units is None else _through(plain, node, units, seen.shapes[node])
            steps.append(plain)
    if not any(isinstance(step, Affine) for step in steps):
        raise NoChain(f"{_CHAINS}; this one has no layer with weights")
    return steps


def _affine(node: fx.Node, layer: Any, seen: _Seen, shape: torch.Size, units: Tensor | None) -> Affine:
    weight, bias = seen.values[node]
    assert weight is not None
    name = str(node.target) if layer is not None else node.name
    bias = weight.new_zeros(len(weight)) if bias is None else bias.detach()
    options = {}
    if layer is not None and not isinstance(layer, nn.Linear):
        if layer.groups != 1 or layer.padding_mode != "zeros":
            raise NoChain(
                f"compression needs convolutions with one group and zero padding; {name} has {layer.groups} and "
                f"{layer.padding_mode!r}"
            )
        if len(shape) != weight.dim():
            raise NoChain(f"{_CHAINS}; {name} gets an input without a batch dimension, of shape {tuple(shape)}")
        options = {n: getattr(layer, n) for n in ("stride", "padding", "dilation")}
    feeds = None
    if units is not None:
        columns = units.movedim(1, -1) if options else units
        columns = columns.reshape(-1, columns.shape[-1])
        if not torch.equal(columns, columns[:1].expand_as(columns)):
            raise NoChain(f"{_CHAINS}; an input of {name} is not always the same unit of the previous layer")
        feeds = columns[0].clone()
    return Affine(name, weight.detach(), bias, options, feeds=feeds, input_dim=len(shape))


def _normalised(node: fx.Node, layer: Any, before: Step | None, shape: torch.Size, seen: _Seen) -> Affine:
    """A layer and the batch normalisation after it, combined into one layer."""
    name = str(node.target)
    if layer.training or layer.running_mean is None:
        raise NoChain(f"{_CHAINS}; {name} normalises with the statistics of the current batch")
    if not isinstance(before, Affine) or (before.dense and len(shape) != 2):
        raise NoChain(
            f"{_CHAINS}; {name} is a {type(layer).__name__} that does not directly follow a dense layer or convolution"
        )
    scale = torch.rsqrt(layer.running_var.double() + layer.eps)
    weight, bias = seen.values[node]
    if weight is not None:
        scale = scale * weight.detach().double()
    shift = (before.bias.double() - layer.running_mean.double()) * scale
    if bias is not None:
        shift = shift + bias.detach().double()
    scaled = before.weight.double() * scale.reshape(-1, *(1,) * (before.weight.dim() - 1))
    return replace(before, weight=scaled.to(before.weight), bias=shift.to(before.bias))


def _plain(node: fx.Node, layer: nn.Module | None, nodes: _Nodes, shape: torch.Size, after: torch.Size) -> Plain:
    if layer is not None:
        plain = plain_layer(layer)
        if plain is None:
            raise NoChain(f"{_CHAINS}; {node.target} is a {type(layer).__name__}")
        return _keeping_examples(Plain(*plain), node, shape, after)
    if (node.op == "call_method" and node.target in ("view", "reshape")) or node.target is torch.reshape:
        if after == shape:
            return Plain(nn.Identity, {})
        if after != (shape[0], math.prod(shape[1:])):
            raise NoChain(f"{_CHAINS}; {node.name} reshapes {tuple(shape)} to {tuple(after)}")
        return Plain(nn.Flatten, {"start_dim": 1, "end_dim": -1})
    args, kwargs = node.args, dict(node.kwargs)
    if args and args[0] is not kwargs.get("input"):
        args = args[1:]
    else:
        kwargs.pop("input", None)
    numbers = not any(isinstance(argument, fx.Node) for argument in (*args, *kwargs.values()))
    plain = plain_call(node.target, args, kwargs) if numbers else None
    if plain is None:
        raise NoChain(f"{_CHAINS}; here {node.format_node()}")
    return _keeping_examples(Plain(*plain), node, shape, after)


def _keeping_examples(step: Plain, node: fx.Node, shape: torch.Size, after: torch.Size) -> Plain:
    if len(after) < 2 or after[0] != shape[0]:
        raise NoChain(f"{_CHAINS}; {node.name} changes {tuple(shape)}, with one row per example, to {tuple(after)}")
    return step


def _numbered(units: int, shape: torch.Size, axis: int) -> Tensor:
    """The index of the unit of every element of a tensor of this shape, for units along `axis`."""
    numbers = torch.arange(units)
    return numbers.reshape(-1, *(1,) * (len(shape) - 2) if axis == 1 else ()).expand(shape)


def _through(step: Plain, node: fx.Node, units: Tensor, shape: torch.Size) -> Tensor:
    """The unit index of every activation after a layer without weights."""
    if step.kind is nn.Flatten:
        return step.module()(units)  # type: ignore[no-any-return]
    if step.kind in POOLS:
        axes = tuple(range(-int(step.kind.__name__[-2]), 0))
        one = units
        for axis in axes:
            one = one.narrow(axis, 0, 1)
        if not torch.equal(units, one.expand_as(units)):
            raise NoChain(f"{_CHAINS}; {node.name} pools over units")
        return one.expand(shape)
    return units
