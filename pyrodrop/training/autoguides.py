"""Pyro's autoguides in training: where they are in a guide, and parameters that are theirs alone.

An `AutoGuide` holds its model by reference, forgets it when it is copied or pickled, and makes its parameters when it is
first called. They live in Pyro's global store under the name of its class, where a second autoguide of that name would
take over the values of the first, in silence and for both. So a guide with one in it is trained in place, with its model;
its parameters are made before training begins; and it gets a name that no other living one has.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import pyro
import torch
from pyro.infer.autoguide import AutoGuide
from pyro.nn import PyroModule
from torch import nn

from pyrodrop.devices import seeded

_NAMED: weakref.WeakValueDictionary[str, AutoGuide] = weakref.WeakValueDictionary()


def autoguides(guide: Any) -> list[AutoGuide]:
    """Every outermost `AutoGuide` in a guide, itself included; an `AutoGuideList` is one."""
    if not isinstance(guide, nn.Module):
        return []
    found = [module for module in guide.modules() if isinstance(module, AutoGuide)]
    parts = {id(part) for auto in found for part in auto.modules() if part is not auto}
    return [auto for auto in found if id(auto) not in parts]


def check_model(guide: Any, model: Any) -> None:
    """Raise a ValueError for an autoguide of a module other than the model that is trained, such as a copy of it."""
    for auto in autoguides(guide):
        own: Any = auto.model
        while isinstance(own, functools.partial):  # in handlers of Pyro: the handler, and what it is around
            own = own.args[-1]
        if isinstance(own, nn.Module) and own is not model:
            raise ValueError(
                f"an autoguide is of the model that it was made with: this {type(auto).__name__} was made with another "
                f"{type(own).__name__} than the model to be trained; make it of that model"
            )


def prepare(guide: Any, device: torch.device, *args: Any, **kwargs: Any) -> None:
    """Make the parameters of all autoguides in `guide`, by one call that draws none of the caller's random numbers."""
    found = autoguides(guide)
    for auto in found:
        _name_apart(auto)
    if any(part.prototype_trace is None for auto in found for part in auto.modules() if isinstance(part, AutoGuide)):
        with seeded(0, device), pyro.poutine.block():
            guide(*args, **kwargs)


def _name_apart(auto: AutoGuide) -> None:
    """Give an autoguide a name under which neither a living one nor Pyro's store has parameters."""
    old = auto._pyro_name
    name, number = old, 1
    while not _free(name, auto):
        number += 1
        name = f"{old}_{number}"
    _NAMED[name] = auto
    for module in auto.modules():
        if isinstance(module, PyroModule):
            module._pyro_name = name + module._pyro_name.removeprefix(old)


def _free(name: str, auto: AutoGuide) -> bool:
    own = {id(parameter) for parameter in auto.parameters()}
    stored = pyro.get_param_store()._params
    others = [n for n, value in stored.items() if n.startswith(f"{name}.") and id(value) not in own]
    return not others and _NAMED.get(name, auto) is auto
