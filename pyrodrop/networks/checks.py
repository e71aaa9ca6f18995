"""Checks of a network before training and prediction; each error states what is wrong and how to fix it.

Weights that are computed from other parameters become parameters in the copy of the network, or are refused:

    weight_norm      W = g v / |v|        parameters g, v: any W but 0, so the copy has W
    spectral_norm    W = v / sigma(v)     parameter v: only those W with sigma(W) = 1, refused

A prior on v or g is not a prior on W: the posterior would be that of numbers that no layer multiplies with, and dropping an
input unit of v does not drop it in W. The same holds for pruning and custom parametrisations, which are refused.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Distribution
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm, remove_weight_norm

from pyrodrop.checks import Inputs, parts
from pyrodrop.data.columns import Columns, listed
from pyrodrop.likelihoods.likelihood import Likelihood
from pyrodrop.likelihoods.shapes import elements
from pyrodrop.networks.sparse_matrix import hold_entries
from pyrodrop.private_apis import NORMED
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
    images = isinstance(in_features, tuple)
    shape = in_features if isinstance(in_features, tuple) else (in_features,)
    if x.dim() < 1 + len(shape) or x.shape[-len(shape) :] != shape or (images and x.dim() > 1 + len(shape)):
        hint = ": add the axis of channels, x[:, None]" if images and x.shape[1:] == shape[1:] else ""
        raise ValueError(
            f"x must have shape [N, {', '.join(map(str, shape))}], as the network's input; got {tuple(x.shape)}{hint}"
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
    return f"the network cannot {doing} on x of shape {shapes}: {type(error).__name__}: {first_line(error)}{why}"


def wrong_inputs(x: Inputs, error: Exception) -> str:
    """The error message for an x on which the network runs neither as a whole nor for some rows."""
    text, hint = first_line(error), ""
    if isinstance(x, Tensor) and x.dim() == 3 and ("channels" in text or "conv2d" in text):
        hint = ": images need an axis of channels, such as x[:, None]"
    elif "Half" in text or "BFloat16" in text:
        hint = (
            ": the model computes in float32, and 16 bits meet it in the forward; cast to the dtype of the weights, as in "
            "x.to(self.layer.weight.dtype)"
        )
    return cannot_run(
        x,
        error,
        "; x must have one row per example, [N, ...], or be a tuple or mapping of such tensors, the arguments of the "
        f"network's forward{hint}",
    )


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    return (str(error).strip().splitlines() or [""])[0]


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
    """Raise a ValueError if a tensor of a network, a model or a guide is on the meta device, without values."""
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        if tensor.is_meta:
            raise ValueError(
                f"the tensors of a network must have values; {name} of this {type(network).__name__} is on the meta device, "
                "which has none: make the network outside of torch.device('meta'), or load its weights first"
            )


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


def check_parametrised(network: nn.Module) -> None:
    """Raise a ValueError that names the trained weights that are computed from other parameters, or a tensor without values.

    Weights under weight norm that `copied` makes parameters are accepted, and so are layers whose parameters are all fixed
    (``requires_grad_(False)``), and tensors without values where no new tensor has values, as for the shapes that a file is
    checked by.
    """
    if not torch.empty(0).is_meta:
        check_values(network)
    removable = {(id(module), weight) for module, weight, _ in _weight_norms(network)}
    computed = [
        f"{f'{name}.{weight}' if name else weight}: {remedy}"
        for name, module in network.named_modules()
        for weight, remedy in _computed(module)
        if (id(module), weight) not in removable
    ]
    if computed:
        raise ValueError(
            "a prior applies to a layer's weight itself, so weights must be parameters; this network computes these weights "
            f"from other parameters: {'; '.join(computed)}"
        )


def copied(network: nn.Module) -> nn.Module:
    """A deep copy whose weights under weight norm are parameters, and sparse buffers entries; see `check_parametrised`."""
    check_parametrised(network)
    stored = [
        value
        for m, name, _ in _weight_norms(network)
        for value in (vars(m).get(name), *getattr(m, "_flat_weights", ()))
    ]  # by modules, as results of a graph that deepcopy refuses
    kept = {id(v): v.detach() for v in stored if isinstance(v, Tensor) and not v.is_leaf}
    kept |= {id(v): v for v in network.buffers() if v.layout != torch.strided}
    with torch.inference_mode(False):  # and with gradients, or the weights are no parameters
        made = copy.deepcopy(network, kept)
        hold_entries(made)
        for module, name, remove in _weight_norms(made):
            remove(module, name)
    return made


def _weight_norms(network: nn.Module) -> list[tuple[nn.Module, str, Callable[[nn.Module, str], Any]]]:
    """Module, name and removal of the weights under weight norm whose g and v are trained, and are of no other weight."""
    uses = Counter(id(value) for module in network.modules() for value in module._parameters.values())

    def removable(*values: nn.Parameter | None) -> bool:
        return all(value is not None and value.requires_grad and uses[id(value)] == 1 for value in values)

    weights: list[tuple[nn.Module, str, Callable[[nn.Module, str], Any]]] = []
    for module in network.modules():
        lists: Any = module.parametrizations if parametrize.is_parametrized(module) else {}
        for name, steps in lists.items():
            if [type(step) for step in steps] == [NORMED] and removable(*steps.parameters()):
                weights.append((module, name, _remove))
        for hook in module._forward_pre_hooks.values():
            name = hook.name if isinstance(hook, WeightNorm) else ""
            if name and removable(*(module._parameters.get(f"{name}_{part}") for part in "gv")):
                weights.append((module, name, remove_weight_norm))
    return weights


def _remove(module: nn.Module, name: str) -> None:
    """Remove a parametrisation of a copied module, which shares with the original the class that this changes."""
    kind = type(module)
    module.__class__ = type(kind.__name__, kind.__bases__, dict(vars(kind)))
    parametrize.remove_parametrizations(module, name)


# Hooks that compute a weight, and the function of torch.nn.utils that makes it a parameter.
_HOOKS: dict[Any, str] = {
    WeightNorm: "remove_weight_norm",
    SpectralNorm: "remove_spectral_norm",
    BasePruningMethod: "prune.remove",
}


def _computed(module: nn.Module) -> list[tuple[str, str]]:
    """The weights of a module that are computed from trained parameters, each with the call that makes it a parameter."""
    lists: Any = module.parametrizations if parametrize.is_parametrized(module) else {}
    hooks: list[Any] = list(module._forward_pre_hooks.values())
    calls = [(name, "parametrize.remove_parametrizations") for name, steps in lists.items() if list(steps.parameters())]
    calls += [
        (hook._tensor_name if kind is BasePruningMethod else hook.name, remove)
        for hook in hooks
        for kind, remove in _HOOKS.items()
        if isinstance(hook, kind)
    ]
    owners = [*module.parameters(recurse=False), *(p for steps in lists.values() for p in steps.parameters())]
    trained = any(parameter.requires_grad for parameter in owners)
    return [(name, f"call torch.nn.utils.{remove}(layer, {name!r})") for name, remove in calls if trained]
