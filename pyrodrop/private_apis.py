"""Private APIs of PyTorch and Pyro. No other file uses them, because any release may change them.

    function                private API                                          without it
    in_function_transform   torch._C._functorch.peek_interpreter_stack           masks are drawn by torch.bernoulli
    without_overrides       torch._C.DisableTorchFunctionSubclass                Tensor.__torch_function__ does the same
    without_values          torch.Tensor._make_wrapper_subclass                  Tensor.as_subclass of an expanded number
    stand_in                the same                                             engine 'pyro' instead of 'traced'
    without_dispatch        torch._C._DisableTorchDispatch                           the same, where a shape changes in place
    body_of                 has_torch_function in torch.nn.functional            dropout in nn.MultiheadAttention is refused
    mapped_tree, leaves     torch.utils._pytree                                  tuples, lists and dictionaries alone
    ScriptBuilder           torch._C.Graph                                       traced steps are called from Python, slower
    packing                 torch._pack_padded_sequence, _pad_packed_sequence    packed sequences: engine 'pyro' for 'traced'
    record                  torch.fx.experimental.proxy_tensor.make_fx           engine 'traced' instead of 'compiled'
    arguments_of            _schema of an operation                              engine 'pyro' instead of 'traced'
    elementary_forms        torch._decomp.get_decompositions                     engine 'traced' instead of 'compiled'
    compile_by_inductor     torch._inductor.compile_fx.compile_fx                engine 'traced' instead of 'compiled'
    Program.bare            CompiledFxGraph.current_callable                     every call costs more
    load_program            torch._C._aoti                                       programs are compiled in every process
    pyro_handlers           pyro.poutine.runtime._PYRO_STACK                     Pyro's optimisers see no names of parameters
    restore_handlers        the same                                             what an error leaves on Pyro's stack stays
    name_in_store           _param_to_name of Pyro's parameter store             Pyro's optimisers see no names of parameters
    lend_to_store           _params and _constraints of Pyro's parameter store   jitted ELBOs raise an error
    constraint_in_store     _constraints of Pyro's parameter store               messages about failures look at other values
    bernoulli_results       torch.utils._python_dispatch.TorchDispatchMode       pyrodrop.read is refused
    without_nan_warnings    pyro.util.torch_isnan                                engine 'pyro' instead of 'traced'
    without_validation      torch.distributions.Distribution._validate_sample    engine 'pyro' instead of 'traced'
    costs_weighted          pyro.infer.traceenum_elbo.Dice, _pyro_dims           the same, with TraceEnum_ELBO
    intercepted             the same                                             engine 'pyro' instead of 'traced'
    activations_kept        CheckpointFunction, _checkpoint_without_reen...   networks that recompute activations are refused
    fused_adam              torch._fused_adam_                                   the optimiser's own step, which is slower
    without_compiler        __dynamo_disable of torch.optim.Optimizer            the compiler is imported before a step
    silence_slow_vmap       torch._C._functorch._set_vmap_fallback_warning_...   the warnings are shown

A function that has a fallback logs one warning per process when it uses it. The others raise `MissingApi`; the engines
report it as the reason for choosing another engine.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import math
import os
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pyro
import torch
from pyro.poutine import runtime
from torch import Tensor, fx
from torch.utils import checkpoint as recomputation

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


def _fall_back(package: str, name: str, to: str, error: Exception | None = None) -> None:
    """Say once what is done without a private API."""
    _warn_once(f"{_missing(package, name, error)}: {to}")


@contextmanager
def _replaced_by(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def in_function_transform(*, unknown: bool = True) -> bool:
    """Whether the caller runs inside a transform of torch.func, such as vmap; `unknown` if that cannot be known."""
    try:
        return _functorch.peek_interpreter_stack() is not None
    except Exception as error:
        to = "dropout masks are drawn by torch.bernoulli, slower and with other values for a seed"
        _fall_back("PyTorch", "torch._C._functorch.peek_interpreter_stack", to, error)
        return unknown


def without_overrides(function: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Any:
    """Call a function of tensors as if none of them overrode ``__torch_function__``."""
    if _overrides_off is None:
        _fall_back("PyTorch", "torch._C.DisableTorchFunctionSubclass", "Tensor.__torch_function__ is called instead")
        return Tensor.__torch_function__(function, (), tuple(args), kwargs)  # type: ignore[no-untyped-call]
    with _overrides_off():
        return function(*args, **kwargs)


def body_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of `torch.nn.functional` that never asks for overrides of itself, so that a mode can run inside of it."""
    asks = "has_torch_function"
    whole: Any = function
    if asks not in whole.__code__.co_names or asks not in whole.__globals__:
        raise _missing("PyTorch", f"{asks} in {whole.__name__}")
    body = types.FunctionType(
        whole.__code__, {**whole.__globals__, asks: lambda _: False}, whole.__name__, whole.__defaults__
    )
    body.__kwdefaults__ = whole.__kwdefaults__
    return body


def without_values(kind: type[Tensor], shape: torch.Size, like: Tensor) -> Any:
    """A tensor of a subclass that overrides all functions, with the dtype and device of `like` and without values."""
    if _wrapper is None:
        _fall_back("PyTorch", "torch.Tensor._make_wrapper_subclass", "Tensor.as_subclass is called instead")
        return torch.empty((), dtype=like.dtype, device=like.device).expand(shape).as_subclass(kind)
    return _wrapper(kind, shape, dtype=like.dtype, device=like.device)


def constraint_in_store(name: str, otherwise: Any) -> Any:
    """The constraint of a parameter in Pyro's store, which param statements of a PyroModule do not give; or another."""
    return getattr(pyro.get_param_store(), "_constraints", {}).get(name, otherwise)


@contextmanager
def without_nan_warnings() -> Iterator[None]:
    """Have Pyro's losses not look at their values for a warning about NaN within the block, which a recording has not."""
    import pyro.util

    if not hasattr(pyro.util, "torch_isnan"):
        raise _missing("Pyro", "pyro.util.torch_isnan")
    with _replaced_by(pyro.util, "torch_isnan", lambda _: False):
        yield


@contextmanager
def without_validation() -> Iterator[None]:
    """Have no distribution look at its values within the block, also those that were made before it, as by `expand`."""
    kind, name = torch.distributions.Distribution, "_validate_sample"
    if not hasattr(kind, name):
        raise _missing("PyTorch", f"torch.distributions.Distribution.{name}")
    with _replaced_by(kind, name, lambda self, value: None), pyro.validation_enabled(False):
        yield


@contextmanager
def costs_weighted() -> Iterator[None]:
    """Have `TraceEnum_ELBO` take the expected costs as sums with fixed shapes within the block.

    Pyro leaves out the costs of probability 0, so shapes depend on values. Here such a cost counts 0. A factor of the guide
    is a log probability, or 0 with the gradient of one, so that products of their exponentials do not overflow.
    """
    from pyro.infer import traceenum_elbo
    from pyro.ops.einsum import contract

    before = getattr(traceenum_elbo, "Dice", None)
    if not hasattr(before, "_get_log_factors") or not hasattr(before, "compute_expectation"):
        raise _missing("Pyro", "pyro.infer.util.Dice")

    class Weighted(before):  # type: ignore[misc, valid-type]
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
    """A tensor of a subclass in the form of another, with its strides, and without memory."""
    if _wrapper is None:
        raise _missing("PyTorch", "torch.Tensor._make_wrapper_subclass")
    place = of.storage_offset()
    return _wrapper(kind, of.shape, strides=of.stride(), storage_offset=place, dtype=of.dtype, device=of.device)


def without_dispatch(operation: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call an operation on tensors of `stand_in` as it is, such as one that changes their shape and reads no value."""
    try:
        guard = torch._C._DisableTorchDispatch()
    except AttributeError as error:
        raise _missing("PyTorch", "torch._C._DisableTorchDispatch", error) from error
    with guard:
        return operation(*args, **kwargs)


def mapped_tree(function: Callable[[Any], Any], tree: Any) -> Any:
    """Nested tuples, lists and dictionaries, with the function's value in place of every leaf."""
    if _pytree is None:
        to = "arguments of a network's functions are searched in tuples, lists and dictionaries alone"
        _fall_back("PyTorch", "torch.utils._pytree", to)
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
    leaves: list[Any] = []
    mapped_tree(leaves.append, tree)
    return leaves


def packing() -> tuple[Any, Any]:
    """The functions that pack and pad sequences in `torch.nn.utils.rnn`; None for one that PyTorch does not have."""
    return getattr(torch, "_pack_padded_sequence", None), getattr(torch, "_pad_packed_sequence", None)


def record(function: Callable[..., Any], inputs: Sequence[Tensor], elementary: Any = None) -> fx.GraphModule:
    """Record the operations that a function of tensors calls.

    Args:
        function: called once, with fake tensors, which have shapes but no values.
        inputs: tensors of the shapes, dtypes and devices to record for.
        elementary: operations that are to be recorded in other forms, by `elementary_forms`.
    """
    try:
        from torch.fx.experimental.proxy_tensor import make_fx

        traced = make_fx(function, elementary, tracing_mode="fake", _allow_non_fake_inputs=True)
    except (ImportError, TypeError) as error:
        raise _missing("PyTorch", "torch.fx.experimental.proxy_tensor.make_fx", error) from error
    return traced(*inputs)


def arguments_of(operation: Any) -> Sequence[Any]:
    """The arguments of an ATen operation, each with ``name``, ``default_value`` and ``alias_info``."""
    try:
        return operation._schema.arguments  # type: ignore[no-any-return]
    except AttributeError as error:
        raise _missing("PyTorch", f"{operation}._schema.arguments", error) from error


class ScriptBuilder:
    """Builds a program of TorchScript, operation by operation."""

    def __init__(self) -> None:
        try:
            self._c: Any = torch._C
            self._graph = self._c.Graph()
            self._tensor = self._c.TensorType.get()
        except AttributeError as error:
            raise _missing("PyTorch", "torch._C.Graph", error) from error
        self._constants: dict[tuple[str, str], Any] = {}

    def input(self) -> Any:
        """A tensor."""
        value = self._graph.addInput()
        value.setType(self._tensor)
        return value

    def constant(self, value: Any, kind: str = "") -> Any:
        """A number, a list of them, a dtype, device, layout, memory format, or None; `kind` is the type for empty lists."""
        key = type(value).__name__, repr(value) + (kind if value == [] else "")
        if key not in self._constants:
            number = _MEMORY_FORMATS.get(value) if isinstance(value, torch.memory_format) else value
            self._constants[key] = self._empty(kind) if value == [] else self._tried(self._graph.insertConstant, number)
        return self._constants[key]

    def tensors(self, values: Sequence[Any], kind: str) -> Any:
        """A list of tensors, of which some may be None if its type says so."""
        of = (
            self._c.OptionalType(self._tensor)
            if "Optional[Tensor]" in kind.removeprefix("Optional[List[")
            else self._tensor
        )
        return self._list(list(values), of)

    def call(self, operation: Any, values: Sequence[Any], count: int = 1) -> Any:
        """The result of an operation, or a list of its results; `count` is their number where it gives a list."""
        schema = operation._schema
        returns = [str(result.type) for result in schema.returns]
        lists = returns == ["List[Tensor]"]
        if not lists and any(kind != "Tensor" for kind in returns):
            raise _missing("PyTorch", f"a form of {operation} with results {', '.join(returns)}")
        node = self._tried(self._graph.create, schema.name, list(values), len(returns))
        results = self._added(node, self._c.ListType(self._tensor) if lists else self._tensor)
        if node.schema() != str(schema):
            raise _missing("PyTorch", f"{operation} with these arguments, for which it has {node.schema()},")
        if lists:
            return self._added(self._graph.create("prim::ListUnpack", results, count), self._tensor)
        return results[0] if len(results) == 1 else results

    def program(self, results: Sequence[Any]) -> Callable[..., Sequence[Tensor]]:
        """The program, with these results."""
        self._graph.registerOutput(self._list(list(results), self._tensor))
        self._tried(self._graph.lint)
        return self._tried(self._c._create_function_from_graph, "step", self._graph)  # type: ignore[no-any-return]

    def _empty(self, kind: str) -> Any:
        of = {"int": self._c.IntType.get, "float": self._c.FloatType.get, "bool": self._c.BoolType.get}
        name = next((name for name in of if name in kind.lower()), None)
        if name is None:
            raise _missing("PyTorch", f"a form of an empty {kind}")
        return self._list([], of[name]())

    def _list(self, values: list[Any], kind: Any) -> Any:
        return self._added(self._graph.create("prim::ListConstruct", values, 1), self._c.ListType(kind))[0]

    def _added(self, node: Any, kind: Any) -> list[Any]:
        """The results, of this type, of a node that is added to the program."""
        self._graph.appendNode(node)
        results = list(node.outputs())
        for result in results:
            result.setType(kind)
        return results

    def _tried(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except (AttributeError, RuntimeError, TypeError) as error:
            raise _missing("PyTorch", getattr(function, "__name__", "torch._C.Graph"), error) from error


def scripts_as_they_are() -> AbstractContextManager[None]:
    """Have programs of TorchScript run within the block as they were built; by default the first calls optimise them."""
    return torch.jit.optimized_execution(False)  # type: ignore[no-any-return]


_MEMORY_FORMATS = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}


def elementary_forms(operations: Sequence[Any]) -> Any:
    """PyTorch's definitions of these operations by more elementary ones, as an argument of `record`."""
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

    Attributes:
        file: the library that the bare program is; None if it is none, or not known.
    """

    def __init__(
        self,
        whole: Callable[..., Sequence[Tensor]],
        bare: Callable[[list[Tensor]], Sequence[Tensor]] | None,
        file: Path | None = None,
    ) -> None:
        self.whole = whole
        self.bare = bare
        self.file: Path | None = file

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        return self.whole(*inputs)


def compile_by_inductor(module: fx.GraphModule, inputs: Sequence[Tensor], options: dict[str, Any]) -> Program:
    """Compile a graph with TorchInductor. If compilation fails, any exception may be raised."""
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

    with _traced_afresh(), _without_notes():
        whole: Any = compile_fx(module, list(inputs), inner_compile=compile_inner, config_patches=options)
    bare = inner[0] if len(inner) == 1 and callable(inner[0]) else None
    return Program(whole, bare, None if bare is None else _library(bare))


@contextmanager
def compiler_folder(path: Path | None) -> Iterator[None]:
    """Have TorchInductor keep what it compiles in a folder, unless the user has named one."""
    name = "TORCHINDUCTOR_CACHE_DIR"
    if path is None or name in os.environ:
        yield
        return
    os.environ[name] = str(path)
    try:
        yield
    finally:
        os.environ.pop(name, None)


_ENTRY = "inductor_entry_cpp"  # the function of a library of TorchInductor


def _library(bare: Callable[..., Any]) -> Path | None:
    """The library that a bare program calls and is nothing else than."""
    held = [cell.cell_contents for cell in getattr(bare, "__closure__", None) or ()]
    libraries: list[Any] = [
        getattr(value, "__self__", None) for value in held if getattr(value, "__name__", "") == _ENTRY
    ]
    files = [Path(library.__file__) for library in libraries if getattr(library, "__file__", None)]
    return files[0] if len(held) == len(files) == 1 else None


def load_program(path: Path) -> Program:
    """The program of a library that TorchInductor has made.

    Raises:
        MissingApi: PyTorch cannot call it.
        ImportError: it is no such library.
    """
    try:
        c: Any = torch._C
        give, take = (
            c._aoti.unsafe_alloc_void_ptrs_from_tensors,
            c._aoti.alloc_tensors_by_stealing_from_void_ptrs,
        )
        pointer = c._dynamo.guards._torchinductor_pyobject_tensor_data_ptr
    except AttributeError as error:
        raise _missing("PyTorch", "torch._C._aoti", error) from error
    os.environ["_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"] = str(pointer)  # where the library looks for it
    spec = importlib.util.spec_from_file_location(f"pyrodrop_{path.stem}.{_ENTRY}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no library of Python")
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    entry = getattr(library, _ENTRY)

    def bare(inputs: list[Tensor]) -> Sequence[Tensor]:
        return take(entry(give(inputs)))  # type: ignore[no-any-return]

    return Program(lambda *inputs: bare(list(inputs)), bare, path)


def _traced_afresh() -> AbstractContextManager[object]:
    """Keep PyTorch from taking a whole program from its cache, in which the inner one is not seen; its kernels still are."""
    try:
        from torch._functorch import config

        return config.patch(enable_autograd_cache=False)  # type: ignore[no-any-return]
    except (ImportError, AttributeError):
        return nullcontext()


@contextmanager
def _without_notes() -> Iterator[None]:
    """Without what TorchInductor says about its own code: operations that it calls in a slower way, deprecated names."""
    log = logging.getLogger("torch._inductor.ir")

    def is_news(record: logging.LogRecord) -> bool:
        return "c-shim" not in record.getMessage()

    log.addFilter(is_news)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.")
            yield
    finally:
        log.removeFilter(is_news)


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
    """
    results: list[Tensor] = []
    aten: Any = torch.ops.aten
    uniform: dict[int, Tensor] = {}  # kept, so that no other tensor gets the same id
    below, above = (aten.lt, aten.le), (aten.gt, aten.ge)

    def watch(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = func(*args, **kwargs)
        packet = getattr(func, "overloadpacket", None)
        if packet in (aten.bernoulli, aten.bernoulli_):
            results.append(result.clone())
        elif packet is aten.native_dropout:
            results.append(result[1].to(result[0].dtype))
        elif packet in (aten.rand, aten.rand_like):
            uniform[id(result)] = result
        elif args and id(args[0]) in uniform:
            if packet in (aten.floor, aten.floor_):
                results.append(result.clone())
            elif packet in (*below, *above):
                mask = result.to(args[0].dtype)
                results.append(mask if (args[1] >= 0.5) == (packet in below) else 1 - mask)
            else:
                uniform[id(result)] = result
        return result

    with intercepted(watch):
        yield results


def intercepted(call: Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]) -> AbstractContextManager[Any]:
    """Have ``call(operation, args, kwargs)`` give the result of every operation of PyTorch within the block.

    Operations that `call` makes itself are not intercepted.
    """
    try:
        from torch.utils._python_dispatch import TorchDispatchMode

        class Intercept(TorchDispatchMode):
            @classmethod
            def _should_skip_dynamo(cls) -> bool:
                return False  # which imports it

            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return call(func, args, kwargs or {})

        return Intercept()  # type: ignore[no-untyped-call]
    except (ImportError, TypeError) as error:
        raise _missing("PyTorch", "torch.utils._python_dispatch.TorchDispatchMode", error) from error


class _Recomputation(threading.local):
    """What this thread does about `torch.utils.checkpoint`.

    Attributes:
        blocks: number of the blocks of `activations_kept` that it is in.
        calls: number of the calls of `torch.utils.checkpoint.checkpoint` that kept their activations.
    """

    blocks = calls = 0

    def keeps(self) -> bool:
        self.calls += self.blocks > 0
        return self.blocks > 0


_recomputation = _Recomputation()
_replacing = threading.Lock()
_replaced: list[tuple[str, Any]] = []  # the names of torch.utils.checkpoint that are replaced, and what they were
_blocks = 0  # of `activations_kept` on all threads


@contextmanager
def activations_kept() -> Iterator[_Recomputation]:
    """Have `torch.utils.checkpoint.checkpoint` call its function as it is on this thread within the block.

    Where PyTorch lacks the two names the block changes nothing, and `pyrodrop.networks.call` refuses such networks.
    """
    global _blocks
    with _replacing:
        if not _blocks:
            _keep_activations()
        _blocks += 1
    _recomputation.blocks += 1
    try:
        yield _recomputation
    finally:
        _recomputation.blocks -= 1
        with _replacing:
            _blocks -= 1
            if not _blocks:
                while _replaced:
                    setattr(recomputation, *_replaced.pop())


def _keep_activations() -> None:
    """Replace the two parts of `torch.utils.checkpoint.checkpoint`, for all who have imported that function."""
    by_function: Any = getattr(recomputation, "CheckpointFunction", None)
    by_hooks: Any = getattr(recomputation, "_checkpoint_without_reentrant_generator", None)
    if by_function is None or by_hooks is None:
        return
    for kept, before in zip(_keeping(by_function, by_hooks), (by_function, by_hooks), strict=True):
        _replaced.append((before.__name__, before))
        setattr(recomputation, before.__name__, kept)


@functools.cache
def _keeping(by_function: Any, by_hooks: Any) -> tuple[Any, Any]:
    """What replaces them: the same on other threads, and in no block of `activations_kept`."""

    class Kept:
        @staticmethod
        def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
            return function(*args) if _recomputation.keeps() else by_function.apply(function, preserve, *args)

    def kept(*args: Any, **kwargs: Any) -> Iterator[None]:
        if _recomputation.keeps():
            yield
        else:
            yield from by_hooks(*args, **kwargs)

    return Kept, kept


def pyro_handlers() -> Sequence[Any]:
    """Pyro's active effect handlers, outermost first; empty if they cannot be read."""
    try:
        return runtime._PYRO_STACK
    except AttributeError as error:
        _fall_back("Pyro", "pyro.poutine.runtime._PYRO_STACK", _WITHOUT_NAMES, error)
        return ()


def restore_handlers(handlers: Sequence[Any]) -> None:
    """Have Pyro's stack of handlers be these, which `pyro_handlers` returned before, whatever was left on it since."""
    stack: Any = pyro_handlers()
    if tuple(stack) != tuple(handlers):
        stack[:] = handlers


def name_in_store(store: Any, key: Callable[[dict[Any, str]], Any], name: str) -> None:
    """Tell Pyro's parameter store the name of a parameter that it does not store.

    Args:
        key: from the store's dictionary of names to a key that equals the parameter.
    """
    try:
        names = store._param_to_name
        names[key(names)] = name
    except (AttributeError, TypeError) as error:
        _fall_back("Pyro", "ParamStoreDict._param_to_name", _WITHOUT_NAMES, error)


def lend_to_store(store: Any, name: str, unconstrained: Tensor, constraint: Any) -> None:
    """Put a parameter into Pyro's store by reference."""
    try:
        store._params[name], store._constraints[name] = unconstrained, constraint
    except (AttributeError, TypeError) as error:
        raise _missing(
            "Pyro", "ParamStoreDict._params", error, "its jitted ELBOs cannot train pyrodrop's modules; use Trace_ELBO"
        ) from error


class StoreAsItIs:
    """The parameters of Pyro's store as they are now, by reference."""

    def __init__(self) -> None:
        self._store: Any = pyro.get_param_store()
        self.before: dict[str, Tensor] = dict(self._store.named_parameters())

    def replaced(self) -> list[str]:
        """The names of those in whose place is another tensor, or none."""
        now = dict(self._store.named_parameters())
        return [name for name, tensor in self.before.items() if now.get(name) is not tensor]

    def restore(self) -> None:
        """Put them back."""
        for name in self.replaced():
            constraint = constraint_in_store(name, torch.distributions.constraints.real)
            now = dict(self._store.named_parameters()).get(name)
            lend_to_store(self._store, name, self.before[name], constraint)
            self._store._param_to_name.pop(now, None)
            self._store._param_to_name[self.before[name]] = name


def fused_adam(*, decoupled: bool) -> Callable[..., None] | None:
    """PyTorch's fused step of Adam, or of AdamW if the decay is decoupled; None if it has none, for the optimiser's own."""
    return getattr(torch, "_fused_adamw_" if decoupled else "_fused_adam_", None)


def fused_sgd() -> Callable[..., None] | None:
    """PyTorch's fused step of gradient descent; None if it has none, for the optimiser's own."""
    return getattr(torch, "_fused_sgd_", None)


@contextmanager
def without_compiler() -> Iterator[None]:
    """Let `torch.optim` make and load an optimiser without importing TorchDynamo, to which it says what not to compile.

    Where Dynamo is not imported it compiles nothing.
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


_UNCOMPILED = "__dynamo_disable"  # where PyTorch keeps the form of a function that Dynamo does not enter


def silence_slow_vmap() -> None:
    """Turn off the warnings about operations that torch.vmap maps one by one."""
    try:
        _functorch._set_vmap_fallback_warning_enabled(False)
    except AttributeError as error:
        name = "torch._C._functorch._set_vmap_fallback_warning_enabled"
        _fall_back("PyTorch", name, "warnings about slow operations under vmap stay on", error)
