"""Python attributes that a forward changes from call to call: counters, schedules, states.

A recorded step would replay them with the values of the recorded call. An attribute that only the first call sets (a cache)
does not count as such a change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from pyrodrop.networks.modes import attributes_of, changed_attributes


def changes(network: nn.Module, call: Callable[[], Any]) -> str:
    """A sentence that names the attributes that a second call changes; empty if it changes none."""
    call()
    modules = dict(network.named_modules())
    before = {name: attributes_of(module) for name, module in modules.items()}
    call()
    changed = [
        f"{name}.{attribute}" if name else attribute
        for name, module in modules.items()
        for attribute in changed_attributes(module, before[name])
    ]
    return f"its forward changes the attributes {', '.join(changed)}" if changed else ""
