"""What Pyro asks of TorchScript, for a PyTorch that no longer has it.

PyTorch deprecates `torch.jit`. Pyro 1.9 asks for names of it when it is imported and at sample sites, also where nothing is
traced. `import pyrodrop` has `stand_in` called before the first import of Pyro that comes after it (`pyrodrop/__init__.py`).
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch


def stand_in() -> None:
    """Give PyTorch those names of TorchScript that it lacks: nothing is being traced, and nothing can be."""
    _add(torch, "jit", types.ModuleType("torch.jit"))
    _add(torch.jit, "TracerWarning", type("TracerWarning", (Warning,), {}))
    _add(torch.jit, "script_if_tracing", lambda function: function)
    _add(torch.jit, "script", _refused("script"))
    _add(torch.jit, "trace", _refused("trace"))
    _add(torch._C, "_get_tracing_state", lambda: None)


def _add(owner: Any, name: str, value: Any) -> None:
    if not hasattr(owner, name):
        setattr(owner, name, value)


def _refused(name: str) -> Callable[..., Any]:
    def refused(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(
            f"PyTorch has no torch.jit.{name} here, which Pyro's jitted ELBOs and jit_compile=True call: use Trace_ELBO "
            "with pyrodrop.fit or pyrodrop.compile_svi, which record steps without it"
        )

    return refused
