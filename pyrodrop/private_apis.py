"""Private APIs of PyTorch and Pyro: for tensors, optimisers and Pyro's store, and for recorded and compiled steps.

A release may change them, so only this file uses private APIs.
`.ci/run` tests them with the oldest versions that `pyproject.toml` allows and with those of `constraints.txt`.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import operator
import os
import sys
import types
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyro
import pyro.util
import torch
from pyro.infer import traceenum_elbo
from pyro.ops.einsum import contract
from pyro.poutine import runtime
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils import checkpoint as recomputation
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

_c: Any = torch._C
_torch: Any = torch

fused_adam, fused_adamw = _torch._fused_adam_, _torch._fused_adamw_
add_to_all = torch._foreach_add_
_make_wrapper_subclass: Any = Tensor._make_wrapper_subclass  # type: ignore[attr-defined]


@contextmanager
def _replaced_by(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def makes_new(operation: Any) -> bool:
    """Whether an operation of a graph returns tensors that are no views of its inputs."""
    return isinstance(operation, OpOverload) and all(each.alias_info is None for each in operation._schema.returns)


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
    return _make_wrapper_subclass(kind, shape, dtype=like.dtype, device=like.device)


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


@contextmanager
def recomputation_refused(message: str) -> Iterator[None]:
    """Within the block, `torch.utils.checkpoint.checkpoint(..., use_reentrant=True)` raises a RuntimeError."""

    class Refused(recomputation.CheckpointFunction):
        @staticmethod
        def apply(*_: Any) -> Any:
            raise RuntimeError(message)

    with _replaced_by(recomputation, "CheckpointFunction", Refused):
        yield


def pyro_handlers() -> list[Any]:
    """Pyro's active effect handlers, outermost first."""
    return runtime._PYRO_STACK  # type: ignore[no-any-return]


def restore_handlers(handlers: Sequence[Any]) -> None:
    """Set Pyro's stack of handlers to these, which `pyro_handlers` returned before."""
    stack = pyro_handlers()
    if tuple(stack) != tuple(handlers):
        stack[:] = handlers


def name_in_store(name: str, parameter: Tensor) -> None:
    """Register the name of a parameter that Pyro's parameter store does not store, and does not keep alive."""
    store: Any = pyro.get_param_store()
    if not isinstance(store._param_to_name, WeakTensorKeyDictionary):
        store._param_to_name = WeakTensorKeyDictionary(store._param_to_name)
    store._param_to_name[parameter] = name


def constraint_in_store(name: str, otherwise: Any) -> Any:
    """The constraint of a parameter in Pyro's store, or `otherwise`; param statements of a PyroModule do not have it."""
    return pyro.get_param_store()._constraints.get(name, otherwise)


def forget_in_store(name: str) -> None:
    """Delete a parameter from Pyro's store, also one that has a second name there."""
    store: Any = pyro.get_param_store()
    store._param_to_name.pop(store._params.pop(name), None)
    del store._constraints[name]


class StoreAsItIs:
    """The parameters of Pyro's store as they are now, by reference; of those with the ids of `only`, if it is not None."""

    def __init__(self, only: Container[int] | None = None) -> None:
        self._store: Any = pyro.get_param_store()
        every = self._store.named_parameters()
        self.before: dict[str, Tensor] = {n: tensor for n, tensor in every if only is None or id(tensor) in only}

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
            if now is not None:
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


@contextmanager
def without_nan_warnings() -> Iterator[None]:
    """Disable Pyro's warnings about losses that are NaN within the block: recorded tensors have no values."""
    with _replaced_by(pyro.util, "torch_isnan", lambda _: False):
        yield


@contextmanager
def without_validation() -> Iterator[None]:
    """Disable the validation of values by distributions within the block, also for distributions made before it."""
    kind = torch.distributions.Distribution
    with _replaced_by(kind, "_validate_sample", lambda self, value: None), pyro.validation_enabled(False):
        yield


@contextmanager
def costs_weighted() -> Iterator[None]:
    """Let `TraceEnum_ELBO` compute expected costs as sums with fixed shapes within the block.

    Pyro omits costs of probability 0, so shapes depend on values. Here such a cost counts as 0. A factor of the guide is a
    log probability, or 0 with the gradient of a log probability, so products of their exponentials do not overflow.
    """

    class Weighted(traceenum_elbo.Dice):  # type: ignore[misc]
        def compute_expectation(self, costs: Mapping[Any, Sequence[Any]]) -> Any:
            total: Any = 0.0
            for plates, terms in costs.items():
                factors = self._get_log_factors(plates)
                tensors = [factor for factor in factors if isinstance(factor, Tensor)]
                count = math.exp(sum(factor for factor in factors if not isinstance(factor, Tensor)))
                probabilities: dict[str, Tensor] = {}
                for cost in terms:
                    names = cost._pyro_dims
                    if names not in probabilities:
                        probabilities[names] = probability(tensors, names, cost)
                    chance = probabilities[names]
                    total = total + count * (chance * torch.where(chance > 0, cost, 0.0)).sum()
            return total

    def probability(factors: Sequence[Any], names: str, cost: Tensor) -> Tensor:
        """The product of the factors' exponentials, summed over all dimensions but the cost's."""
        inputs = [*(factor._pyro_dims for factor in factors), names]
        values = [*(factor.exp() for factor in factors), torch.ones_like(cost)]
        return contract(f"{','.join(inputs)}->{names}", *values, backend="torch")  # type: ignore[no-any-return]

    with _replaced_by(traceenum_elbo, "Dice", Weighted):
        yield


def stand_in(kind: type[Tensor], of: Tensor) -> Any:
    """A tensor of a subclass with the shape, strides, dtype and device of another, and without memory."""
    place = {"strides": of.stride(), "storage_offset": of.storage_offset(), "dtype": of.dtype, "device": of.device}
    return _make_wrapper_subclass(kind, of.shape, **place)


def without_dispatch(operation: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call an operation on tensors of `stand_in` without their dispatch, such as one that changes only their shape."""
    with _c._DisableTorchDispatch():
        return operation(*args, **kwargs)


def record(function: Callable[..., Any], inputs: Sequence[Tensor], elementary: Any = None) -> fx.GraphModule:
    """Record the operations that a function of tensors calls.

    Args:
        function: called once, with fake tensors, which have shapes but no values.
        inputs: tensors of the shapes, dtypes and devices to record for.
        elementary: decompositions of operations, from `elementary_forms`.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(function, elementary, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)


def elementary_forms(operations: Sequence[Any]) -> Any:
    """PyTorch's decompositions of these operations into more elementary ones, for `record`."""
    from torch._decomp import get_decompositions

    return get_decompositions(operations)


def script(graph: fx.Graph) -> Callable[..., Sequence[Tensor]]:
    """The function of its inputs that a graph computes, as a program of TorchScript; call it in `scripts_as_they_are`.

    Its interpreter calls the same operations, one after the other without Python, with the same kernels and therefore the
    same bits; nothing is fused or reordered.

    Raises:
        NotImplementedError: an operation has no form in TorchScript.
    """
    inputs = [f"{node.name}: Tensor" for node in graph.nodes if node.op == "placeholder"]
    lines, wanted = [f"def step({', '.join(inputs)}) -> List[Tensor]:"], []
    for node in graph.nodes:
        target: Any = node.target
        if target is operator.getitem:
            lines.append(f"  {node.name} = {node.args[0]}[{node.args[1]}]")
        elif node.op == "call_function":
            pairs = zip(node.args, target._schema.arguments, strict=False)
            if any(str(each.type) == "Tensor" and isinstance(value, int | float) for value, each in pairs):
                target = target.overloadpacket.Scalar  # a number in place of a tensor
            values = []
            for place, each in enumerate(target._schema.arguments):
                named = node.kwargs.get(each.name, each.default_value)
                code = _code_of(node.args[place] if place < len(node.args) else named, str(each.type))
                values.append(f"{each.name}={code}" if each.kwarg_only else code)
            lines.append(f"  {node.name} = torch.ops.{target._schema.name.replace('::', '.')}({', '.join(values)})")
            wanted.append(str(target._schema).partition("(")[0])
        elif node.op == "output":
            lines.append(f"  return {_code_of(node.args[0], 'Tensor')}")
    try:
        step = torch.jit.CompilationUnit("\n".join([*lines, ""])).step
    except RuntimeError as error:
        raise NotImplementedError(f"TorchScript has no form of it: {error}") from error
    names = [node.schema().partition("(")[0] for node in step.graph.nodes() if node.kind() != "aten::__getitem__"]
    made = [name.removesuffix("_hacked_twin") for name in names if name]  # by which a list has no None
    if made != wanted:
        other = next((name for name in made if name not in wanted), "fewer operations")
        raise NotImplementedError(f"TorchScript has {other} in place of one of its operations")
    return step  # type: ignore[no-any-return]


def _code_of(value: Any, kind: str) -> str:
    """An argument of an operation in TorchScript; `kind` is its type."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(_code_of(one, kind) for one in value)}]"
    if isinstance(value, torch.device):
        return f"torch.device('{value}')"
    if isinstance(value, torch.memory_format):
        return str(_MEMORY_FORMATS[value])
    if isinstance(value, bool) and "number" in kind:
        raise NotImplementedError("TorchScript makes a whole number of a truth value")
    value = float(value) if isinstance(value, int | float) and "float" in kind else value
    return f"float('{value}')" if isinstance(value, float) and not math.isfinite(value) else repr(value)


def scripts_as_they_are() -> AbstractContextManager[None]:
    """Run programs of TorchScript within the block as they were built; by default, their first calls optimise them."""
    return torch.jit.optimized_execution(False)  # type: ignore[no-any-return, no-untyped-call]


_MEMORY_FORMATS = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}


class Compiled(NamedTuple):
    """A compiled graph; call it with all its inputs. Autograd must be off.

    Attributes:
        call: takes the inputs as a list, which it may empty.
        file: the library that contains the whole program; None if there is none or it is unknown.
    """

    call: Callable[[list[Tensor]], Sequence[Tensor]]
    file: Path | None = None

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        return self.call(list(inputs))


def compile_by_inductor(module: fx.GraphModule, inputs: Sequence[Tensor], options: dict[str, Any]) -> Compiled:
    """Compile a graph with TorchInductor. If compilation fails, any exception may be raised.

    On a CPU, the program omits PyTorch's work around every call if possible: checking the mode, turning autograd off,
    counting the versions of tensors that the graph writes to, and more.
    """
    from torch._functorch import config
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    inner: list[Any] = []

    def compile_inner(graph: fx.GraphModule, given: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        same = _kinds(given) == _kinds(inputs) and _outputs(graph) == _outputs(module)
        compiled = compile_fx_inner(graph, given, *args, **kwargs)
        inner.append(getattr(compiled, "current_callable", None) if same else None)
        return compiled

    # Without PyTorch's cache of whole programs, which hides the inner program; kernels are still cached. Its messages are
    # about its own code: operations that it calls in a slower way, deprecated names.
    notes = _replaced_by(logging.getLogger("torch._inductor.ir"), "disabled", True)
    with config.patch(enable_autograd_cache=False), notes, warnings.catch_warnings(action="ignore"):
        whole: Any = compile_fx(module, list(inputs), inner_compile=compile_inner, config_patches=options)
    if len(inner) == 1 and callable(inner[0]) and not any(tensor.is_cuda for tensor in inputs):
        return Compiled(inner[0], _library(inner[0]))
    return Compiled(lambda given: whole(*given))


def _outputs(module: fx.GraphModule) -> int:
    return len(module.graph.output_node().args[0])  # type: ignore[arg-type]


def _kinds(inputs: Sequence[Any]) -> list[Any]:
    return [(getattr(one, "shape", None), getattr(one, "dtype", None)) for one in inputs]


_ENTRY = "inductor_entry_cpp"  # the function of a library of TorchInductor


def _library(bare: Callable[..., Any]) -> Path | None:
    """The library of a program that does nothing but call it; None for any other program."""
    held = [cell.cell_contents for cell in getattr(bare, "__closure__", None) or ()]
    libraries: list[Any] = [
        getattr(value, "__self__", None) for value in held if getattr(value, "__name__", "") == _ENTRY
    ]
    files = [Path(library.__file__) for library in libraries if getattr(library, "__file__", None)]
    return files[0] if len(held) == len(files) == 1 else None


def load_program(path: Path) -> Compiled:
    """The program of a library that TorchInductor has made.

    Raises:
        ImportError: it is no such library.
    """
    give, take = _c._aoti.unsafe_alloc_void_ptrs_from_tensors, _c._aoti.alloc_tensors_by_stealing_from_void_ptrs
    pointer = _c._dynamo.guards._torchinductor_pyobject_tensor_data_ptr
    os.environ["_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"] = str(pointer)  # where the library looks for it
    spec = importlib.util.spec_from_file_location(f"pyrodrop_{path.stem}.{_ENTRY}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no library of Python")
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    entry = getattr(library, _ENTRY)

    return Compiled(lambda inputs: take(entry(give(inputs))), path)
