"""Private APIs of PyTorch and Pyro for tensors, optimisers and Pyro's store.

A release may change them, so only this file, `pyrodrop.compiled.private_apis` and `pyrodrop.torchscript` use private APIs.
`.ci/run` tests them with the oldest versions that `pyproject.toml` allows and with those of `constraints.txt`.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyro
import torch
from pyro.poutine import runtime
from torch import Tensor
from torch.utils import checkpoint as recomputation
from torch.utils._python_dispatch import TorchDispatchMode

_c: Any = torch._C
_torch: Any = torch

pack, unpack = _torch._pack_padded_sequence, _torch._pad_packed_sequence  # as torch.nn.utils.rnn calls them
NORMED = _torch.nn.utils.parametrizations._WeightNorm  # the parametrisation of weight_norm
fused_adam, fused_adamw, fused_sgd = _torch._fused_adam_, _torch._fused_adamw_, _torch._fused_sgd_
add_to_all = torch._foreach_add_


def in_function_transform() -> bool:
    """Whether the caller runs inside a transform of torch.func, such as vmap."""
    return _c._functorch.peek_interpreter_stack() is not None


def in_torchscript() -> bool:
    """Whether `torch.jit.trace` traces the caller."""
    return _c._get_tracing_state() is not None


def without_overrides(function: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Any:
    """Call a function of tensors as if none of them overrode ``__torch_function__``."""
    with _c.DisableTorchFunctionSubclass():
        return function(*args, **kwargs)


def body_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a `torch.nn.functional` function that is not overridden as a whole, so that a mode sees its operations."""
    whole: Any = function
    names = {**whole.__globals__, "has_torch_function": lambda _: False}
    body = types.FunctionType(whole.__code__, names, whole.__name__, whole.__defaults__)
    body.__kwdefaults__ = whole.__kwdefaults__
    return body


def without_values(kind: type[Tensor], shape: torch.Size, like: Tensor) -> Any:
    """A tensor of a subclass that overrides all functions, with the dtype and device of `like` and without values."""
    return Tensor._make_wrapper_subclass(kind, shape, dtype=like.dtype, device=like.device)  # type: ignore[attr-defined]


class _Intercept(TorchDispatchMode):
    def __init__(self, call: Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._call = call

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # which imports it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._call(func, args, kwargs or {})


def intercepted(call: Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]) -> TorchDispatchMode:
    """Within the block, replace every operation of PyTorch by ``call(operation, args, kwargs)``.

    Operations that `call` makes itself are not intercepted.
    """
    return _Intercept(call)


def arguments_of(operation: Any) -> Sequence[Any]:
    """The arguments of an ATen operation, each with ``name``, ``default_value`` and ``alias_info``."""
    return operation._schema.arguments  # type: ignore[no-any-return]


class _Recomputation(threading.local):
    """The state of this thread for `activations_kept`.

    Attributes:
        blocks: number of blocks of `activations_kept` around the running code.
        calls: number of calls of `torch.utils.checkpoint.checkpoint` that kept their activations.
    """

    blocks = calls = 0

    def keeps(self) -> bool:
        self.calls += self.blocks > 0
        return self.blocks > 0


_recomputation = _Recomputation()


@contextmanager
def activations_kept() -> Iterator[_Recomputation]:
    """Disable recomputation in `torch.utils.checkpoint.checkpoint` on this thread within the block.

    The first block replaces the two implementations of that function; elsewhere they behave as before.
    """
    _replace_recomputation()
    _recomputation.blocks += 1
    try:
        yield _recomputation
    finally:
        _recomputation.blocks -= 1


@functools.cache
def _replace_recomputation() -> None:
    by_function: Any = recomputation.CheckpointFunction
    name = "_checkpoint_without_reentrant_generator"
    name += "_impl" * hasattr(recomputation, f"{name}_impl")  # since PyTorch 2.14
    by_hooks: Any = getattr(recomputation, name)

    class CheckpointFunction(by_function):  # type: ignore[misc, valid-type]
        @staticmethod
        def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
            return function(*args) if _recomputation.keeps() else by_function.apply(function, preserve, *args)

    def generator(*args: Any, **kwargs: Any) -> Iterator[None]:
        if _recomputation.keeps():
            yield
        else:
            yield from by_hooks(*args, **kwargs)

    recomputation.CheckpointFunction = CheckpointFunction  # type: ignore[misc]
    setattr(recomputation, name, generator)


def pyro_handlers() -> list[Any]:
    """Pyro's active effect handlers, outermost first."""
    return runtime._PYRO_STACK  # type: ignore[no-any-return]


def restore_handlers(handlers: Sequence[Any]) -> None:
    """Set Pyro's stack of handlers to these, which `pyro_handlers` returned before."""
    stack = pyro_handlers()
    if tuple(stack) != tuple(handlers):
        stack[:] = handlers


def name_in_store(store: Any, key: Callable[[dict[Any, str]], Any], name: str) -> None:
    """Register the name of a parameter that Pyro's parameter store does not store.

    Args:
        key: function that returns a key that equals the parameter, from the store's dictionary of names.
    """
    names = store._param_to_name
    names[key(names)] = name


def constraint_in_store(name: str, otherwise: Any) -> Any:
    """The constraint of a parameter in Pyro's store, or `otherwise`; param statements of a PyroModule do not have it."""
    return pyro.get_param_store()._constraints.get(name, otherwise)


def forget_in_store(name: str) -> None:
    """Delete a parameter from Pyro's store, also one that has a second name there."""
    store: Any = pyro.get_param_store()
    store._param_to_name.pop(store._params.pop(name), None)
    del store._constraints[name]


class StoreAsItIs:
    """The parameters of Pyro's store as they are now, by reference."""

    def __init__(self) -> None:
        self._store: Any = pyro.get_param_store()
        self.before: dict[str, Tensor] = dict(self._store.named_parameters())

    def replaced(self) -> list[str]:
        """The names of parameters that were replaced by another tensor or removed."""
        now = dict(self._store.named_parameters())
        return [name for name, tensor in self.before.items() if now.get(name) is not tensor]

    def restore(self) -> None:
        """Restore the parameters that were replaced."""
        for name in self.replaced():
            constraint = constraint_in_store(name, torch.distributions.constraints.real)
            now = dict(self._store.named_parameters()).get(name)
            self._store._params[name], self._store._constraints[name] = self.before[name], constraint
            self._store._param_to_name.pop(now, None)
            self._store._param_to_name[self.before[name]] = name


@contextmanager
def without_compiler() -> Iterator[None]:
    """Within the block, creating and loading an optimiser of `torch.optim` does not import TorchDynamo.

    It imports Dynamo only to exclude its methods from compilation, which is not needed as long as Dynamo is not imported.
    """
    optim = torch.optim.Optimizer
    inner = [getattr(f, "__wrapped__", None) for f in (optim.add_param_group, optim.state_dict, optim.load_state_dict)]
    marked = [f for f in inner if f is not None and "torch._dynamo" not in sys.modules and not hasattr(f, _UNCOMPILED)]
    for function in marked:
        setattr(function, _UNCOMPILED, function)
    try:
        yield
    finally:
        for function in marked:
            delattr(function, _UNCOMPILED)


_UNCOMPILED = "__dynamo_disable"  # attribute where PyTorch caches the form of a function that Dynamo does not enter
