"""Pyro's autoguides in training: finding them in a guide, and keeping their parameters apart.

An `AutoGuide` refers to its model, loses that reference when it is copied or pickled, and creates its parameters at its
first call. They are stored in Pyro's global store under the name of its class, where a second autoguide of that class would
silently share the values of the first. Therefore a guide that contains one is trained in place, together with its model; its
parameters are created before training begins; and it gets a name that no other existing autoguide has.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import pyro
import torch
from pyro.infer.autoguide import AutoGuide
from pyro.nn import PyroModule
from pyro.poutine.messenger import Messenger
from torch import nn

from pyrodrop.agreement import called
from pyrodrop.changes import modules_of
from pyrodrop.devices import seeded

_NAMED: weakref.WeakValueDictionary[str, AutoGuide] = weakref.WeakValueDictionary()


def autoguides(guide: Any) -> list[AutoGuide]:
    """Every outermost `AutoGuide` in a guide, which may be the guide itself, or be inside of Pyro's handlers or of the
    variables of a function; an `AutoGuideList` counts as one."""
    autos = [module for module in modules_of(guide).values() if isinstance(module, AutoGuide)]
    inner = {id(module) for auto in autos for module in auto.modules() if module is not auto}
    return [auto for auto in autos if id(auto) not in inner]


def check_model(guide: Any, model: Any) -> None:
    """Raise a ValueError for an autoguide of a module other than the model that is trained, such as a copy of it."""
    for auto in autoguides(guide):
        made_with = _inside(auto.model)
        if isinstance(made_with, nn.Module) and made_with is not _inside(model):
            raise ValueError(
                "guide: an autoguide belongs to the model that it was made with, which must be the model to be trained; got "
                f"an {type(auto).__name__} that was made with another {type(made_with).__name__}: make it with that model"
            )


def _inside(program: Any) -> Any:
    """The program inside of Pyro's handlers."""
    while isinstance(program, functools.partial):
        of_pyro = bool(program.args) and isinstance(program.args[0], Messenger)  # with the function inside it
        program = program.args[-1] if of_pyro else program.func
    return program


def prepare(guide: Any, device: torch.device, *args: Any, **kwargs: Any) -> None:
    """Create the parameters of all autoguides in `guide` by one call; the caller's random state does not change."""
    autos = autoguides(guide)
    for auto in autos:
        _name_apart(auto)
    modules = [module for auto in autos for module in auto.modules()]
    if any(module.prototype_trace is None for module in modules if isinstance(module, AutoGuide)):
        with seeded(0, device), pyro.poutine.block():
            called("guide", guide, args, kwargs)


def _name_apart(auto: AutoGuide) -> None:
    """Give an autoguide a name that no existing autoguide has and under which Pyro's store has no parameters."""
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
    its_parameters = {id(parameter) for parameter in auto.parameters()}
    stored = pyro.get_param_store().named_parameters()
    others = [n for n, value in stored if n.startswith(f"{name}.") and id(value) not in its_parameters]
    return not others and _NAMED.get(name, auto) is auto
