"""A network with given weights as a plain module, in the shape that the user gave it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pyrodrop.compression.own_units import units_of_x, units_of_y
from pyrodrop.compression.steps import Whole, network_of
from pyrodrop.inputs import Inputs, mapped
from pyrodrop.networks.modes import evaluating


def whole_network(model: Any, weights: Mapping[str, Tensor], x: Inputs | None = None) -> nn.Module:
    """The user's own network in evaluation mode, with its parameters back; within a module that maps the units of x and y to
    the network's where those differ.

    Args:
        model: a network model.
        weights: of every site.
        x: example inputs.

    Raises:
        ValueError: units that differ, of a model of several inputs or without an example.
        TypeError: f is no rescaling of the network's outputs.
    """
    network = _with_parameters(model, weights)
    like = next(iter(weights.values()))
    head = units_of_x(model, like)
    if x is None:
        if head or units_of_y(model, like.new_zeros(2, 4)):
            raise ValueError(
                "a network that works in other units than x and y is given back between the two, for which example inputs "
                "are needed: give some as x="
            )
        return network
    with evaluating(model), torch.no_grad():
        tail = units_of_y(model, model.outputs(weights, mapped(lambda part: part.to(like.device), x)))
    if not head and not tail:
        return network
    if not isinstance(x, Tensor):
        raise ValueError(
            "a network of several inputs is given back alone, which works in its own units; this model's are others than "
            "those of x and y"
        )
    return network_of([*(head if x.is_floating_point() else []), Whole(network), *tail])


def _with_parameters(model: Any, weights: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the network whose parameters are parameters again, one under all of its names."""
    network: nn.Module = copy.deepcopy(model.network)
    given = {**{name: model.free[name].detach() for name in model.free}, **weights}
    names: Mapping[str, tuple[str, ...]] = model.parameter_names
    for first, others in names.items():
        value = given[first] if first in given else network.get_buffer(first)
        parameter = nn.Parameter(value.clone(), requires_grad=False)
        for name in others:
            parent, _, leaf = name.rpartition(".")
            module = network.get_submodule(parent)
            del module._buffers[leaf]
            setattr(module, leaf, parameter)  # recurrent layers keep a list of theirs by it
    return network.eval()
