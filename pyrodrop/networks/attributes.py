"""Python attributes that a forward changes from call to call: counters, schedules, states.

A trace of one call, replayed, would keep them as they were then. What the first call computes and later ones keep is no
such change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from pyrodrop.networks.modes import attributes_of, changed_attributes


def changes(network: nn.Module, call: Callable[[], Any]) -> str:
    """In words, which attributes of which modules a second call changes; empty if it changes none."""
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
