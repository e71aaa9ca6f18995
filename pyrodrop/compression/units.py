"""Follow the units of a network from the layers that make them to those that read them, fold constant units into biases,
and remove units that no layer reads.

    a unit is constant    if its weights are 0 in all layers that make it:    b <- b + W[:, k] a_k, and W[:, k] <- 0
    a unit is used        if a layer has a weight on it in a row of a used unit, or an unknown operation reads or makes it

Units that a sum ties together, such as those of a residual stream, form one group and are removed together. A tensor with
the unit of each element accompanies every activation and is reshaped like it, which shows the unit of each input of the next
layer. Units are followed through dense layers, convolutions, batch normalisation, elementwise functions, pooling, sums of
equal shapes, flattening and permuting. All other operations keep all units of their inputs and outputs. A constant unit
before a convolution that pads with zeros is kept, unless it is 0, because its contribution is smaller at the border.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from pyrodrop.compression.plain import Untraced, same_outputs, trace

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
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
_SUMS = (operator.add, operator.iadd, torch.add, "add", "add_")
_RESHAPING = (torch.flatten, torch.permute, torch.transpose, "flatten", "permute", "transpose", "contiguous")
_VIEWS = ("view", "reshape", torch.reshape)
_FEWER = 0.75  # inputs of a first layer are selected if at most this share of them has weights


class NotFollowed(TypeError):
    """No unit of a network can be removed, as none can be followed from the layer that makes it to those that read it."""


@dataclass(frozen=True)
class _Units:
    """The units of an activation: their group, and in `numbers` the unit of every element, in the activation's shape."""

    group: int
    numbers: Tensor

    def along(self, axis: int) -> Tensor | None:
        """The unit of every index of an axis; None if it depends on the other axes."""
        rows = self.numbers.movedim(axis, -1).flatten(0, -2)
        return rows[0] if torch.equal(rows, rows[:1].expand_as(rows)) else None


@dataclass
class _Layer:
    """One call of a layer with weights, or of a batch normalisation.

    Attributes:
        module: a copy of the layer that shares nothing with the network.
        x: its input for the example rows.
        axis: axis of x that holds the input units.
        reads: group of the units that it reads, and the unit of each of its inputs; None if they are not followed.
        makes: group of the units that it makes, and the unit of each of its outputs; for a batch normalisation, those that
            it reads.
    """

    node: fx.Node
    module: Any
    x: Tensor
    axis: int
    reads: tuple[int, Tensor] | None
    makes: tuple[int, Tensor]

    @property
    def is_norm(self) -> bool:
        return isinstance(self.module, _NORMS)

    @property
    def pads_with_zeros(self) -> bool:
        layer = self.module
        if isinstance(layer, nn.Linear) or layer.padding_mode != "zeros":
            return False
        if isinstance(layer.padding, str):  # "same" pads unless the kernel size is 1
            return layer.padding != "valid" and max(layer.kernel_size) > 1
        return any(layer.padding)

    def has_weights(self, rows: Tensor | None = None) -> Tensor:
        """Which inputs have a weight that is not 0 in some row, ``[in]``."""
        weight: Tensor = self.module.weight if rows is None else self.module.weight[rows]
        return weight.flatten(2).any(-1).any(0) if weight.dim() > 2 else weight.any(0)


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
        if not followed.free and sum(parameter.dim() > 1 for parameter in network.parameters()) > 1:
            raise NotFollowed(f"{_WHY}; here they end at {', '.join(dict.fromkeys(followed.ends)) or 'the output'}")
        followed.fold()
        small = followed.small()
    if not same_outputs(small, network, x):
        raise NotFollowed(f"{_WHY}; the outputs of this one change without them, for example because of a hook")
    return small


_WHY = (
    "compression needs units that are followed from the layer that makes them to those that read them, through dense "
    "layers, convolutions, batch normalisation, elementwise functions, pooling, sums and flattening (structured=False works "
    "for every network and keeps its shape)"
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
        self._kept: set[int] = set()  # groups of which every unit is kept
        self._parents: list[int] = []
        self._sizes: list[int] = []
        self._units: dict[fx.Node, _Units] = {}
        self._flattened: list[fx.Node] = []

    @property
    def free(self) -> bool:
        """Whether there is a group of units that may be removed."""
        return bool(set(map(self._root, range(len(self._parents)))) - self._roots_kept())

    def run_node(self, n: fx.Node) -> Any:
        """Run an operation, and follow the units that it reads."""
        read = [node for node in n.all_input_nodes if isinstance(self.env[node], Tensor)]
        x = self.env[read[0]].clone() if read else None  # before an operation in place
        result = super().run_node(n)
        units = self._after(n, read, x, result) if isinstance(result, Tensor) and x is not None else None
        if units is not None:
            self._units[n] = units
        elif not _asks_rows(n):
            self._keep(n, [self._units[node] for node in read if node in self._units])
        return result

    def _keep(self, n: fx.Node, units: Iterable[_Units]) -> None:
        """Record that an operation keeps all of these units."""
        for each in units:
            self._kept.add(each.group)
            if n.op != "output":
                kind = f" ({type(self.fetch_attr(str(n.target))).__name__})" if n.op == "call_module" else ""
                self.ends.append(f"{n.target if kind else n}{kind}")

    def _after(self, n: fx.Node, read: list[fx.Node], x: Tensor, result: Tensor) -> _Units | None:
        """The units of the result of an operation; None if they are unknown, or all are kept."""
        module = self.fetch_attr(str(n.target)) if n.op == "call_module" else None
        operation: Any = n.target if module is None else type(module)
        units = self._units.get(read[0])
        if operation in (nn.Linear, *_CONVOLUTIONS):
            return self._made(n, module, x, units, result)
        if len(read) == 2 and operation in _SUMS and units is not None and read[1] in self._units:
            return self._tied(units, self._units[read[1]])
        if len(read) != 1 or units is None:
            return None
        if operation in _NORMS:
            return self._normalised(n, module, x, units)
        if operation in _ELEMENTWISE or (operation in _QUIET and not module.training):  # type: ignore[union-attr]
            return units
        if operation in _POOLING:
            return _pooled(units, _POOLING[operation], result.shape)
        if operation is nn.Flatten:
            return _Units(units.group, module(units.numbers))  # type: ignore[misc]
        if operation in _VIEWS and result.shape == (len(x), x.numel() // len(x)):
            self._flattened.append(n)
            return _Units(units.group, units.numbers.flatten(1))
        if operation in _RESHAPING:
            call = operation if n.op == "call_function" else getattr(Tensor, operation)
            return _Units(units.group, call(units.numbers, *n.args[1:], **n.kwargs))  # type: ignore[operator]
        return None

    def _made(self, n: fx.Node, layer: Any, x: Tensor, units: _Units | None, result: Tensor) -> _Units | None:
        """A new group for the outputs of a layer."""
        dense = isinstance(layer, nn.Linear)
        if not dense and (layer.groups != 1 or x.dim() != layer.weight.dim()):
            return None
        axis = x.dim() - 1 if dense else 1
        feeds = None if units is None else units.along(axis)
        if units is not None and feeds is None:
            self._keep(n, [units])
        group, size = len(self._parents), len(layer.weight)
        self._parents.append(group)
        self._sizes.append(size)
        reads = None if units is None or feeds is None else (units.group, feeds)
        self.layers.append(_Layer(n, _copy_with_bias(layer), x, axis, reads, (group, torch.arange(size))))
        numbers = torch.arange(size).reshape(-1, *(1,) * (result.dim() - 1 - axis)).expand(result.shape)
        return _Units(group, numbers)

    def _normalised(self, n: fx.Node, norm: Any, x: Tensor, units: _Units) -> _Units | None:
        feeds = units.along(1)
        if feeds is None or norm.running_mean is None or norm.training:
            return None
        self.layers.append(_Layer(n, _copy_with_bias(norm), x, 1, None, (units.group, feeds)))
        return units

    def _tied(self, first: _Units, second: _Units) -> _Units | None:
        """The units of a sum: one group, if the summands have the same units in the same places."""
        group, other = self._root(first.group), self._root(second.group)
        if not torch.equal(first.numbers, second.numbers) or self._sizes[group] != self._sizes[other]:
            return None
        self._parents[other] = group
        return _Units(group, first.numbers)

    def _root(self, group: int) -> int:
        """The representative of the groups that are tied to this one."""
        while self._parents[group] != group:
            group = self._parents[group]
        return group

    def _roots_kept(self) -> set[int]:
        return {self._root(group) for group in self._kept}

    def _readers(self) -> Iterable[tuple[_Layer, int, Tensor]]:
        """The layers whose input units are followed, with the root of the units' group and the unit of each input."""
        return ((layer, self._root(layer.reads[0]), layer.reads[1]) for layer in self.layers if layer.reads is not None)

    def fold(self) -> None:
        """Move the contributions of constant units into the biases of the layers that read them."""
        moved = True
        while moved:
            moved = False
            constant = {root: torch.ones(size, dtype=torch.bool) for root, size in enumerate(self._sizes)}
            for layer in self.layers:
                if not layer.is_norm:
                    constant[self._root(layer.makes[0])] &= ~layer.module.weight.flatten(1).any(1)
            for layer, root, feeds in self._readers():
                rows = layer.x.movedim(layer.axis, -1).flatten(0, -2)
                columns = constant[root][feeds] & layer.has_weights()
                columns &= torch.isclose(rows, rows[:1], rtol=1e-5, atol=1e-7).all(0)  # not where pooling meets padding
                if layer.pads_with_zeros:
                    columns &= rows[0] == 0
                if columns.any():
                    moved = True
                    weight: Tensor = layer.module.weight
                    added = weight[:, columns].flatten(2).sum(2) if weight.dim() > 2 else weight[:, columns]
                    layer.module.bias += (added.double() @ rows[0, columns].double()).to(weight)
                    weight[:, columns] = 0

    def _used(self) -> dict[int, Tensor]:
        """Which units are used, by the root of their group."""
        kept = self._roots_kept()
        used = {root: torch.full((size,), root in kept) for root, size in enumerate(self._sizes)}
        before = -1
        while before != (before := sum(int(mask.sum()) for mask in used.values())):
            for layer, root, feeds in self._readers():
                used[root][feeds[layer.has_weights(used[self._root(layer.makes[0])])]] = True
        for mask in used.values():
            mask[0] |= not mask.any()  # PyTorch has no convolution without channels
        return used

    def small(self) -> fx.GraphModule:
        """The network with the layers as they are now, without unused units."""
        used, called = self._used(), {layer.node for layer in self.layers}
        modules: dict[str, Any] = {
            str(node.target): self.fetch_attr(str(node.target))
            for node in self.graph.nodes
            if node.op in ("call_module", "get_attr") and node.users and node not in called
        }
        for layer in self.layers:
            rows = used[self._root(layer.makes[0])][layer.makes[1]]
            columns = None if layer.reads is None else used[self._root(layer.reads[0])][layer.reads[1]]
            node = layer.node
            read: Any = node.args[0] if node.args else node.kwargs["input"]
            name = _new_name(modules, str(node.target))
            if layer.reads is None and isinstance(layer.module, nn.Linear):
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
            node.target, node.args, node.kwargs = name, (read,), {}
        for node in self._flattened:
            node.op, node.target, node.args, node.kwargs = "call_function", torch.flatten, (node.args[0], 1), {}
        for node in reversed(self.graph.nodes):
            if not node.users and (node.op == "get_attr" or _asks_rows(node)):
                self.graph.erase_node(node)
        return fx.GraphModule(modules, self.graph, "Network").eval()


def _copy_with_bias(layer: Any) -> Any:
    """A copy of a layer and its parameters, with a bias."""
    module = copy.deepcopy(layer)
    module.requires_grad_(False)
    if not isinstance(module, _NORMS) and module.bias is None:
        module.bias = nn.Parameter(module.weight.new_zeros(len(module.weight)), requires_grad=False)
    return module


def _pooled(units: _Units, axes: int, shape: torch.Size) -> _Units | None:
    """Units after pooling; None if the unit varies along the pooled axes."""
    first = units.numbers
    for axis in range(-axes, 0):
        first = first.narrow(axis, 0, 1)
    return (
        _Units(units.group, first.expand(shape)) if torch.equal(units.numbers, first.expand_as(units.numbers)) else None
    )


def _asks_rows(n: fx.Node) -> bool:
    """Whether an operation returns the number of rows, as in ``x.view(x.size(0), -1)``, or of axes."""
    if n.op == "call_method":
        return n.target == "dim" or (n.target == "size" and n.args[1:] == (0,))
    if n.target is getattr and n.args[1] in ("shape", "ndim"):
        return n.args[1] == "ndim" or all(user.target is operator.getitem and user.args[1] == 0 for user in n.users)
    return n.target is operator.getitem and isinstance(n.args[0], fx.Node) and _asks_rows(n.args[0])


def _new_name(taken: Iterable[str], target: str) -> str:
    """A unique name for a layer: `target`, that of its call, if possible."""
    names = (target, *(f"{target}_{number}" for number in range(2, 10**6)))
    return next(name for name in names if not any(f"{other}.".startswith(f"{name}.") for other in taken))


def _narrow(layer: Any, rows: Tensor, columns: Tensor | None) -> Any:
    """Reduce a layer, in place, to these outputs and inputs."""
    for name, value in (*layer.named_parameters(), *layer.named_buffers()):
        if value.dim():
            value = value.detach()[rows]
            value = value[:, columns].clone() if columns is not None and value.dim() > 1 else value.clone()
            setattr(layer, name, nn.Parameter(value, requires_grad=False) if name in layer._parameters else value)
    sizes = dict.fromkeys(("out_features", "out_channels", "num_features"), rows)
    sizes |= {} if columns is None else {"in_features": columns, "in_channels": columns}
    for name, mask in sizes.items():
        if hasattr(layer, name):
            setattr(layer, name, int(mask.sum()))
    return layer
