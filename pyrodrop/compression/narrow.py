"""Removal of unused units from a network that is not a chain: residual sums, batch normalisation anywhere, branches.

    a unit is used    if a layer has a weight on it in a row of a used unit, or an unknown operation reads or makes it

Units that a sum ties together, as those of a residual stream, are one group, and leave together. `torch.fx` follows the
units of dense layers and convolutions through batch normalisation, elementwise layers, pooling, sums of equal shapes and
flattening, which makes several columns of a unit. All other operations keep the units of what they read and make. The layers
are copied without the units that are not used, so nothing else changes. Constant units stay: there is no single bias to fold
them into.
"""

from __future__ import annotations

import copy
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from pyrodrop.compression.chain import NoChain, Shapes
from pyrodrop.compression.layers import ELEMENTWISE, POOLS, plain_call, plain_layer
from pyrodrop.threads import Tracer

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_SUMS = (operator.add, operator.iadd, torch.add, "add", "add_")


@dataclass(frozen=True)
class _Units:
    """The units of an activation: those of `group` along `axis`; `feeds` is the unit of each index, ``[size]``."""

    group: int
    axis: int
    feeds: Tensor


@dataclass(frozen=True)
class _Layer:
    """A dense layer or convolution, from units to units, or a batch normalisation, of units; None where all are kept."""

    target: str
    module: Any
    reads: _Units | None
    makes: _Units | None


def narrowed(network: nn.Module, x: Any) -> fx.GraphModule:
    """A copy of a network without the units that it does not use.

    Args:
        network: in evaluation mode, with weights of 0 where units are pruned.
        x: example inputs, for the shapes and a comparison of outputs.

    Raises:
        NoChain: `torch.fx` cannot trace the network, no unit of it could be removed, or the outputs differ.
    """
    try:
        graph = Tracer().trace(network)
    except Exception as error:  # any operation that needs concrete values
        raise NoChain(f"torch.fx cannot trace the network: {error}") from error
    found = _Followed(network, graph, x)
    if not found.free:
        raise NoChain("no unit is followed from the layer that makes it to those that read it")
    used = found.used()
    for node in graph.nodes:
        node.type = None  # annotations that are strings cannot be pickled
    small = fx.GraphModule(network, graph, "Network").eval()
    for layer in found.layers:
        rows = None if layer.makes is None else used[found.root(layer.makes.group)][layer.makes.feeds]
        columns = None if layer.reads is None else used[found.root(layer.reads.group)][layer.reads.feeds]
        small.set_submodule(layer.target, _narrow(layer.module, rows, columns))
    with torch.no_grad():
        want, f = network(x), small(x)
    if want.shape != f.shape or not torch.allclose(f, want, rtol=1e-3, atol=1e-4 * float(want.abs().max())):
        raise NoChain("its outputs change if its unused units are removed")
    return small


class _Followed:
    """The groups of units of a traced network.

    Attributes:
        fixed: groups of which every unit is kept.
    """

    def __init__(self, network: nn.Module, graph: fx.Graph, x: Any) -> None:
        shapes = Shapes(network, graph)
        with torch.no_grad():
            shapes.run(x)
        self.shapes, self.modules = shapes.shapes, dict(network.named_modules(remove_duplicate=False))
        self.layers: list[_Layer] = []
        self.fixed: set[int] = set()
        self._parents: list[int] = []
        self._sizes: list[int] = []
        self._units: dict[fx.Node, _Units] = {}
        self._shared = _shared(network, graph)
        for node in graph.nodes:
            units = self._after(node)
            if units is not None:
                self._units[node] = units
            elif node.op not in ("placeholder", "get_attr") and not _asks_rows(node):
                self.fixed.update(self._units[read].group for read in node.all_input_nodes if read in self._units)

    @property
    def free(self) -> bool:
        """Whether there is a group that is not fixed."""
        return any(self.root(group) not in self._roots(self.fixed) for group in range(len(self._parents)))

    def root(self, group: int) -> int:
        """The group that stands for all that are tied to this one."""
        while self._parents[group] != group:
            group = self._parents[group]
        return group

    def used(self) -> dict[int, Tensor]:
        """Boolean masks of the units that are used, by root."""
        fixed = self._roots(self.fixed)
        used = {g: torch.full((self._sizes[g],), g in fixed) for g in self._roots(range(len(self._parents)))}
        before = -1
        while before != (before := sum(int(mask.sum()) for mask in used.values())):
            for layer in self.layers:
                if layer.reads is not None and not isinstance(layer.module, _NORMS):
                    weight = (
                        layer.module.weight.flatten(2).any(2) if layer.module.weight.dim() > 2 else layer.module.weight
                    )
                    if layer.makes is not None:
                        weight = weight[used[self.root(layer.makes.group)]]
                    used[self.root(layer.reads.group)][layer.reads.feeds[weight.any(0)]] = True
        for mask in used.values():
            mask[0] |= not mask.any()  # PyTorch has no convolution without channels
        return used

    def _roots(self, groups: Any) -> set[int]:
        return {self.root(group) for group in groups}

    def _after(self, node: fx.Node) -> _Units | None:
        """The units of what an operation makes; None if it is not known, or keeps all of them."""
        if node.op not in ("call_module", "call_function", "call_method") or node not in self.shapes:
            return None
        read = [self._units.get(n) for n in node.all_input_nodes]
        layer = self.modules[str(node.target)] if node.op == "call_module" else None
        if layer is not None and (node.target in self._shared or node.kwargs):
            return None
        if type(layer) in (nn.Linear, *_CONVOLUTIONS):
            return self._made(node, layer, read[0])
        if len(read) == 2 and node.target in _SUMS and read[0] is not None and read[1] is not None:
            return self._tied(node, read[0], read[1])
        units = read[0] if len(read) == 1 else None
        if units is None:
            return None
        if type(layer) in _NORMS:
            if units.axis != 1 or layer.running_mean is None:  # type: ignore[union-attr]
                return None
            self.layers.append(_Layer(str(node.target), layer, None, units))
            return units
        return self._through(node, layer, units)

    def _made(self, node: fx.Node, layer: Any, units: _Units | None) -> _Units | None:
        """A new group for the outputs of a layer, which reads those of its input if they are along its axis."""
        dense = isinstance(layer, nn.Linear)
        dims = len(self.shapes[node])
        if not dense and (layer.groups != 1 or dims != layer.weight.dim()):
            return None
        axis = dims - 1 if dense else 1
        if units is not None and units.axis != axis:
            self.fixed.add(units.group)
            units = None
        self._parents.append(len(self._parents))
        self._sizes.append(len(layer.weight))
        made = _Units(len(self._parents) - 1, axis, torch.arange(len(layer.weight)))
        self.layers.append(_Layer(str(node.target), layer, units, made))
        return made

    def _tied(self, node: fx.Node, one: _Units, other: _Units) -> _Units | None:
        """The units of a sum: one group, if the summands have the same units in the same places."""
        shapes = {self.shapes[n] for n in node.all_input_nodes}
        if len(shapes) > 1 or one.axis != other.axis or not torch.equal(one.feeds, other.feeds):
            return None
        first, second = self.root(one.group), self.root(other.group)
        if self._sizes[first] != self._sizes[second]:
            return None
        self._parents[second] = first
        return replace(one, group=first)

    def _through(self, node: fx.Node, layer: nn.Module | None, units: _Units) -> _Units | None:
        before, after = self.shapes[node.all_input_nodes[0]], self.shapes[node]
        if layer is None and node.target in ("view", "reshape", torch.reshape):
            flat = node.args[-1] == -1 or node.args[-1] == (after[0], -1)
            return _flat(units, before) if flat and after == (before[0], before[1:].numel()) else None
        kind, options = _plain(node, layer) or (None, {})
        if kind is nn.Flatten:
            whole = options["start_dim"] == 1 and options["end_dim"] in (-1, len(before) - 1)
            return _flat(units, before) if whole else None
        pooled = len(before) - int(kind.__name__[-2]) if kind in POOLS else len(before)
        return units if kind in ELEMENTWISE or (kind in POOLS and units.axis < pooled) else None


def _plain(node: fx.Node, layer: nn.Module | None) -> tuple[type[nn.Module], dict[str, Any]] | None:
    """Kind and options of a layer without weights, or of the function call that is one."""
    if layer is not None:
        return plain_layer(layer)
    others: Sequence[Any] = (*node.args[1:], *node.kwargs.values())
    if not node.args or any(isinstance(argument, fx.Node) for argument in others):
        return None
    return plain_call(node.target, node.args[1:], node.kwargs)


def _flat(units: _Units, shape: torch.Size) -> _Units | None:
    """Units along axis 1 after flattening from there."""
    return None if units.axis != 1 else _Units(units.group, 1, units.feeds.repeat_interleave(shape[2:].numel()))


def _asks_rows(node: fx.Node) -> bool:
    """Whether a node is the number of rows, as in ``x.view(x.size(0), -1)``."""
    return node.op == "call_method" and node.target == "size" and node.args[1:] == (0,)


def _shared(network: nn.Module, graph: fx.Graph) -> set[str]:
    """Names of modules that are called several times, or share a parameter with another module."""
    calls = Counter(id(network.get_submodule(str(n.target))) for n in graph.nodes if n.op == "call_module")
    names: dict[int, set[str]] = {}
    for prefix, module in network.named_modules(remove_duplicate=False):
        for parameter in module.parameters(recurse=False):
            names.setdefault(id(parameter), set()).add(prefix)
    several = {name for group in names.values() if len(group) > 1 for name in group}
    targets = {str(n.target) for n in graph.nodes if n.op == "call_module"}
    return several | {target for target in targets if calls[id(network.get_submodule(target))] > 1}


def _narrow(module: Any, rows: Tensor | None, columns: Tensor | None) -> nn.Module:
    """A copy of a layer with these of its outputs and inputs."""
    layer = copy.deepcopy(module)
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        if value.dim():
            value = value.detach() if rows is None else value.detach()[rows]
            value = value[:, columns] if columns is not None and value.dim() > 1 else value
            value = value.clone()
            setattr(layer, name, nn.Parameter(value, requires_grad=False) if name in module._parameters else value)
    wide = ("out_features", "out_channels", "num_features")
    sizes = dict.fromkeys(wide, rows) | {"in_features": columns, "in_channels": columns}
    for name, kept in sizes.items():
        if kept is not None and hasattr(layer, name):
            setattr(layer, name, int(kept.sum()))
    return layer  # type: ignore[no-any-return]
