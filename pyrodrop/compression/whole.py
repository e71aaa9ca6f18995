"""The user's network with given weights, as a plain module with unchanged structure."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pyrodrop.arguments import shown
from pyrodrop.compression.steps import Whole, network_of, units_of_x, units_of_y
from pyrodrop.inputs import Inputs, mapped
from pyrodrop.networks.call import Output, taken
from pyrodrop.networks.modes import evaluating


def whole_network(model: Any, weights: Mapping[str, Tensor], x: Inputs | None = None) -> nn.Module:
    """A copy of the user's network in evaluation mode with the given weights as parameters.

    If the network works in standardised units, it is wrapped in a module that converts x and f; if its outputs are taken out
    of what it returns, in one that takes them.

    Args:
        x: example inputs; needed if the network works in standardised units.

    Raises:
        ValueError: the network works in standardised units, and the model has several inputs or `x` is None.
        TypeError: f of the likelihood is not a linear rescaling of the outputs of the network.
    """
    network = _with_parameters(model, weights)
    if model.output is not None:
        network = _Taking(network, model.output)
    like = next(iter(weights.values()))
    head = units_of_x(model, like)
    if x is None:
        if head or units_of_y(model, like.new_zeros(2, 4)):
            raise ValueError(
                "the network works in standardised units, and example inputs are needed to convert them to the units of x "
                "and y: pass some as x="
            )
        return network
    with evaluating(model), torch.no_grad():
        tail = units_of_y(model, model.outputs(weights, mapped(lambda part: part.to(like.device), x)))
    if not head and not tail:
        return network
    if not isinstance(x, Tensor):
        raise ValueError(
            "a network with several inputs cannot be combined with a conversion of units, but this model standardises x or "
            "rescales its outputs"
        )
    return network_of([*(head if x.is_floating_point() else []), Whole(network), *tail])


class _Taking(nn.Module):
    """A network, and what takes the outputs out of what it returns."""

    def __init__(self, network: nn.Module, output: Output) -> None:
        super().__init__()
        self.network, self.output = network, output

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return taken(self.network(*args, **kwargs), self.output)


def check_model(model: Any) -> None:
    """Raise a TypeError for what is no model of `pyrodrop.models`."""
    if isinstance(model, type) or not hasattr(model, "weight_sites"):
        raise TypeError(f"model must be a model of pyrodrop.models; got {shown(model)}")


def _with_parameters(model: Any, weights: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the network with the weights as parameters; a shared parameter is the same object under all of its names."""
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
            setattr(module, leaf, parameter)  # recurrent layers update their list of weights in __setattr__
    return network.eval()
