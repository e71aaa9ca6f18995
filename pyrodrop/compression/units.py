"""Follow the units of a network from the layers that make them to those that read them, fold constant units into biases,
and remove units that no layer reads.

    a unit is constant    if its weights are 0 in all layers that make it:    b <- b + W[:, k] a_k, and W[:, k] <- 0
    a unit is used        if a layer has a weight on it in a row of a used unit, or an unknown operation reads or makes it

Every unit of the network has a number. A tensor with the unit of each element accompanies every activation and is flattened
with it, which shows the unit of each input of the next layer. Units are followed through dense layers and convolutions that
are called once, elementwise functions, pooling and ``flatten``. All others, such as batch normalisation and the sums in a
residual stream, keep all units of their inputs and outputs. A constant unit before a convolution that pads is kept, unless
it is 0, because its contribution is smaller at the border.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from pyrodrop.compression.plain import Untraced, same_outputs, trace

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_QUIET = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def _operations(name: str) -> set[Any]:
    """The modules, functions and methods with this name, and their in-place versions."""
    names = (name, f"{name}_")
    modules = {kind for kind in vars(nn).values() if getattr(kind, "__name__", "").lower() == name.replace("_", "")}
    return (
        modules | {getattr(place, each) for place in (torch, F) for each in names if hasattr(place, each)} | set(names)
    )


_ELEMENTWISE = frozenset[Any]().union(*map(_operations, (
    "relu", "relu6", "tanh", "sigmoid", "softplus", "gelu", "silu", "mish", "elu", "celu", "selu", "leaky_relu", "hardtanh",
    "hardswish", "hardsigmoid", "softsign", "logsigmoid", "tanhshrink", "hardshrink", "softshrink", "threshold", "identity",
    "sin", "cos", "exp", "square", "abs",
)))  # fmt: skip
_POOLING = {
    operation: axes
    for kind in ("max", "avg", "adaptive_max", "adaptive_avg")
    for axes in (1, 2, 3)
    for operation in _operations(f"{kind}_pool{axes}d")
}
_FLATTENING = (torch.flatten, "flatten")
_FEWER = 0.75  # inputs of a first layer are selected if at most this share of them has weights


class NotFollowed(TypeError):
    """No unit of a network can be removed, as none can be followed from the layer that makes it to those that read it."""


@dataclass(frozen=True)
class _Layer:
    """A call of a layer.

    Attributes:
        module: a copy of the layer that shares nothing with the network.
        x: its input for the example rows, with the input units on the last axis.
        makes: the unit of each of its outputs.
        reads: the unit of each of its inputs; None if they are not followed.
    """

    node: fx.Node
    module: Any
    x: Tensor
    makes: Tensor
    reads: Tensor | None

    @property
    def pads(self) -> bool:
        return not isinstance(self.module, nn.Linear) and self.module.padding != (0,) * len(self.module.kernel_size)

    def has_weights(self, rows: Tensor) -> Tensor:
        """Which inputs have a weight that is not 0 in some of these rows, ``[in]``."""
        return self.module.weight[rows].transpose(0, 1).flatten(1).any(1)  # type: ignore[no-any-return]


def without_unused_units(network: nn.Module, x: Tensor) -> fx.GraphModule:
    """The same function with fewer units, as a new network; outputs and the activations of the other units do not change.

    Args:
        network: in evaluation mode, with weights of 0 where they are pruned.
        x: example rows, for the shapes and a comparison of outputs.

    Raises:
        NotFollowed: none of several layers has units that are followed; `torch.fx` cannot trace it; or outputs would differ.
    """
    try:
        followed = _Followed(network, trace(network, x))
    except Untraced as error:
        raise NotFollowed(f"{_WHY}; {error}") from error
    with torch.no_grad():
        followed.run(x.clone())
        if bool(followed.kept().all()) and sum(parameter.dim() > 1 for parameter in network.parameters()) > 1:
            raise NotFollowed(f"{_WHY}; here they end at {', '.join(dict.fromkeys(followed.ends)) or 'the output'}")
        followed.fold()
        small = followed.small()
    if not same_outputs(small, network, x):
        raise NotFollowed(f"{_WHY}; the outputs of this one change without them, for example because of a hook")
    return small


_WHY = (
    "compression needs units that are followed from the layer that makes them to those that read them, through dense layers "
    "and convolutions that are called once, elementwise functions, pooling and flatten "
    "(structured=False works for every network and keeps its shape)"
)


class _Followed(fx.Interpreter):
    """Runs a network on example rows and follows its units.

    Attributes:
        layers: calls of layers, in order.
        ends: names of the operations that keep all units of their inputs.
    """

    def __init__(self, network: nn.Module, graph: fx.Graph) -> None:
        super().__init__(network, graph=graph)
        self.layers: list[_Layer] = []
        self.ends: list[str] = []
        self._number = 0  # of units
        self._kept: list[Tensor] = []  # units that are kept
        self._units: dict[fx.Node, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run an operation, and follow the units that it reads."""
        read = [node for node in n.all_input_nodes if isinstance(self.env[node], Tensor)]
        x = self.env[read[0]].clone() if read else None  # before an operation in place
        result = super().run_node(n)
        units = self._after(n, read, x, result) if isinstance(result, Tensor) and x is not None else None
        if units is not None:
            self._units[n] = units
        else:
            for node in read:
                self._keep(n, self._units.get(node))
        return result

    def _keep(self, n: fx.Node, units: Tensor | None) -> None:
        """Record that an operation keeps all of these units."""
        if units is None:
            return
        self._kept.append(units.unique())
        if n.op != "output":
            kind = f" ({type(self.fetch_attr(str(n.target))).__name__})" if n.op == "call_module" else ""
            self.ends.append(f"{n.target if kind else n}{kind}")

    def _after(self, n: fx.Node, read: list[fx.Node], x: Tensor, result: Tensor) -> Tensor | None:
        """The units of the result of an operation; None if they are unknown, or all are kept."""
        module: Any = self.fetch_attr(str(n.target)) if n.op == "call_module" else None
        operation: Any = n.target if module is None else type(module)
        units = self._units.get(read[0])
        layers = (nn.Linear, *_CONVOLUTIONS)
        reads = [o for o in self.graph.nodes if o.op in ("call_module", "get_attr")]
        if operation in layers and sum(f"{o.target}.".startswith(f"{n.target}.") for o in reads) > 1:
            return None
        if operation in layers:
            return self._made(n, module, x, units, result)
        if len(read) != 1 or units is None:
            return None
        if operation in _ELEMENTWISE or (operation in _QUIET and not module.training):
            return units
        if operation in _POOLING:
            return _pooled(units, _POOLING[operation], result.shape)
        if operation is nn.Flatten:
            return module(units)  # type: ignore[no-any-return]
        if operation in _FLATTENING:
            settings: Any = {name: value for name, value in n.kwargs.items() if name != "input"}
            return torch.flatten(units, *n.args[1:], **settings)  # type: ignore[arg-type]
        return None

    def _made(self, n: fx.Node, layer: Any, x: Tensor, units: Tensor | None, result: Tensor) -> Tensor | None:
        """New units for the outputs of a layer."""
        axis = x.dim() - 1 if isinstance(layer, nn.Linear) else 1
        if not isinstance(layer, nn.Linear) and (layer.groups != 1 or x.dim() != layer.weight.dim()):
            return None
        reads = None if units is None else _along(units, axis)
        if reads is None:
            self._keep(n, units)
        makes = torch.arange(self._number, self._number + len(layer.weight))
        self._number += len(makes)
        self.layers.append(_Layer(n, _copy_with_bias(layer), x.movedim(axis, -1), makes, reads))
        return makes.reshape(-1, *(1,) * (result.dim() - 1 - axis)).expand(result.shape)

    def kept(self) -> Tensor:
        """A mask of the units that operations keep."""
        units = torch.zeros(self._number, dtype=torch.bool)
        for some in self._kept:
            units[some] = True
        return units

    def fold(self) -> None:
        """Move the contributions of constant units into the biases of the layers that read them."""
        moved = True
        while moved:
            moved = False
            varying = torch.zeros(self._number, dtype=torch.bool)
            for layer in self.layers:
                varying[layer.makes] = layer.module.weight.flatten(1).any(1)
            for layer in self.layers:
                if layer.reads is None:
                    continue
                rows, weight = layer.x.flatten(0, -2), layer.module.weight
                columns = layer.has_weights(torch.ones(len(weight), dtype=torch.bool)) & ~varying[layer.reads]
                columns &= torch.isclose(rows, rows[:1], rtol=1e-5, atol=1e-7).all(0)  # not where pooling meets padding
                if layer.pads:
                    columns &= rows[0] == 0
                if columns.any():
                    moved = True
                    added = weight[:, columns].flatten(2).sum(2) if weight.dim() > 2 else weight[:, columns]
                    layer.module.bias += (added.double() @ rows[0, columns].double()).to(weight)
                    weight[:, columns] = 0

    def _used(self) -> Tensor:
        """A mask of the units that are used."""
        used, before = self.kept(), -1
        while before != (before := int(used.sum())):
            for layer in self.layers:
                if layer.reads is not None:
                    used[layer.reads[layer.has_weights(used[layer.makes])]] = True
        for layer in self.layers:
            used[layer.makes[0]] |= not used[layer.makes].any()  # PyTorch has no convolution without channels
        return used

    def small(self) -> fx.GraphModule:
        """The network with the layers as they are now, without unused units."""
        used = self._used()
        modules: dict[str, Any] = {
            str(node.target): self.fetch_attr(str(node.target))
            for node in self.graph.nodes
            if node.op in ("call_module", "get_attr") and node.users
        }
        for layer in self.layers:
            rows = used[layer.makes]
            columns = None if layer.reads is None else used[layer.reads]
            node = layer.node
            read: Any = node.args[0] if node.args else node.kwargs["input"]
            name = str(node.target)
            if columns is None and isinstance(layer.module, nn.Linear):
                columns = layer.has_weights(rows)
                columns[0] |= not columns.any()
                if columns.double().mean() > _FEWER:
                    columns = None
                else:
                    modules[f"{name}_inputs"] = columns.nonzero()[:, 0]
                    with self.graph.inserting_before(node):
                        read = self.graph.call_function(
                            torch.index_select, (read, -1, self.graph.get_attr(f"{name}_inputs"))
                        )
            modules[name] = _narrow(layer.module, rows, columns)
            node.args, node.kwargs = (read,), {}
        for node in reversed(self.graph.nodes):
            if not node.users and node.op == "get_attr":
                self.graph.erase_node(node)
        return fx.GraphModule(modules, self.graph, "Network").eval()


def _along(units: Tensor, axis: int) -> Tensor | None:
    """The unit of every index of an axis; None if it depends on the other axes."""
    rows = units.movedim(axis, -1).flatten(0, -2)
    return rows[0] if torch.equal(rows, rows[:1].expand_as(rows)) else None


def _copy_with_bias(layer: Any) -> Any:
    """A copy of a layer and its parameters, with a bias."""
    module = copy.deepcopy(layer)
    module.requires_grad_(False)
    if module.bias is None:
        module.bias = nn.Parameter(module.weight.new_zeros(len(module.weight)), requires_grad=False)
    return module


def _pooled(units: Tensor, axes: int, shape: torch.Size) -> Tensor | None:
    """Units after pooling; None if the unit varies along the pooled axes."""
    first = units
    for axis in range(-axes, 0):
        first = first.narrow(axis, 0, 1)
    return first.expand(shape) if torch.equal(units, first.expand_as(units)) else None


def _narrow(layer: Any, rows: Tensor, columns: Tensor | None) -> Any:
    """Reduce a layer, in place, to these outputs and inputs."""
    for name, value in (*layer.named_parameters(), *layer.named_buffers()):
        if value.dim():
            value = value.detach()[rows]
            value = value[:, columns].clone() if columns is not None and value.dim() > 1 else value.clone()
            setattr(layer, name, nn.Parameter(value, requires_grad=False) if name in layer._parameters else value)
    sizes = dict.fromkeys(("out_features", "out_channels"), rows)
    sizes |= {} if columns is None else {"in_features": columns, "in_channels": columns}
    for name, mask in sizes.items():
        if hasattr(layer, name):
            setattr(layer, name, int(mask.sum()))
    return layer
