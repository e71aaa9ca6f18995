"""A network with fixed weights as a plain PyTorch module, from x to f in their original units.

    x -> (x - loc) / scale -> network -> y scale + loc

Where `torch.fx` can trace the network, the module is a `torch.fx.GraphModule` of PyTorch layers. Running, pickling,
exporting and printing it (``print(network.code)``) require neither this package nor the class of the network. Otherwise the
module contains a copy of the user's network.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from pyrodrop.changes import evaluating
from pyrodrop.checks import Inputs, first_line, shown
from pyrodrop.models.network import NetworkModel
from pyrodrop.models.trained_network import TrainedNetwork
from pyrodrop.networks.call import Output
from pyrodrop.networks.sites import thaw
from pyrodrop.networks.trial import close
from pyrodrop.scaling import Standardize
from pyrodrop.threads import Tracer

_ROWS = 2  # number of example rows
_ROUNDING = 1e-3  # largest rounding error, in standard deviations of x or y


def check_model(model: Any) -> None:
    """Raise an error unless this is a model of `pyrodrop.models` whose network has no dropout itself.

    Raises:
        TypeError: `model` is not a model of `pyrodrop.models`.
        ValueError: the network was read with its own dropout (`pyrodrop.read`).
    """
    if not isinstance(model, NetworkModel):
        raise TypeError(f"model must be a model of pyrodrop.models; got {shown(model)}")
    if isinstance(model, TrainedNetwork):
        raise ValueError(
            "the network of this model was read with its own dropout (pyrodrop.read), which a plain copy of it would draw "
            "again: run.module() gives functions of its posterior"
        )


def examples(model: Any, x: Inputs | None) -> Tensor:
    """Two rows of x, or all that the network needs at once; random ones if x is None and the model knows their shape.

    Args:
        model: a model on the CPU.

    Raises:
        ValueError: x is None, and the shape of the inputs is unknown; or x are several tensors.
    """
    if x is not None:
        if not isinstance(x, Tensor):
            raise ValueError(f"compression needs a network with one input; got {len(x)}")
        return x[(torch.arange(len(x) if model.properties(x).whole else _ROWS) % len(x)).to(x.device)].cpu()
    size = model.in_features if isinstance(model.in_features, tuple) else (model.in_features,)
    weights = {name: weight.detach() for name, weight in model.weight_sites().items()}
    try:
        rows = torch.randn(_ROWS, *size, generator=torch.Generator().manual_seed(0)).to(next(iter(weights.values())))
        with evaluating(model), torch.no_grad():
            model.outputs(weights, rows)
    except Exception as error:  # whatever a network raises for inputs of another shape, such as tokens
        raise ValueError(
            "the shape of the inputs of this network is unknown: pass example inputs as x=; got None"
        ) from error
    return rows


def plain_network(model: Any, weights: Mapping[str, Tensor], x: Tensor) -> nn.Module:
    """The network of a model with these weights, in evaluation mode, from x to f in their original units.

    Args:
        model: a model on the CPU.
        x: the result of `examples`.

    Raises:
        ValueError: the network works in standardised units, in which x or y are too far from 0.
        TypeError: f of the likelihood is not a linear rescaling of the outputs of the network.
    """
    network = _in_own_units(model, {name: value.detach().cpu() for name, value in weights.items()}, x)
    try:
        return fx.GraphModule(network, trace(network, x), "Network").eval()
    except Untraced:
        return network


class Untraced(TypeError):
    """`torch.fx` cannot trace a network."""


def trace(network: nn.Module, x: Tensor) -> fx.Graph:
    """The operations of a network.

    Args:
        x: example rows, for a comparison of outputs.

    Raises:
        Untraced: the operations depend on the values of tensors, or do not give the outputs of the network.
    """
    graph = fx.Graph()  # without a reference to the tracer, which cannot be pickled
    try:
        graph.output(graph.graph_copy(Tracer().trace(network), {}))
        same = same_outputs(fx.GraphModule(network, copy.deepcopy(graph)).eval(), network, x)
    except Exception as error:  # any operation that needs concrete values, or a context such as torch.enable_grad()
        raise Untraced(f"torch.fx cannot trace the network: {first_line(error)}") from error
    if not same:
        raise Untraced("its trace by torch.fx has other outputs, for example because of a hook")
    for node in graph.nodes:
        node.type = None  # annotations that are strings cannot be pickled
    return graph


def same_outputs(network: nn.Module, expected: nn.Module, x: Tensor) -> bool:
    """Whether two networks give the same outputs for x, up to rounding."""
    with torch.no_grad():
        got, want = network(x.clone()), expected(x.clone())
    scale = float(want.abs().max()) if want.numel() else 1.0
    return got.shape == want.shape and torch.allclose(got, want, rtol=1e-3, atol=1e-4 * scale, equal_nan=True)


def _in_own_units(model: Any, weights: Mapping[str, Tensor], x: Tensor) -> nn.Module:
    network: nn.Module = copy.deepcopy(model.network)
    free = {name: model.free[name] for name in model.free}
    thaw(network, model.parameter_names, {**free, **weights}, fixed=model.parameter_names)
    network.eval()
    inputs = _units(model.inputs, "x", next(iter(weights.values()))) if x.is_floating_point() else None
    with evaluating(model), torch.no_grad():
        outputs = _rescaling(model, model.outputs(weights, x))
    converts = model.output is not None or inputs is not None or outputs is not None
    return _InUnits(network, model.output, inputs, outputs).eval() if converts else network


class _InUnits(nn.Module):
    """A network of one input with conversions of the input, by (loc, scale), and of its output, by (loc, scale, columns)."""

    x_loc: Tensor | None
    x_scale: Tensor
    y_loc: Tensor
    y_scale: Tensor
    columns: int | None

    def __init__(self, network: nn.Module, output: Output | None, inputs: Any, outputs: Any) -> None:
        super().__init__()
        self.network, self.output = network, output
        *of_y, self.columns = outputs or (None, None, None)
        values = zip(("x_loc", "x_scale", "y_loc", "y_scale"), (*(inputs or (None, None)), *of_y), strict=True)
        for name, value in values:
            self.register_buffer(name, None if value is None else value.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        if self.x_loc is not None:
            x = (x - self.x_loc) / self.x_scale
        y = self.network(x)
        y = y if self.output is None else self.output(y)
        return y if self.columns is None else torch.narrow(y, -1, 0, self.columns) * self.y_scale + self.y_loc


def _units(units: Standardize, name: str, like: Tensor) -> tuple[Tensor, Tensor] | None:
    """Offset and scale in the dtype of `like`; None if they change nothing.

    Raises:
        ValueError: the offset is too far from zero for this dtype.
    """
    rounding = torch.finfo(like.dtype).eps / 2 * units.loc.abs()
    if bool((rounding > _ROUNDING * units.scale).any()):
        precision = str(like.dtype).removeprefix("torch.")
        raise ValueError(
            f"compression needs {name} that {precision} tells apart, in which the compressed network computes; got columns "
            f"with means up to {float(units.loc.abs().max()):.6g} for a standard deviation of "
            f"{float(units.scale.min()):.6g}: subtract a constant from {name} before training"
        )
    loc, scale = units.loc.to(like), units.scale.to(like)
    return None if not loc.any() and bool((scale == 1).all()) else (loc, scale)


def _rescaling(model: Any, output: Tensor) -> tuple[Tensor, Tensor, int] | None:
    """Offset and scale that convert outputs to f, and the number of columns of f; None if the outputs are f.

    The conversion is checked against the `location` of the likelihood for random outputs of this shape.
    """
    units = _units(model.targets, "y", output)
    output = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output)
    f = model.likelihood.location(output, model.targets).detach()
    if f.shape == output.shape and torch.equal(f, output):
        return None
    loc, scale = units or (output.new_zeros(()), output.new_ones(()))
    columns = f.shape[-1]
    if columns > output.shape[-1] or not close(f, output[..., :columns] * scale + loc):
        raise TypeError(
            "compression needs a likelihood whose f is a linear rescaling of the network's outputs; got "
            f"{type(model.likelihood).__name__}"
        )
    return loc, scale, columns
