"""Private APIs of PyTorch and Pyro. No other file uses them, because any release may change them.

    function                private API                                          without it
    in_function_transform   torch._C._functorch.peek_interpreter_stack           masks are drawn by torch.bernoulli
    without_overrides       torch._C.DisableTorchFunctionSubclass                Tensor.__torch_function__ does the same
    without_values          torch.Tensor._make_wrapper_subclass                  Tensor.as_subclass of an expanded number
    body_of                 has_torch_function in torch.nn.functional            dropout in nn.MultiheadAttention is refused
    mapped_tree, leaves     torch.utils._pytree                                  tuples, lists and dictionaries alone
    record                  torch.fx.experimental.proxy_tensor.make_fx           engine 'pyro' instead of 'traced'
    arguments_of            _schema of an operation                              engine 'pyro' instead of 'traced'
    elementary_forms        torch._decomp.get_decompositions                     engine 'traced' instead of 'compiled'
    compile_by_inductor     torch._inductor.compile_fx.compile_fx                engine 'traced' instead of 'compiled'
    Program.bare            CompiledFxGraph.current_callable                     every call costs more
    pyro_handlers           pyro.poutine.runtime._PYRO_STACK                     Pyro's optimisers see no names of parameters
    name_in_store           _param_to_name of Pyro's parameter store             Pyro's optimisers see no names of parameters
    lend_to_store           _params and _constraints of Pyro's parameter store   jitted ELBOs raise an error
    bernoulli_results       torch.utils._python_dispatch.TorchDispatchMode       pyrodrop.read is refused
    intercepted             the same                                             engine 'pyro' makes no steps in parts
    silence_slow_vmap       torch._C._functorch._set_vmap_fallback_warning_...   the warnings are shown
    profile_kernels         torch._inductor.config                               profiles show no names of kernels

A function that has a fallback logs one warning per process when it uses it. The others raise `MissingApi`; the engines
report it as the reason for choosing another engine.
"""

from __future__ import annotations

import functools
import logging
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pyro
import torch
from pyro.poutine import runtime
from torch import Tensor, fx

try:
    from torch.utils import _pytree
except ImportError:
    _pytree = None  # type: ignore[assignment]

_log = logging.getLogger("pyrodrop")
_functorch: Any = getattr(torch._C, "_functorch", None)
_overrides_off: Any = getattr(torch._C, "DisableTorchFunctionSubclass", None)
_wrapper: Any = getattr(Tensor, "_make_wrapper_subclass", None)
_WITHOUT_NAMES = (
    "Pyro's optimisers do not see the names of parameters and its jitted ELBOs cannot train pyrodrop's modules; "
    "Trace_ELBO with one learning rate, and pyrodrop.fit, work as before"
)


class MissingApi(RuntimeError):
    """The installed PyTorch or Pyro does not have a private API in the form in which it is used here."""


def _missing(package: str, name: str, error: Exception | None = None, then: str = "") -> MissingApi:
    release = torch.__version__ if package == "PyTorch" else pyro.__version__
    reason = "" if error is None else f" ({type(error).__name__}: {error})"
    return MissingApi(f"{package} {release} does not have {name} as pyrodrop uses it{reason}{then and ': '}{then}")


@functools.cache
def _warn_once(text: str) -> None:
    _log.warning(text)


def in_function_transform() -> bool:
    """Whether the caller runs inside a transform of torch.func, such as vmap; True if that cannot be known."""
    try:
        return _functorch.peek_interpreter_stack() is not None
    except Exception as error:
        missing = _missing("PyTorch", "torch._C._functorch.peek_interpreter_stack", error)
        _warn_once(f"{missing}: dropout masks are drawn by torch.bernoulli, slower and with other values for a seed")
        return True


def without_overrides(function: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Any:
    """Call a function of tensors as if none of them overrode ``__torch_function__``."""
    if _overrides_off is None:
        missing = _missing("PyTorch", "torch._C.DisableTorchFunctionSubclass")
        _warn_once(f"{missing}: Tensor.__torch_function__ is called instead")
        return Tensor.__torch_function__(function, (), tuple(args), kwargs)  # type: ignore[no-untyped-call]
    with _overrides_off():
        return function(*args, **kwargs)


def body_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of `torch.nn.functional` that never asks for overrides of itself, so that a mode can run inside of it.

    Raises:
        MissingApi: the function does not ask in the known way.
    """
    asks = "has_torch_function"
    own: Any = function
    if asks not in own.__code__.co_names or asks not in own.__globals__:
        raise _missing("PyTorch", f"{asks} in {own.__name__}")
    body = types.FunctionType(own.__code__, {**own.__globals__, asks: lambda _: False}, own.__name__, own.__defaults__)
    body.__kwdefaults__ = own.__kwdefaults__
    return body


def without_values(kind: type[Tensor], shape: torch.Size, like: Tensor) -> Any:
    """A tensor of a subclass that overrides all functions, with the dtype and device of `like` and without values."""
    if _wrapper is None:
        missing = _missing("PyTorch", "torch.Tensor._make_wrapper_subclass")
        _warn_once(f"{missing}: Tensor.as_subclass is called instead")
        return torch.empty((), dtype=like.dtype, device=like.device).expand(shape).as_subclass(kind)
    return _wrapper(kind, shape, dtype=like.dtype, device=like.device)


def mapped_tree(function: Callable[[Any], Any], tree: Any) -> Any:
    """Nested tuples, lists and dictionaries, with the function's value in place of every leaf."""
    if _pytree is None:
        missing = _missing("PyTorch", "torch.utils._pytree")
        _warn_once(
            f"{missing}: arguments of a network's functions are searched in tuples, lists and dictionaries alone"
        )
        return _mapped(function, tree)
    return _pytree.tree_map(function, tree)


def _mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    if isinstance(tree, dict):
        return type(tree)((key, _mapped(function, value)) for key, value in tree.items())
    if isinstance(tree, tuple | list):
        values = [_mapped(function, value) for value in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)
    return function(tree)


def leaves(tree: Any) -> list[Any]:
    """The leaves of nested tuples, lists and dictionaries."""
    if _pytree is not None:
        return _pytree.tree_leaves(tree)
    found: list[Any] = []
    mapped_tree(found.append, tree)
    return found


def record(function: Callable[..., Any], inputs: Sequence[Tensor], elementary: Any = None) -> fx.GraphModule:
    """Record the operations that a function of tensors calls.

    Args:
        function: called once, with fake tensors, which have shapes but no values.
        inputs: tensors of the shapes, dtypes and devices to record for.
        elementary: operations that are to be recorded in other forms, by `elementary_forms`.

    Raises:
        MissingApi: the installed PyTorch cannot record.
    """
    try:
        from torch.fx.experimental.proxy_tensor import make_fx

        traced = make_fx(function, elementary, tracing_mode="fake", _allow_non_fake_inputs=True)
    except (ImportError, TypeError) as error:
        raise _missing("PyTorch", "torch.fx.experimental.proxy_tensor.make_fx", error) from error
    return traced(*inputs)


def arguments_of(operation: Any) -> Sequence[Any]:
    """The arguments of an ATen operation, each with ``name``, ``default_value`` and ``alias_info``.

    Raises:
        MissingApi: the operation does not list its arguments.
    """
    try:
        return operation._schema.arguments  # type: ignore[no-any-return]
    except AttributeError as error:
        raise _missing("PyTorch", f"{operation}._schema.arguments", error) from error


def elementary_forms(operations: Sequence[Any]) -> Any:
    """PyTorch's definitions of these operations by more elementary ones, as an argument of `record`.

    Raises:
        MissingApi: the installed PyTorch has no list of them.
    """
    try:
        from torch._decomp import get_decompositions

        return get_decompositions(operations)
    except (ImportError, TypeError) as error:
        raise _missing("PyTorch", "torch._decomp.get_decompositions", error) from error


class Program:
    """A compiled graph; call it with all of its inputs.

    Args:
        whole: the program with what PyTorch does around every call: it checks the mode, turns autograd off, counts the
            versions of the tensors that the graph writes to, and more.
        bare: the program without that, called with a list, which it empties; None if there is none. Autograd must be off.
    """

    def __init__(
        self, whole: Callable[..., Sequence[Tensor]], bare: Callable[[list[Tensor]], Sequence[Tensor]] | None
    ) -> None:
        self.whole, self.bare = whole, bare

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        return self.whole(*inputs)


def compile_by_inductor(module: fx.GraphModule, inputs: Sequence[Tensor], options: dict[str, Any]) -> Program:
    """Compile a graph with TorchInductor. If compilation fails, any exception may be raised.

    Raises:
        MissingApi: the installed PyTorch has no such function.
    """
    try:
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner
    except ImportError as error:
        raise _missing("PyTorch", "torch._inductor.compile_fx.compile_fx", error) from error
    inner: list[Any] = []
    outputs = _outputs(module)

    def compile_inner(graph: fx.GraphModule, given: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        same = _alike(given, inputs) and _outputs(graph) == outputs
        compiled = compile_fx_inner(graph, given, *args, **kwargs)
        inner.append(getattr(compiled, "current_callable", None) if same else None)
        return compiled

    with _traced_afresh():
        whole: Any = compile_fx(module, list(inputs), inner_compile=compile_inner, config_patches=options)
    return Program(whole, inner[0] if len(inner) == 1 and callable(inner[0]) else None)


def _traced_afresh() -> AbstractContextManager[object]:
    """Keep PyTorch from taking a whole program from its cache, in which the inner one is not seen; its kernels still are."""
    try:
        from torch._functorch import config

        return config.patch(enable_autograd_cache=False)  # type: ignore[no-any-return]
    except (ImportError, AttributeError):
        return nullcontext()


def _outputs(module: fx.GraphModule) -> int:
    results = next(node for node in reversed(module.graph.nodes) if node.op == "output").args[0]
    return len(results) if isinstance(results, tuple | list) else 1


def _alike(given: Sequence[Any], wanted: Sequence[Tensor]) -> bool:
    """Whether these are as many tensors of the same shapes and dtypes."""
    return len(given) == len(wanted) and all(
        isinstance(one, Tensor) and one.shape == other.shape and one.dtype == other.dtype
        for one, other in zip(given, wanted, strict=True)
    )


@contextmanager
def bernoulli_results() -> Iterator[list[Tensor]]:
    """Copies of all Bernoulli masks that PyTorch draws within the block, in order, whatever function draws them.

    Uniform numbers that are rounded or compared count as masks too, of which what is rarer is 0.

    Raises:
        MissingApi: the operations cannot be watched.
    """
    found: list[Tensor] = []
    aten: Any = torch.ops.aten
    uniform: dict[int, Tensor] = {}  # kept, so that no other tensor gets the same id
    below, above = (aten.lt, aten.le), (aten.gt, aten.ge)

    def watch(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = func(*args, **kwargs)
        packet = getattr(func, "overloadpacket", None)
        if packet in (aten.bernoulli, aten.bernoulli_):
            found.append(result.clone())
        elif packet is aten.native_dropout:
            found.append(result[1].to(result[0].dtype))
        elif packet in (aten.rand, aten.rand_like):
            uniform[id(result)] = result
        elif args and id(args[0]) in uniform:
            if packet in (aten.floor, aten.floor_):
                found.append(result.clone())
            elif packet in (*below, *above):
                mask = result.to(args[0].dtype)
                found.append(mask if (args[1] >= 0.5) == (packet in below) else 1 - mask)
            else:
                uniform[id(result)] = result
        return result

    with intercepted(watch):
        yield found


def intercepted(call: Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]) -> AbstractContextManager[Any]:
    """Have ``call(operation, args, kwargs)`` give the result of every operation of PyTorch within the block.

    Operations that `call` makes itself are not intercepted.

    Raises:
        MissingApi: operations cannot be intercepted.
    """
    try:
        from torch.utils._python_dispatch import TorchDispatchMode
    except ImportError as error:
        raise _missing("PyTorch", "torch.utils._python_dispatch.TorchDispatchMode", error) from error

    class Intercept(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return call(func, args, kwargs or {})

    return Intercept()  # type: ignore[no-untyped-call]


def pyro_handlers() -> Sequence[Any]:
    """Pyro's active effect handlers, outermost first; empty if they cannot be read."""
    try:
        return runtime._PYRO_STACK
    except AttributeError as error:
        missing = _missing("Pyro", "pyro.poutine.runtime._PYRO_STACK", error)
        _warn_once(f"{missing}: {_WITHOUT_NAMES}")
        return ()


def name_in_store(store: Any, key: Callable[[dict[Any, str]], Any], name: str) -> None:
    """Tell Pyro's parameter store the name of a parameter that it does not store.

    Args:
        store: Pyro's parameter store.
        key: from the store's dictionary of names to a key that equals the parameter.
        name: of the parameter.
    """
    try:
        names = store._param_to_name
        names[key(names)] = name
    except (AttributeError, TypeError) as error:
        _warn_once(f"{_missing('Pyro', 'ParamStoreDict._param_to_name', error)}: {_WITHOUT_NAMES}")


def lend_to_store(store: Any, name: str, unconstrained: Tensor, constraint: Any) -> None:
    """Put a parameter into Pyro's store by reference.

    Raises:
        MissingApi: the store of the installed Pyro is not made of these dictionaries.
    """
    try:
        store._params[name], store._constraints[name] = unconstrained, constraint
    except (AttributeError, TypeError) as error:
        raise _missing(
            "Pyro", "ParamStoreDict._params", error, "its jitted ELBOs cannot train pyrodrop's modules; use Trace_ELBO"
        ) from error


def silence_slow_vmap() -> None:
    """Turn off the warnings about operations that torch.vmap maps one by one."""
    try:
        _functorch._set_vmap_fallback_warning_enabled(False)
    except AttributeError as error:
        missing = _missing("PyTorch", "torch._C._functorch._set_vmap_fallback_warning_enabled", error)
        _warn_once(f"{missing}: warnings about slow operations under vmap stay on")


def profile_kernels() -> None:
    """Have TorchInductor compile afresh, with kernels that profilers show by name."""
    try:
        config: Any = torch._inductor.config
        config.cpp.enable_kernel_profile = True
        config.force_disable_caches = True
    except AttributeError as error:
        _warn_once(f"{_missing('PyTorch', 'torch._inductor.config', error)}: kernels have no names in the profile")
