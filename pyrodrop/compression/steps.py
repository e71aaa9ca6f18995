"""A plain network as a list of steps, its units, and the conversion to a module.

    x -> (x - loc) / scale -> pick columns -> W x + b -> g -> pool -> ... -> y scale + loc

The module is a `torch.fx.GraphModule` of PyTorch layers. Running, pickling, exporting or printing it
(``print(network.code)``) does not need this package.
"""

from __future__ import annotations

import keyword
import operator
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, fx, nn

from pyrodrop.networks.examine import close
from pyrodrop.scaling import Standardize

_ROUNDING = 1e-3  # of the standard deviation of x or y
_CONVOLUTIONS: dict[int, type[nn.Module]] = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}


class Step(Protocol):
    """One operation of a network on its activations."""

    def add(self, root: nn.Module, graph: fx.Graph, h: fx.Node, name: str) -> fx.Node:
        """Append the operation to the graph.

        Args:
            root: module that owns the parameters and buffers of the graph.

        Returns:
            The node of the activations after the step.
        """


@dataclass
class Standardised:
    """(x - loc) / scale, with one value per column or a single value."""

    loc: Tensor
    scale: Tensor

    def add(self, root: nn.Module, graph: fx.Graph, h: fx.Node, name: str) -> fx.Node:
        centred = graph.call_function(operator.sub, (h, _buffer(root, graph, f"{name}_loc", self.loc)))
        return graph.call_function(operator.truediv, (centred, _buffer(root, graph, f"{name}_scale", self.scale)))


@dataclass
class Picked:
    """Selects some of the columns of ``[N, ..., D]``."""

    columns: Tensor

    def add(self, root: nn.Module, graph: fx.Graph, h: fx.Node, name: str) -> fx.Node:
        return graph.call_function(torch.index_select, (h, -1, _buffer(root, graph, f"{name}_columns", self.columns)))


@dataclass
class Affine:
    """A dense layer, ``[out, in]``, or a convolution, ``[out, in, ...]``.

    Attributes:
        name: name of the layer in the original network.
        weight: its weight.
        bias: its bias, ``[out]``.
        options: stride, padding and dilation of a convolution.
        csr: whether the weight of a dense layer is stored as compressed sparse rows.
        feeds: for each input, the index of the unit of the previous layer that it comes from, ``[in]``; None for the first
            layer.
        input_dim: number of dimensions of the inputs, including the batch dimension.
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
        """Whether this is a dense layer."""
        return self.weight.dim() == 2

    def module(self) -> nn.Module:
        """The PyTorch layer with these values."""
        outputs, inputs = self.weight.shape[:2]
        layer: Any
        if self.dense:
            layer = nn.utils.skip_init(
                nn.Linear, max(1, inputs), outputs
            )  # with 0 inputs the output is the bias, but PyTorch would warn
            layer.in_features = inputs
        else:
            kind = _CONVOLUTIONS[self.weight.dim()]
            layer = nn.utils.skip_init(kind, inputs, outputs, tuple(self.weight.shape[2:]), **self.options)
        weight = self.weight.detach().clone()
        if self.csr:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
                weight = weight.to_sparse_csr()
        layer.weight = nn.Parameter(weight, requires_grad=False)
        layer.bias = nn.Parameter(self.bias.detach().clone(), requires_grad=False)
        return layer  # type: ignore[no-any-return]

    def add(self, root: nn.Module, graph: fx.Graph, h: fx.Node, name: str) -> fx.Node:
        root.add_module(name, self.module())
        return graph.call_module(name, (h,))


@dataclass
class Plain:
    """A PyTorch layer without weights."""

    kind: type[nn.Module]
    options: Mapping[str, Any]

    def module(self) -> nn.Module:
        """The PyTorch layer with these options."""
        return self.kind(**self.options)

    def add(self, root: nn.Module, graph: fx.Graph, h: fx.Node, name: str) -> fx.Node:
        root.add_module(name, self.module())
        return graph.call_module(name, (h,))


@dataclass
class Whole:
    """A whole network of the user, unchanged."""

    network: nn.Module

    def add(self, root: nn.Module, graph: fx.Graph, h: fx.Node, name: str) -> fx.Node:
        root.add_module(name, self.network)
        return graph.call_module(name, (h,))


@dataclass
class Rescaled:
    """The first `columns` outputs, multiplied by scale and shifted by loc, which gives f in the units of y."""

    loc: Tensor
    scale: Tensor
    columns: int

    def add(self, root: nn.Module, graph: fx.Graph, h: fx.Node, name: str) -> fx.Node:
        some = graph.call_function(torch.narrow, (h, -1, 0, self.columns))
        scaled = graph.call_function(operator.mul, (some, _buffer(root, graph, f"{name}_scale", self.scale)))
        return graph.call_function(operator.add, (scaled, _buffer(root, graph, f"{name}_loc", self.loc)))


def network_of(steps: Sequence[Step]) -> fx.GraphModule:
    """The module that applies the steps in order, in evaluation mode."""
    root, graph = nn.Module(), fx.Graph()
    h = graph.placeholder("x")
    for step, name in zip(steps, _names(steps), strict=True):
        h = step.add(root, graph, h, name)
    graph.output(h)
    graph.lint()
    return fx.GraphModule(root, graph, "Network").eval()


def _names(steps: Sequence[Step]) -> list[str]:
    """A name for each step, no two alike; layers are named as in the original network, as far as that is an identifier.

    The names become attributes of a module and part of its generated code, so whatever else a name contains is replaced.
    """
    names: list[str] = []
    taken: set[str] = set()
    for step in steps:
        if isinstance(step, Affine):
            first = re.sub(r"[^A-Za-z0-9_]", "_", step.name)
            if not first.isidentifier() or keyword.iskeyword(first) or hasattr(nn.Module(), first):
                first = f"layer_{first}"
            form = first + "_use_{}"  # a layer that is called more than once
        else:
            form = f"{(step.kind if isinstance(step, Plain) else type(step)).__name__.lower()}_{{}}"
            first = form.format(1)
        name = next(n for n in (first, *map(form.format, range(2, 4 * len(steps) + 3))) if taken.isdisjoint(_own(n)))
        names.append(name)
        taken |= _own(name)
    return names


def _own(name: str) -> set[str]:
    """The attributes that a step of this name may have."""
    return {name, *(f"{name}_{part}" for part in ("loc", "scale", "columns"))}


def _buffer(root: nn.Module, graph: fx.Graph, name: str, value: Tensor) -> fx.Node:
    root.register_buffer(name, value.detach().clone())
    return graph.get_attr(name)


def units_of_x(model: Any, like: Tensor) -> list[Step]:
    """The step that standardises x, with the dtype and device of `like`; no step if nothing changes.

    Raises:
        ValueError: x is too far from zero for this dtype.
    """
    _check_held("x", model.inputs, like)
    loc, scale = model.inputs.loc.to(like), model.inputs.scale.to(like)
    same = not bool(loc.any()) and bool((scale == 1).all())
    return [] if same else [Standardised(loc, scale)]


def units_of_y(model: Any, output: Tensor) -> list[Step]:
    """The step that converts outputs of the network to f; no step if nothing changes.

    It is determined by calling ``likelihood.location`` on random outputs of the shape of `output`, so it works for every
    likelihood whose f is a linear rescaling.

    Raises:
        TypeError: f of the likelihood is not a linear rescaling of the outputs.
        ValueError: y is too far from zero for the dtype of the outputs.
    """
    _check_held("y", model.targets, output)
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(output.shape, generator=generator).to(output)
    f = model.likelihood.location(output, model.targets).detach()
    if f.shape == output.shape and torch.equal(f, output):
        return []
    loc, scale = model.targets.loc.to(output), model.targets.scale.to(output)
    columns, width = f.shape[-1], output.shape[-1]
    if columns > width or not close(f, output[..., :columns] * scale + loc):
        raise TypeError(
            "compression needs a likelihood whose f is a linear rescaling of the network's outputs; got "
            f"{type(model.likelihood).__name__}"
        )
    return [Rescaled(loc, scale, columns)]


def _check_held(name: str, units: Standardize, like: Tensor) -> None:
    """Raise a ValueError for a standardisation whose offset the steps of a smaller network would round by too much."""
    rounding = torch.finfo(like.dtype).eps / 2 * units.loc.abs()
    if bool((rounding > _ROUNDING * units.scale).any()):
        precision = str(like.dtype).removeprefix("torch.")
        raise ValueError(
            f"compression needs {name} that {precision} tells apart, in which the compressed network computes; got columns "
            f"with means up to {float(units.loc.abs().max()):.6g} for a standard deviation of "
            f"{float(units.scale.min()):.6g}: subtract a constant from {name} before training"
        )
