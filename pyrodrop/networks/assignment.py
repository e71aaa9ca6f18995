"""Priors and input units of every parameter of a network, from settings by name pattern, or from the type of its module.

nn.Linear, nn.RNN, nn.LSTM, nn.GRU and their cells, nn.MultiheadAttention    axis 1
nn.Conv*d                                                                    axis 1, in groups
nn.ConvTranspose*d                                                           axis 0, in groups
nn.Embedding, nn.EmbeddingBag                                                axis 0, one unit per word
everything else: vectors, norms, class tokens, parameters of custom modules  none

A setting is one value for all parameters, or a mapping from patterns to values, see `pyrodrop.checks`. `first_weights` finds
the weights whose input units are those of x itself, in the order of the forward.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import fx, nn

from pyrodrop.checks import by_name, count, first_line, instance
from pyrodrop.distributions.units import InputUnits
from pyrodrop.networks.sites import Parameters
from pyrodrop.priors import Prior
from pyrodrop.threads import Tracer

PriorSetting = Prior | Mapping[str, Prior | None]

_AS_ITS_MODULE: Any = object()
_NONE = InputUnits(None)
_Convolution = nn.modules.conv._ConvNd
_AXES: tuple[tuple[Any, int, str], ...] = (  # by module, and the pattern of the names of its weights
    (nn.RNNBase | nn.RNNCellBase, 1, "weight*"),
    (nn.MultiheadAttention, 1, "*proj_weight"),
    (nn.modules.conv._ConvTransposeNd | nn.Embedding | nn.EmbeddingBag, 0, "weight"),
    (_Convolution | nn.Linear, 1, "weight"),
)


def assign_priors(
    parameters: Parameters, prior: PriorSetting, bias_prior: PriorSetting | None, network: str
) -> dict[str, Prior]:
    """The prior of every parameter that has one, in the order of the network.

    Args:
        bias_prior: prior of the biases and other vectors, or None.

    Raises:
        ValueError: the network has no weights, or no weight has a prior; a pattern matches no parameter.
        TypeError: a prior is no `Prior`.
    """
    if not parameters.weights:
        raise ValueError(f"the network needs a trained parameter with two or more dimensions; {network} has none")
    chosen: dict[str, Any] = by_name(prior, parameters.weights, "prior")
    if bias_prior is not None and parameters.vectors:
        of_vectors: dict[str, Any] = by_name(bias_prior, parameters.vectors, "bias_prior")
        chosen |= of_vectors
    what = (
        "a Prior of pyrodrop.priors, such as priors.Gaussian(scale=1.0), None, or a mapping from name patterns to these"
    )
    for name, chosen_prior in chosen.items():
        if chosen_prior is not None:
            instance(chosen_prior, Prior, "prior" if name in parameters.weights else "bias_prior", what)
    kept = {n: chosen_prior for n in parameters.trained if (chosen_prior := chosen.get(n)) is not None}
    if not kept:
        raise ValueError("prior must give at least one weight a prior; got None for all weights")
    return kept


def assign_input_units(
    network: nn.Module, parameters: Parameters, input_axes: Mapping[str, int | InputUnits | None] | None
) -> dict[str, InputUnits]:
    """The input units of every parameter, from `input_axes` or from the type of its module.

    Raises:
        ValueError: a pattern matches no parameter, or a parameter does not have the axis.
        TypeError: `input_axes` is no mapping, or an axis is no whole number.
    """
    units = input_units(network)
    if input_axes is None:
        return units
    instance(input_axes, Mapping, "input_axes", "a mapping from name patterns to axes")
    patterns: dict[str, Any] = dict(input_axes)
    patterns.setdefault("*", _AS_ITS_MODULE)  # the last pattern, which applies if no other matches
    axes: dict[str, Any] = by_name(patterns, parameters.trained, "input_axes")
    for name, axis in axes.items():
        if axis is _AS_ITS_MODULE:
            continue
        if not isinstance(axis, InputUnits | None):
            axis = count(axis, "input_axes", f"the axis of the input units of {name!r}", least=0)
        units[name] = chosen = axis if isinstance(axis, InputUnits) else InputUnits(axis)
        shape = parameters.trained[name].shape
        if chosen.axis is not None and chosen.axis >= len(shape):
            raise ValueError(
                f"input_axes must give an axis in 0 ... {len(shape) - 1} for {name!r}, or None; got {chosen.axis}"
            )
        chosen.check(shape)
    return units


def input_units(network: nn.Module) -> dict[str, InputUnits]:
    """The input units of every parameter of a network, and of every buffer that may replace one (`sites.freeze`)."""
    units = {}
    for prefix, module in network.named_modules(remove_duplicate=False):
        for name, value in (*module._parameters.items(), *module._buffers.items()):
            if value is not None:
                full = f"{prefix}.{name}" if prefix else name
                units[full] = units_of_parameter(module, name) if value.dim() > 1 else _NONE
    return units


def units_of_parameter(module: nn.Module, name: str) -> InputUnits:
    """The input units of one parameter of a module.

    Args:
        name: the parameter's name in the module, such as ``weight``.
    """
    for kinds, axis, pattern in _AXES:
        if isinstance(module, kinds):
            groups = module.groups if isinstance(module, _Convolution) else 1
            return InputUnits(axis, groups) if fnmatchcase(name, pattern) else _NONE
    return _NONE


def first_weights(network: nn.Module, units: Collection[str]) -> tuple[str, ...]:
    """Names of the weights that are applied to x, or to a function of x that uses no other weight with input units.

    Raises:
        ValueError: `torch.fx` cannot trace the network, for instance because it branches on values; no such weight is found;
            or a layer with several weights, such as nn.LSTM, is applied to x.
    """
    try:
        graph = Tracer().trace(network)
    except Exception as error:  # of any type: the forward may need values
        raise ValueError(f"{_BY_NAME} (torch.fx cannot trace it: {first_line(error)})") from error
    touched: dict[fx.Node, bool] = {}  # of x and functions of x: whether they use a weight with input units
    names: list[str] = []
    for node in graph.nodes:
        if node.op == "call_module":
            weights = [name for name in units if name.startswith(f"{node.target}.")]
        else:
            attributes = [str(source.target) for source in node.all_input_nodes if source.op == "get_attr"]
            weights = [name for name in attributes if name in units]
        seen = {touched[source] for source in node.all_input_nodes if source in touched}
        if seen or weights or node.op == "placeholder":
            touched[node] = bool(weights) or True in seen
        if weights and False in seen:
            if node.op == "call_module" and len(weights) > 1:
                raise ValueError(f"{_BY_NAME} ({node.target!r} has several weights)")
            names += weights
    if not names:
        raise ValueError(_BY_NAME)
    return tuple(dict.fromkeys(names))


_BY_NAME = (
    "mask_input=False needs the first layer, which cannot be identified in this network; set its rate by name instead, as "
    "in drop_rate={'first.weight': 0.0, '*': 0.1}"
)
