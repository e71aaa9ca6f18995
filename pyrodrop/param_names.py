"""Names under which Pyro finds parameters that are stored in modules.

A `LocalModule` stores its own parameters, so that one process can have any number of guides. Two parts of Pyro still use
its global parameter store:

    pyro.optim with a function of the name; its save and load    look up the name of a parameter
    the jitted ELBOs (JitTrace_ELBO and others)                  look up the parameter of a name

The store gets the name of every parameter, with a weak reference to it. It gets the parameter itself only for a jitted
ELBO, which then finds parameters by name alone. With a second module whose parameters have the same names it would
silently train the wrong module, so that is an error until the store is cleared.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import pyro
from pyro.poutine.block_messenger import BlockMessenger
from pyro.poutine.trace_messenger import TraceMessenger
from torch import Tensor, nn
from torch.distributions import constraints

from pyrodrop.private_apis import lend_to_store, name_in_store, pyro_handlers

_lenders: dict[str, weakref.ref[nn.Module]] = {}
_lent: weakref.WeakValueDictionary[str, Tensor] = weakref.WeakValueDictionary()


def let_pyro_find(name: str, unconstrained: Tensor, constraint: constraints.Constraint, owner: nn.Module) -> None:
    """In a step of Pyro's SVI, tell the parameter store the parameter's name; for a jitted ELBO, lend it the parameter.

    Args:
        name: full name of the parameter.
        unconstrained: the tensor that an optimiser moves.
        constraint: support of the parameter's values.
        owner: the module that stores the parameter.

    Raises:
        ValueError: a jitted ELBO is used and another module's parameter has the name.
        MissingApi: a jitted ELBO is used and the store of the installed Pyro cannot take a parameter.
    """
    handlers = pyro_handlers()
    recorders = [i for i, handler in enumerate(handlers) if isinstance(handler, TraceMessenger) and handler.param_only]
    if not recorders:
        return
    store: Any = pyro.get_param_store()
    if store.param_name(unconstrained) != name:
        name_in_store(store, functools.partial(_Weakly, unconstrained), name)
    before = handlers[recorders[-1] - 1] if recorders[-1] > 0 else None
    if isinstance(before, BlockMessenger):  # pyro.ops.jit collects parameters in this way
        _lend(store, name, unconstrained, constraint, owner)


def _lend(store: Any, name: str, unconstrained: Tensor, constraint: constraints.Constraint, owner: nn.Module) -> None:
    stored = dict(store.named_parameters()).get(name)
    lender = _lenders[name]() if name in _lenders else None
    if stored is not None and lender is not owner and (lender is not None or stored is not _lent.get(name)):
        raise ValueError(
            f"a jitted ELBO finds parameters by their names in Pyro's global store, where {name!r} belongs to another "
            "module or param statement; jitted ELBOs can train one model and guide at a time. Call "
            "pyro.clear_param_store() when the other training is done, or train with Trace_ELBO or pyrodrop.fit, which do "
            "not have this limit"
        )
    lend_to_store(store, name, unconstrained, constraint)
    _lenders[name], _lent[name] = weakref.ref(owner), unconstrained


class _Weakly:
    """A dictionary key that equals a tensor without keeping the tensor alive; it leaves the dictionary with the tensor."""

    def __init__(self, tensor: Tensor, keys: dict[Any, str]) -> None:
        self._hash = hash(tensor)
        self._tensor = weakref.ref(tensor, lambda _: keys.pop(self, None))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return other is self or (isinstance(other, Tensor) and self._tensor() is other)
