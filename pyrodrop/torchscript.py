"""Stand-ins for the names of TorchScript that Pyro uses, for a PyTorch that no longer has them.

PyTorch deprecates `torch.jit`. Pyro 1.9 uses names of it when it is imported and at sample sites, even if nothing is traced.
After `import pyrodrop`, `stand_in` is called before Pyro is imported (`pyrodrop/__init__.py`).
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch


def stand_in() -> None:
    """Add the names of TorchScript that PyTorch lacks, so that nothing appears to be traced; tracing raises an error."""
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
