"""What a remedy costs."""

from __future__ import annotations

import os


def core_seconds() -> float:
    """Processor time of this process and of the compilers that it has waited for, which other work on the machine leaves."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system
