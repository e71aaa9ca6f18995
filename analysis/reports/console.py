"""The versions and the machine that results are made with."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from typing import Any

import torch

import pyrodrop
from pyrodrop.devices import processor

_PACKAGES = ("pyro-ppl", "torch", "gpytorch", "arviz", "numpy")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on."""
    ours = {
        "python": platform.python_version(),
        "pyrodrop": pyrodrop.__version__,
    }  # also of a checkout that is not installed
    return ours | {package: version(package) for package in _PACKAGES}


def machine(device: str | torch.device) -> dict[str, Any]:
    """Processor, kind of device and number of threads."""
    return {"processor": processor(), "device": torch.device(device).type, "threads": torch.get_num_threads()}


def core_seconds() -> float:
    """Processor time in seconds of this process and of its finished child processes, such as a compiler."""
    return sum(os.times()[:4])
