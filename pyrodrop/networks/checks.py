"""Checks of a network before training and prediction; each error states what is wrong and how to fix it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Distribution
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from pyrodrop.checks import Inputs, all_finite, first_line, parts
from pyrodrop.data.columns import Columns, listed
from pyrodrop.likelihoods.likelihood import Likelihood
from pyrodrop.likelihoods.shapes import elements
from pyrodrop.scaling import Standardize, within

DETERMINISTIC = (
    "the network of a model must be deterministic, its noise comes from the guide (guides.BernoulliDropout for dropout); "
    "got"
)
_RESOLVED = 1e-3  # largest change of values by a network's dtype, as a fraction of the standard deviation of a column
_FEW = 4  # fewer rows are not checked


def check_dropout_layers(network: nn.Module) -> None:
    """Raise a ValueError for dropout layers, and layers with built-in dropout, in training mode at a rate above 0."""
    rates = {
        name or type(network).__name__: module.p
        if isinstance(module, nn.modules.dropout._DropoutNd)
        else module.dropout
        for name, module in network.named_modules()
        if module.training and isinstance(module, nn.modules.dropout._DropoutNd | nn.RNNBase | nn.MultiheadAttention)
    }
    dropping = [name for name, rate in rates.items() if rate > 0]
    if dropping:
        raise ValueError(
            f"{DETERMINISTIC} a network with layers {', '.join(dropping)} that drop units: put nn.Identity() in the place "
            "of dropout layers, build others with dropout=0, or put them in evaluation mode. If the network was trained "
            "with them, pyrodrop.read reads them as a posterior"
        )


def check_width(x: Inputs, in_features: int | tuple[int, ...] | None) -> None:
    """Raise a ValueError unless x has the width of the network's first layer, or the shape of its images."""
    if in_features is None:
        return
    if not isinstance(x, Tensor):
        raise ValueError(f"x must be a single tensor for this network; got a {type(x).__name__} of tensors")
    shape = in_features if isinstance(in_features, tuple) else (in_features,)
    rest = 0 if isinstance(in_features, tuple) else x.dim() - 2  # axes of rows within an example
    if x.dim() < 2 or x.shape[1 + rest :] != shape:
        raise ValueError(
            f"x must have shape [N, {', '.join(map(str, shape))}], as the network's input; got {tuple(x.shape)}"
        )


def check_resolution(values: Tensor, name: str, units: Standardize, dtype: torch.dtype) -> None:
    """Raise a ValueError if the dtype of the network rounds a column of x or y so much that its variation is lost.

    Examples are seconds since 1970 or y = 100,000,000 +- 1 in float64 or int64, without standardisation.

    Args:
        values: ``[N, ...]`` in the units of the data.
        units: the standardisation of these values in the model.
    """
    exact = torch.promote_types(values.dtype, dtype) == dtype if values.is_floating_point() else values.itemsize <= 2
    if exact or len(values) < _FEW:
        return
    values = values.double().to(units.loc.device)
    if units.loc.dim() and units.loc.shape[-1] < values.shape[-1]:  # of intervals, with a column for each end
        values = values.unflatten(-1, (-1, units.loc.shape[-1]))
    kept = within(units(values), dtype, _RESOLVED).flatten()
    if bool(kept.all()):
        return
    column = int(kept.logical_not().nonzero()[0])
    numbers = values.reshape(len(values), -1)[:, column]
    numbers = numbers[numbers.isfinite()]
    precision = str(dtype).removeprefix("torch.")
    raise ValueError(
        f"{name} must vary by more than {precision}, in which the network computes, rounds its values; got values from "
        f"{float(numbers.min()):.12g} to {float(numbers.max()):.12g} in column {column}: standardise x and y "
        "(Dataset.standardized, which subtracts the mean first), or subtract the smallest value yourself"
    )


def width_of(net: nn.Module) -> int | None:
    """The width of x if the first layer of a (nested) nn.Sequential is an nn.Linear, otherwise None."""
    while isinstance(net, nn.Sequential) and len(net):
        net = net[0]
    return net.in_features if parametrize.type_before_parametrizations(net) is nn.Linear else None  # type: ignore[return-value]


def cannot_run(x: Inputs, error: Exception, why: str = "", *, doing: str = "be called", together: bool = False) -> str:
    """The error message for a network that raises `error` on x."""
    shapes = ", ".join(str(list(part.shape)) for part in parts(x))
    if together:
        why = ". It needs all of its examples at once: predict at as many as it was trained on."
    return f"the network cannot {doing} on x of shape {shapes}: {first_line(error)}{why}"


def wrong_inputs(x: Inputs, error: Exception) -> str:
    """The error message for an x on which the network runs neither as a whole nor for some rows."""
    return cannot_run(
        x,
        error,
        "; x must have one row per example, [N, ...], images [N, channels, height, width], or be a tuple or mapping of such "
        "tensors, the arguments of the network's forward, which computes in the dtype of its weights",
    )


def check_labels(columns: Columns | None, distribution: Distribution, likelihood: Likelihood) -> None:
    """Raise a ValueError for numbered class labels of a data frame that a likelihood of numbers would take for values.


    Args:
        columns: columns of the data frame that the observations are from; None if they are not from a data frame.
    """
    classes = None if columns is None else columns.classes
    if columns is None or classes is None or classes == tuple(range(len(classes))):
        return
    element = elements(distribution)
    if not isinstance(element, Categorical) and not (isinstance(element, Bernoulli) and len(classes) == 2):
        raise ValueError(
            f"y are class labels, the numbers 0 to {len(classes) - 1} for {listed(classes)}, which "
            f"{likelihood.describe()} would take for values: use likelihoods.Categorical(), or make the target a "
            "column of numbers"
        )


def check_values(network: nn.Module) -> None:
    """Raise a ValueError if a tensor of a network, a model or a guide is on the meta device, without values, or if a
    parameter has values that are NaN or infinite, as after a training that diverged."""
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        if tensor.is_meta:
            raise ValueError(
                f"the tensors of a network must have values; {name} of this {type(network).__name__} is on the meta device, "
                "which has none: make the network outside of torch.device('meta'), or load its weights first"
            )
        if isinstance(tensor, nn.Parameter) and tensor.is_floating_point():
            all_finite(tensor.detach(), f"{name} of this {type(network).__name__}")


def check_memory(network: nn.Module) -> None:
    """Raise a ValueError if two parameters have the same memory: their copies would be trained apart."""
    owners: dict[int, tuple[str, nn.Parameter]] = {}
    for name, parameter in network.named_parameters():
        start = parameter.data_ptr() if parameter.layout == torch.strided and not parameter.is_meta else 0
        other, first = owners.setdefault(start, (name, parameter))
        if start and first is not parameter and parameter.requires_grad:
            raise ValueError(
                f"weights that are tied must be one parameter; got {other} and {name}, two with the same memory: assign the "
                f"parameter itself, or use {other}.T in forward"
            )


_HOOKS = (WeightNorm, SpectralNorm, BasePruningMethod)  # compute a weight from others


def copied(network: nn.Module) -> nn.Module:
    """A deep copy whose parameters can be trained.

    A ValueError names trained weights that are computed from other parameters, or a tensor without values.
    Under weight norm, W = g v / |v|, a prior on v is not one on W, and an input unit that is dropped in v is not in W; so
    with spectral norm, pruning and custom parametrisations. Layers whose parameters are all fixed are accepted,
    and tensors without values where no new tensor has values, as for the shapes that a file is checked by.
    """
    if not torch.empty(0).is_meta:
        check_values(network)
    computed = []
    for prefix, module in network.named_modules():
        lists: Any = module.parametrizations if parametrize.is_parametrized(module) else {}
        names = [name for name, steps in lists.items() if [*steps.parameters()]]
        hooks = [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, _HOOKS)]
        names += [getattr(hook, "name", getattr(hook, "_tensor_name", "")) for hook in hooks]
        owners = [*module.parameters(recurse=False), *(p for steps in lists.values() for p in steps.parameters())]
        if any(parameter.requires_grad for parameter in owners):
            computed += [f"{prefix}.{name}".removeprefix(".") for name in names]
    if computed:
        raise ValueError(
            "a prior applies to a layer's weight itself, so weights must be parameters; this network computes "
            f"{', '.join(computed)} from other parameters: remove its parametrisation first (torch.nn.utils)"
        )
    with torch.inference_mode(False):  # or the weights are no parameters
        return copy.deepcopy(network)
