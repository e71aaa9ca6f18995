"""Pyro modules whose parameters are stored in the module instead of Pyro's global parameter store.

With the global store, two guides with the same parameter names overwrite each other. Pyro's setting ``module_local_params``
avoids that, but applies to the whole process and swaps the store at every call, so that `SVI` loses track of parameters in
the global store. A `LocalModule` uses neither: reading one of its parameters is a ``pyro.param`` statement whose value is
stored in the module.

Optimisers of `pyro.optim` look up names of parameters in the store, for options by name and for saving. So the store gets
the name of every parameter, with a weak reference to it. The jitted ELBOs of Pyro look up the parameters themselves in the
store, so they raise an error.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import pyro
import torch
from pyro.nn import PyroModule, PyroParam
from pyro.poutine.block_messenger import BlockMessenger
from pyro.poutine.runtime import am_i_wrapped, effectful
from pyro.poutine.trace_messenger import TraceMessenger
from torch import Tensor, nn
from torch.distributions import constraints, transform_to

from pyrodrop.private_apis import in_torchscript, name_in_store, pyro_handlers
from pyrodrop.threads import reserved_elsewhere

_JITTED = (
    "torch.jit cannot trace models and guides of pyrodrop, as Pyro's jitted ELBOs and jit_compile=True do: train with "
    "Trace_ELBO, or faster with pyrodrop.fit or compile_svi, and sample from pyrodrop.potential"
)


class LocalModule(PyroModule):
    """A `PyroModule` whose parameters are stored in the module, never in Pyro's global store.

    Handlers see the parameters as param sites, `SVI` and optimisers train them, and a copy of the module has its own
    parameters.
    """

    from_data: tuple[str, ...] = ()  # names of state entries computed from data: a scalar, or one value per column

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if in_torchscript():
            raise NotImplementedError(_JITTED)
        return nn.Module.__call__(self, *args, **kwargs)  # no parameter store to swap

    def __getattr__(self, name: str) -> Any:
        declared = self.__dict__.get("_pyro_params", {})
        if name in declared:
            constraint, event_dim = declared[name]
            unconstrained: Any = nn.Module.__getattr__(self, f"{name}_unconstrained")
            return self._statement(name, unconstrained, constraint, event_dim)
        value = nn.Module.__getattr__(self, name)
        if isinstance(value, nn.Parameter) and not name.endswith("_unconstrained"):
            return self._statement(name, value, constraints.real, None)
        return value

    def _statement(
        self, name: str, unconstrained: Tensor, constraint: constraints.Constraint, event_dim: int | None
    ) -> Tensor:
        """A ``pyro.param`` statement whose value is stored in the module."""
        full_name = f"{self._pyro_name}.{name}" if self._pyro_name else name
        value = transform_to(constraint)(unconstrained)
        value.unconstrained = weakref.ref(unconstrained)
        if not am_i_wrapped() or reserved_elsewhere():  # then the handlers are another thread's
            return value  # type: ignore[no-any-return]
        handlers = pyro_handlers()
        recorders = [i for i, each in enumerate(handlers) if isinstance(each, TraceMessenger) and each.param_only]
        if recorders:  # a step of SVI, whose optimiser asks for names, or a jitted ELBO, which asks for the parameters
            if recorders[-1] and isinstance(handlers[recorders[-1] - 1], BlockMessenger):  # as pyro.ops.jit does alone
                raise NotImplementedError(_JITTED)
            if pyro.get_param_store().param_name(unconstrained) != full_name:
                name_in_store(full_name, unconstrained)
        keep = effectful(lambda *_, **__: value, type="param")
        return keep(full_name, constraint=constraint, event_dim=event_dim, name=full_name)


class ParameterTree(LocalModule):
    """A mapping from dotted names such as ``layers.0.weight`` to parameters.

    Reading ``tree["layers.0.weight"]`` is a Pyro param statement and returns the tensor.

    Args:
        values: initial values by name; they are copied.
    """

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._dotted = tuple(values)
        for name, value in values.items():
            *parents, leaf = name.split(".")
            node: LocalModule = self
            for parent in parents:
                if parent not in node._modules:
                    node.add_module(parent, LocalModule())
                node = node._modules[parent]  # type: ignore[assignment]
            setattr(node, leaf, PyroParam(value.detach().clone()))

    def __getitem__(self, name: str) -> Tensor:
        return functools.reduce(getattr, name.split("."), self)  # type: ignore[arg-type, return-value]

    def __iter__(self) -> Iterator[str]:  # type: ignore[override]
        return iter(self._dotted)

    def __len__(self) -> int:
        return len(self._dotted)

    def __contains__(self, name: object) -> bool:
        return name in self._dotted


def announce(module: nn.Module) -> None:
    """Read every parameter of the `LocalModule`s in `module`, so that handlers see a param site for each."""
    for child in module.modules():
        if isinstance(child, LocalModule):
            for name in child.__dict__["_pyro_params"]:
                getattr(child, name)


def check_assignable(module: torch.nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Raise a ValueError, which lists all differences, unless `state` can be loaded; `source` describes it in messages."""
    mine = module.state_dict()
    free = {name for name, child in module.named_modules() if getattr(child, "any_shape", False)}
    of_columns = {
        f"{name}.{number}" if name else number
        for name, child in module.named_modules()
        if isinstance(child, LocalModule)
        for number in child.from_data
    }
    wrong = [f"{n} is missing" for n in mine.keys() - state.keys()]
    wrong += [f"{n} is unexpected" for n in state.keys() - mine.keys()]
    for name, value in mine.items():
        if name not in state or not isinstance(value, Tensor) or name.rpartition(".")[0] in free:
            continue
        got = state[name]
        if got.shape != value.shape and not (name in of_columns and value.dim() == 0 and got.dim() == 1):
            wrong.append(f"{name} has shape {tuple(got.shape)}, expected {tuple(value.shape)}")
        elif got.dtype != value.dtype:
            wrong.append(f"{name} has dtype {got.dtype}, expected {value.dtype}")
    if wrong:
        raise ValueError(f"{source} does not belong to this {type(module).__name__}: " + "; ".join(sorted(wrong)))
