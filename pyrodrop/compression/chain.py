"""Reading a network as a chain of steps: layers one after the other, each fed by the one before alone.

Dense layers, convolutions (zero padding, no groups), elementwise activations, pooling and flattening, as modules or as
calls of their functions. What is cut out of such a chain has one consumer, so what it fed can be corrected for it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from pyrodrop.compression.steps import Affine, Plain, Rescaled, Standardised, Step

# Layers without weights that are understood, with the options that they are made again by.
ELEMENTWISE: dict[type[nn.Module], tuple[str, ...]] = {
    nn.ReLU: (),
    nn.Tanh: (),
    nn.Sigmoid: (),
    nn.Softplus: ("beta", "threshold"),
    nn.GELU: ("approximate",),
    nn.SiLU: (),
    nn.ELU: ("alpha",),
    nn.LeakyReLU: ("negative_slope",),
    nn.Identity: (),
}
_MAX = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
_AVG = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")
POOLS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.MaxPool1d: _MAX,
    nn.MaxPool2d: _MAX,
    nn.MaxPool3d: _MAX,
    nn.AvgPool1d: _AVG,
    nn.AvgPool2d: _AVG,
    nn.AvgPool3d: _AVG,
}
_KNOWN = {**ELEMENTWISE, **POOLS, nn.Flatten: ("start_dim", "end_dim")}
_FUNCTIONS: dict[Any, type[nn.Module]] = {
    torch.relu: nn.ReLU,
    F.relu: nn.ReLU,
    "relu": nn.ReLU,
    torch.tanh: nn.Tanh,
    F.tanh: nn.Tanh,
    "tanh": nn.Tanh,
    torch.sigmoid: nn.Sigmoid,
    F.sigmoid: nn.Sigmoid,
    "sigmoid": nn.Sigmoid,
    F.softplus: nn.Softplus,
    F.gelu: nn.GELU,
    F.silu: nn.SiLU,
    F.elu: nn.ELU,
    F.leaky_relu: nn.LeakyReLU,
    F.max_pool1d: nn.MaxPool1d,
    F.max_pool2d: nn.MaxPool2d,
    F.max_pool3d: nn.MaxPool3d,
    F.avg_pool1d: nn.AvgPool1d,
    F.avg_pool2d: nn.AvgPool2d,
    F.avg_pool3d: nn.AvgPool3d,
    torch.flatten: nn.Flatten,
    "flatten": nn.Flatten,
}


class NoChain(TypeError):
    """The network is no chain of layers that are known."""


def steps_of(model: Any, weights: Mapping[str, Tensor]) -> list[Step]:
    """The steps of a model of `pyrodrop.models` with these weights, from x to f in their own units.

    Raises:
        NoChain: the network is no chain of layers that are known, and which step is not.
        TypeError: the model has no network, or its likelihood's f is no rescaling of the network's outputs.
    """
    if not hasattr(model, "network"):
        raise TypeError(
            f"only a network can be compressed, in a model of pyrodrop.models; got a {type(model).__name__}"
        )
    values = {**{name: model.free[name].detach() for name in model.free}, **weights}
    like = next(iter(weights.values()))
    chain = _network_steps(model.network, {n: v.detach() for n, v in values.items()})
    chain = [step for step in chain if not (isinstance(step, Plain) and step.kind is nn.Identity)]
    loc, scale = model.inputs.loc.to(like), model.inputs.scale.to(like)
    head: list[Step] = [] if _trivial(loc, scale) else [Standardised(loc, scale)]
    return [*head, *chain, *_units_of_y(model, chain, like)]


def _network_steps(network: nn.Module, values: Mapping[str, Tensor]) -> list[Step]:
    try:
        graph = fx.Tracer().trace(network)
    except Exception as error:  # whatever a network does that needs values
        raise NoChain(f"{_CHAINS}; this one cannot be read: {error}") from error
    modules = dict(network.named_modules())
    steps: list[Step] = []
    last: fx.Node | None = None
    for node in graph.nodes:
        if node.op == "placeholder" and last is None:
            last = node
        elif node.op == "output":
            if node.args[0] is not last:
                raise NoChain(f"{_CHAINS}; this one returns {node.args[0]}")
        else:
            if not node.args or node.args[0] is not last or last.users.keys() != {node}:
                raise NoChain(f"{_CHAINS}; here {node.name} is not fed by {last} alone")
            steps.append(_step(node, modules, values))
            last = node
    return steps


_CHAINS = (
    "networks are compressed that are a chain of dense layers, convolutions, elementwise activations, pooling and "
    "flattening (structured=False keeps the shape of any network)"
)


def _step(node: fx.Node, modules: Mapping[str, nn.Module], values: Mapping[str, Tensor]) -> Step:
    if node.op == "call_module":
        name = str(node.target)
        layer: Any = modules[name]
        if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            return _affine(name, layer, values)
        if type(layer) in _KNOWN:
            return Plain(type(layer), {option: getattr(layer, option) for option in _KNOWN[type(layer)]})
        raise NoChain(f"{_CHAINS}; {name} is a {type(layer).__name__}")
    kind = _FUNCTIONS.get(node.target)
    if kind is None:
        raise NoChain(f"{_CHAINS}; here {node.format_node()}")
    given: Callable[..., Any] = kind
    module = given(*node.args[1:], **{k: v for k, v in node.kwargs.items() if k != "training"})
    return Plain(kind, {option: getattr(module, option) for option in _KNOWN[kind]})


def _affine(name: str, layer: Any, values: Mapping[str, Tensor]) -> Affine:
    weight = values[f"{name}.weight"]
    bias = values.get(f"{name}.bias", weight.new_zeros(len(weight)))
    if isinstance(layer, nn.Linear):
        return Affine(name, weight, bias)
    if layer.groups != 1 or layer.padding_mode != "zeros":
        raise NoChain(
            f"convolutions are compressed that have one group and zero padding; {name} has {layer.groups} and "
            f"{layer.padding_mode!r}"
        )
    return Affine(name, weight, bias, {n: getattr(layer, n) for n in ("stride", "padding", "dilation")})


def _units_of_y(model: Any, chain: list[Step], like: Tensor) -> list[Step]:
    """What turns outputs into f: found by trying, so that any likelihood's rescaling is."""
    width = next(len(step.bias) for step in reversed(chain) if isinstance(step, Affine))
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(5, width, generator=generator).to(like)
    f = model.likelihood.location(output, model.targets).detach()
    if f.shape == output.shape and torch.equal(f, output):
        return []
    loc, scale = model.targets.loc.to(like), model.targets.scale.to(like)
    columns = f.shape[-1]
    if columns > width or not torch.allclose(f, operator.add(output[:, :columns] * scale, loc)):
        raise TypeError(
            f"the f of a {type(model.likelihood).__name__} is no rescaling of the network's outputs, as compression needs"
        )
    return [Rescaled(loc, scale, columns)]


def _trivial(loc: Tensor, scale: Tensor) -> bool:
    return not bool(loc.any()) and bool((scale == 1).all())
