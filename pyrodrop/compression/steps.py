"""A plain network as a list of steps, and the module that it makes.

    x -> (x - loc) / scale -> pick columns -> W x + b -> g -> pool -> ... -> y scale + loc

The module is a `torch.fx.GraphModule` of PyTorch's own layers: it needs nothing of this package to be run, pickled,
exported or read (``print(network.code)``).
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, fx, nn

_CONVOLUTIONS: dict[int, type[nn.Module]] = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}


class Step(Protocol):
    """Something that a network does to its activations."""

    def add(self, root: nn.Module, graph: fx.Graph, h: fx.Node, name: str) -> fx.Node:
        """Append to the graph what turns activations `h` into those behind the step."""


@dataclass
class Standardised:
    """(x - loc) / scale, in columns or by one number."""

    loc: Tensor
    scale: Tensor

    def add(self, root: nn.Module, graph: fx.Graph, h: fx.Node, name: str) -> fx.Node:
        centred = graph.call_function(operator.sub, (h, _buffer(root, graph, f"{name}_loc", self.loc)))
        return graph.call_function(operator.truediv, (centred, _buffer(root, graph, f"{name}_scale", self.scale)))


@dataclass
class Picked:
    """Some of the columns of ``[N, ..., D]``."""

    columns: Tensor

    def add(self, root: nn.Module, graph: fx.Graph, h: fx.Node, name: str) -> fx.Node:
        return graph.call_function(torch.index_select, (h, -1, _buffer(root, graph, f"{name}_columns", self.columns)))


@dataclass
class Affine:
    """A dense layer, ``[out, in]``, or a convolution, ``[out, in, ...]``.

    Attributes:
        name: of the layer in the network that it was.
        weight, bias: its values.
        options: of a convolution: stride, padding, dilation.
        csr: whether a dense layer's weight is laid out as compressed sparse rows.
        feeds: for each input, the unit of the layer before that it comes from, ``[in]``; None where no layer is before.
        input_dim: number of dimensions of the inputs, examples included.
    """

    name: str
    weight: Tensor
    bias: Tensor
    options: Mapping[str, Any] = field(default_factory=dict)
    csr: bool = False
    feeds: Tensor | None = None
    input_dim: int = 2

    @property
    def dense(self) -> bool:
        """Whether it is a dense layer."""
        return self.weight.dim() == 2

    def module(self) -> nn.Module:
        """PyTorch's layer of these values."""
        outputs, inputs = self.weight.shape[:2]
        layer: Any
        if self.dense:
            layer = nn.utils.skip_init(
                nn.Linear, max(1, inputs), outputs
            )  # PyTorch warns of none, whose sum is the bias
            layer.in_features = inputs
        else:
            kind = _CONVOLUTIONS[self.weight.dim()]
            layer = nn.utils.skip_init(kind, inputs, outputs, tuple(self.weight.shape[2:]), **self.options)
        weight = self.weight.detach().clone()
        layer.weight = nn.Parameter(weight.to_sparse_csr() if self.csr else weight, requires_grad=False)
        layer.bias = nn.Parameter(self.bias.detach().clone(), requires_grad=False)
        return layer  # type: ignore[no-any-return]

    def add(self, root: nn.Module, graph: fx.Graph, h: fx.Node, name: str) -> fx.Node:
        root.add_module(name, self.module())
        return graph.call_module(name, (h,))


@dataclass
class Plain:
    """A layer of PyTorch's without weights."""

    kind: type[nn.Module]
    options: Mapping[str, Any]

    def module(self) -> nn.Module:
        """PyTorch's layer with these options."""
        return self.kind(**self.options)

    def add(self, root: nn.Module, graph: fx.Graph, h: fx.Node, name: str) -> fx.Node:
        root.add_module(name, self.module())
        return graph.call_module(name, (h,))


@dataclass
class Whole:
    """A network of the user's own, as it is."""

    network: nn.Module

    def add(self, root: nn.Module, graph: fx.Graph, h: fx.Node, name: str) -> fx.Node:
        root.add_module(name, self.network)
        return graph.call_module(name, (h,))


@dataclass
class Rescaled:
    """The first `columns` outputs, times scale plus loc: in the units of y."""

    loc: Tensor
    scale: Tensor
    columns: int

    def add(self, root: nn.Module, graph: fx.Graph, h: fx.Node, name: str) -> fx.Node:
        some = graph.call_function(torch.narrow, (h, -1, 0, self.columns))
        scaled = graph.call_function(operator.mul, (some, _buffer(root, graph, f"{name}_scale", self.scale)))
        return graph.call_function(operator.add, (scaled, _buffer(root, graph, f"{name}_loc", self.loc)))


def network_of(steps: Sequence[Step]) -> fx.GraphModule:
    """The module that takes the steps."""
    root, graph = nn.Module(), fx.Graph()
    h = graph.placeholder("x")
    counts: dict[str, int] = {}
    for step in steps:
        if isinstance(step, Affine):
            name = step.name.replace(".", "_")
            name = f"layer_{name}" if name[0].isdigit() else name
            counts[name] = counts.get(name, 0) + 1
            name += f"_use_{counts[name]}" if counts[name] > 1 else ""  # a layer that is called more than once
        else:
            word = (step.kind if isinstance(step, Plain) else type(step)).__name__.lower()
            counts[word] = counts.get(word, 0) + 1
            name = f"{word}_{counts[word]}"
        h = step.add(root, graph, h, name)
    graph.output(h)
    graph.lint()
    return fx.GraphModule(root, graph, "Network").eval()


def _buffer(root: nn.Module, graph: fx.Graph, name: str, value: Tensor) -> fx.Node:
    root.register_buffer(name, value.detach().clone())
    return graph.get_attr(name)
