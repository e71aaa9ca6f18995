"""Assign priors and input units to the parameters of a network, from settings by name pattern.

A setting is one value for all parameters, or a mapping from patterns to values, see `pyrodrop.checks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from pyrodrop.checks import by_name, count, instance
from pyrodrop.distributions.units import InputUnits
from pyrodrop.networks.sites import Parameters
from pyrodrop.networks.units import input_units
from pyrodrop.priors import Prior

PriorSetting = Prior | Mapping[str, Prior | None]

_AS_ITS_MODULE: Any = object()


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
    for name, chosen_prior in chosen.items():
        if chosen_prior is not None:
            argument = "prior" if name in parameters.weights else "bias_prior"
            what = (
                "a Prior of pyrodrop.priors, such as priors.Gaussian(scale=1.0), None, or a mapping from name patterns to "
                "these"
            )
            instance(chosen_prior, Prior, argument, what)
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
    of_user = {
        name: axis if isinstance(axis, InputUnits) else InputUnits(_axis(axis, name))
        for name, axis in axes.items()
        if axis is not _AS_ITS_MODULE
    }
    for name, chosen in of_user.items():
        dims = parameters.trained[name].dim()
        if chosen.axis is not None and chosen.axis >= dims:
            raise ValueError(
                f"input_axes must give an axis in 0 ... {dims - 1} for {name!r}, or None; got {chosen.axis}"
            )
        chosen.check(parameters.trained[name].shape)
    return units | of_user


def _axis(axis: Any, name: str) -> int | None:
    return None if axis is None else count(axis, "input_axes", f"the axis of the input units of {name!r}", least=0)
