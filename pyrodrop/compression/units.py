"""Fold constant units of a network into biases, and remove units that no layer reads.

    a unit is constant    if its weights are 0 in the layer that makes it:    b <- b + W[:, k] a_k, and W[:, k] <- 0
    a unit is used        if the layer that reads it has a weight on it in the row of a used unit

The units of a layer are followed where a single layer reads them: through elementwise functions, pooling and ``flatten``,
each of which is all that reads the one before. All others, such as those that a sum or a normalisation reads, are kept. A
constant unit before a convolution that pads is kept, unless it is 0, because its contribution is smaller at the border.
"""

from __future__ import annotations

import copy
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
_POOLING = frozenset[Any]().union(*(
    _operations(f"{kind}_pool{axes}d") for kind in ("max", "avg", "adaptive_max", "adaptive_avg") for axes in (1, 2, 3)
))  # fmt: skip
_FEWER = 0.75  # inputs of a first layer are selected if at most this share of them has weights


class NotFollowed(TypeError):
    """No unit of a network can be removed, as none can be followed from the layer that makes it to the one that reads it."""


_WHY = (
    "compression needs units that are followed from the layer that makes them to the only one that reads them, through "
    "dense layers and convolutions that are called once, elementwise functions, pooling and flatten (structured=False "
    "works for every network and keeps its shape)"
)


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
        if not followed.readers() and sum(parameter.dim() > 1 for parameter in network.parameters()) > 1:
            raise NotFollowed(_WHY)
        small = followed.small()
    if not same_outputs(small, network, x):
        raise NotFollowed(f"{_WHY}; the outputs of this one change without them, for example because of a hook")
    return small


class _Followed(fx.Interpreter):
    """Runs a network on example rows, and follows the units of its layers.

    Attributes:
        layers: the layers that are called once, as copies that share nothing with the network, in order.
        inputs: their inputs for the example rows, ``[rows, in]``.
    """

    def __init__(self, network: nn.Module, graph: fx.Graph) -> None:
        super().__init__(network, graph=graph)
        self.layers: dict[fx.Node, Any] = {}
        self.inputs: dict[fx.Node, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run an operation, and keep a layer with its input."""
        layer: Any = self.fetch_attr(str(n.target)) if n.op == "call_module" else None
        named = [f"{o.target}." for o in self.graph.nodes if o.op in ("call_module", "get_attr")]
        if type(layer) in (nn.Linear, *_CONVOLUTIONS) and sum(name.startswith(f"{n.target}.") for name in named) == 1:
            x = self.env[n.all_input_nodes[0]]
            dense = isinstance(layer, nn.Linear)
            if dense or (layer.groups == 1 and x.dim() == layer.weight.dim()):
                self.layers[n] = _copy_with_bias(layer)
                self.inputs[n] = x.movedim(-1 if dense else 1, -1).flatten(0, -2).clone()
        return super().run_node(n)

    def readers(self) -> dict[fx.Node, tuple[fx.Node, int]]:
        """The only layer that reads the units of a layer, and the number of its inputs that are one unit."""
        found = {node: self._reader(node) for node in self.layers}
        return {node: reader for node, reader in found.items() if reader is not None}

    def _reader(self, node: fx.Node) -> tuple[fx.Node, int] | None:
        maps, n = not isinstance(self.layers[node], nn.Linear), node  # whether units are maps along axis 1
        flat = False
        while len(n.users) == 1:
            before, n = n, next(iter(n.users))
            if n.all_input_nodes != [before] or n.op == "output":
                return None
            layer = self.layers.get(n)
            if layer is not None:
                if isinstance(layer, nn.Linear) == maps and not flat:
                    return None
                return n, self.inputs[n].shape[1] // len(self.layers[node].weight)
            module: Any = self.fetch_attr(str(n.target)) if n.op == "call_module" else None
            operation: Any = n.target if module is None else type(module)
            if operation in _POOLING and maps and not flat:
                continue
            if maps and _flattens(n, operation, module):
                flat = True
            elif operation not in _ELEMENTWISE and (operation not in _QUIET or module.training):
                return None
        return None

    def small(self) -> fx.GraphModule:
        """The network without constant and unused units."""
        readers = self.readers()
        for node, (reader, size) in readers.items():  # in order, so that units whose weights went are constant in turn
            constant = ~self.layers[node].weight.flatten(1).any(1)
            self._fold(self.layers[reader], self.inputs[reader], constant.repeat_interleave(size))
        used: dict[fx.Node, Tensor] = {}
        for node in reversed(self.layers):
            used[node] = torch.ones(len(self.layers[node].weight), dtype=torch.bool)
            if node in readers:
                reader, size = readers[node]
                used[node] = _has_weights(self.layers[reader], used[reader]).unflatten(0, (-1, size)).any(1)
                used[node][0] |= not used[node].any()  # PyTorch has no convolution without channels
        nodes = [node for node in self.graph.nodes if node.op in ("call_module", "get_attr")]
        modules: dict[str, Any] = {str(node.target): self.fetch_attr(str(node.target)) for node in nodes}
        columns = {reader: used[node].repeat_interleave(size) for node, (reader, size) in readers.items()}
        for node, layer in self.layers.items():
            if node not in columns and isinstance(layer, nn.Linear):
                read = _has_weights(layer, used[node])
                read[0] |= not read.any()
                if read.double().mean() <= _FEWER:
                    columns[node], name = read, f"{node.target}_inputs"
                    modules[name], x = read.nonzero()[:, 0], node.all_input_nodes[0]
                    with self.graph.inserting_before(node):
                        fewer = self.graph.call_function(torch.index_select, (x, -1, self.graph.get_attr(name)))
                    node.replace_input_with(x, fewer)
            modules[str(node.target)] = _narrow(layer, used[node], columns.get(node))
        return fx.GraphModule(modules, self.graph, "Network").eval()

    def _fold(self, layer: Any, rows: Tensor, constant: Tensor) -> None:
        """Move the contributions of constant inputs into the bias of a layer."""
        weight = layer.weight
        columns = constant & _has_weights(layer, torch.ones(len(weight), dtype=torch.bool))
        columns &= torch.isclose(rows, rows[:1], rtol=1e-5, atol=1e-7).all(0)  # not where pooling meets padding
        if not isinstance(layer, nn.Linear) and layer.padding != (0,) * len(layer.kernel_size):
            columns &= rows[0] == 0
        added = weight[:, columns].flatten(2).sum(2) if weight.dim() > 2 else weight[:, columns]
        layer.bias += (added.double() @ rows[0, columns].double()).to(weight)
        weight[:, columns] = 0


def _flattens(n: fx.Node, operation: Any, module: Any) -> bool:
    """Whether an operation flattens maps, all axes but the first."""
    if operation is nn.Flatten:
        return (module.start_dim, module.end_dim) == (1, -1)
    axes = {**dict(zip(("start_dim", "end_dim"), n.args[1:], strict=False)), **n.kwargs}
    return operation in (torch.flatten, "flatten") and (axes.get("start_dim"), axes.get("end_dim", -1)) == (1, -1)


def _has_weights(layer: Any, rows: Tensor) -> Tensor:
    """Which inputs of a layer have a weight that is not 0 in some of these rows, ``[in]``."""
    return layer.weight[rows].transpose(0, 1).flatten(1).any(1)  # type: ignore[no-any-return]


def _copy_with_bias(layer: Any) -> Any:
    """A copy of a layer and its parameters, with a bias."""
    module = copy.deepcopy(layer)
    module.requires_grad_(False)
    if module.bias is None:
        module.bias = nn.Parameter(module.weight.new_zeros(len(module.weight)), requires_grad=False)
    return module


def _narrow(layer: Any, rows: Tensor, columns: Tensor | None) -> Any:
    """Reduce a layer, in place, to these outputs and inputs."""
    weight = layer.weight[rows] if columns is None else layer.weight[rows][:, columns]
    for name, value in (("weight", weight), ("bias", layer.bias[rows])):
        setattr(layer, name, nn.Parameter(value.detach().clone(), requires_grad=False))
    kind = "features" if isinstance(layer, nn.Linear) else "channels"
    for name, size in zip(("out", "in"), weight.shape[:2], strict=True):
        setattr(layer, f"{name}_{kind}", size)
    return layer
