"""Names by which Pyro finds parameters that live in modules.

A `LocalModule` keeps its parameters itself, so that any number of guides live in one process. Two parts of Pyro look names
or parameters up in its global store all the same:

    pyro.optim with a function of the name, and its save and load     the name of a parameter: kept beside, weakly
    the jitted ELBOs (JitTrace_ELBO and its kin)                      the parameter of a name: lent to the store

Nothing is lent but to a jitted ELBO, which from then on finds parameters by name alone. It would silently train another
module's of the same name, so a second module's are refused until the store is cleared.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyro
import torch
from pyro.poutine.block_messenger import BlockMessenger
from pyro.poutine.runtime import _PYRO_STACK
from pyro.poutine.trace_messenger import TraceMessenger
from torch import Tensor, nn
from torch.distributions import constraints

_lenders: dict[str, weakref.ref[nn.Module]] = {}
_lent: weakref.WeakValueDictionary[str, Tensor] = weakref.WeakValueDictionary()


def let_pyro_find(name: str, unconstrained: Tensor, constraint: constraints.Constraint, owner: nn.Module) -> None:
    """Within a step of Pyro's SVI, have it know a parameter's name, and a jitted one the name's parameter.

    Raises:
        ValueError: a jitted ELBO, where another parameter has the name.
    """
    recorders = [
        i for i, handler in enumerate(_PYRO_STACK) if isinstance(handler, TraceMessenger) and handler.param_only
    ]
    if not recorders:
        return
    store: Any = pyro.get_param_store()
    if store.param_name(unconstrained) != name:
        key = _Weakly(unconstrained, store._param_to_name)
        store._param_to_name[key] = name
    before = _PYRO_STACK[recorders[-1] - 1] if recorders[-1] > 0 else None
    if isinstance(before, BlockMessenger):  # as pyro.ops.jit looks for parameters
        _lend(store, name, unconstrained, constraint, owner)


def _lend(store: Any, name: str, unconstrained: Tensor, constraint: constraints.Constraint, owner: nn.Module) -> None:
    held = store._params.get(name)
    lender = _lenders[name]() if name in _lenders else None
    if held is not None and lender is not owner and (lender is not None or held is not _lent.get(name)):
        raise ValueError(
            f"a jitted ELBO finds parameters by their names in Pyro's global store, where {name!r} belongs to another "
            "module or statement; one model and guide at a time can be trained by one. When done with the other call "
            "pyro.clear_param_store(); or train by Trace_ELBO, or by pyrodrop.fit, whose compiled steps have no such limit"
        )
    _lenders[name], _lent[name] = weakref.ref(owner), unconstrained
    store._params[name] = unconstrained
    store._constraints[name] = constraint


class _Weakly:
    """A key of a dictionary that is found by a tensor and does not keep it alive."""

    def __init__(self, tensor: Tensor, keys: dict[Any, str]) -> None:
        self._hash = hash(tensor)
        self._tensor = weakref.ref(tensor, lambda _: keys.pop(self, None))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return other is self or (isinstance(other, Tensor) and self._tensor() is other)


@contextmanager
def not_traced() -> Iterator[None]:
    """What torch.jit does not see: it takes a parameter's value as a number, not as a leaf to differentiate by."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # type: ignore[arg-type, attr-defined]
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)  # type: ignore[attr-defined]
