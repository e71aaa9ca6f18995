"""What Pyro programs are made of, what has changed of it, and how to put it back.

A program is a module, a function, a method, an object with ``__call__``, or one of these in handlers of Pyro, partials and
decorators. It is made of the objects that its code names: attributes of objects, classes and imported modules, slots,
containers, closures, defaults and global names, at any depth. Among them are modules with parameters and buffers, settings
(numbers, flags and other objects), and memory that calls change: tensors, counters, iterators, random generators. What
a function of another library reads is not found.

`Flags` compares parameters, hooks and modes of modules, `Contents` all other objects, and a `Look` values, too.
"""

from __future__ import annotations

import copy
import functools
import itertools
import pickle
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, nullcontext, suppress
from itertools import chain
from operator import attrgetter
from pathlib import Path
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np
import pyro
import torch
from torch import Tensor, nn
from torch.distributions import Transform

from pyrodrop.checks import HasPosterior, HasWeights, tensors_in
from pyrodrop.modules import LocalModule
from pyrodrop.private_apis import StoreAsItIs, arguments_of, forget_in_store, intercepted

_LIBRARIES = ("torch", "pyro", "pyrodrop", "numpy", "builtins", "functools", "itertools", "math", "random")
_PLAIN = (type(None), bool, int, float, complex, str, bytes)  # that nothing changes in place
_CONTAINERS = (list, tuple, set, frozenset, dict, deque)
_ITEMS = 100  # of a container; of a longer one only the object is compared
_VISITED = 1000  # items of a container in which objects are looked for
_COPIED = 2**26  # bytes of the largest array, or tensor where operations are not intercepted, that is put back
_FLAGS = {*nn.Module().__dict__, "_flat_weights", "_flat_weight_refs"}  # the last two: recurrent layers' second list
TABLES = ("_parameters", "_buffers", "_modules")
HOOKS = tuple(
    name for name in nn.Module().__dict__ if name.endswith("_hooks") and ("forward" in name or "backward" in name)
)
_STATE = attrgetter("requires_grad", "_backward_hooks", "_post_accumulate_grad_hooks")  # of a parameter
_MODE = attrgetter("training")  # of a module: a compiled one has that of the module within
STAYS = "stays_in_training"  # attribute of a module whose mode does not change: a dropout of a network that was read
_PACKAGES = str(Path(torch.__file__).parents[1])
_ABSENT = object()
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_BATCH_NORMS = {torch.ops.aten.native_batch_norm.default, torch.ops.aten.cudnn_batch_norm.default}

Place = tuple[Any, str, str, Any]
"""Where code finds an object: a dictionary or an object, the key or attribute there, a name for messages, and the object."""


def mode_changes(module: nn.Module) -> bool:
    """Whether a module is in training mode and is not marked to stay in it (`STAYS`)."""
    return module.training and STAYS not in module.__dict__


class Flags:
    """The flags of some modules and parameters as they are now.

    Args:
        modules: modules by name, every submodule as an entry of its own.
        parameters: further parameters by name, such as those of Pyro's store.
    """

    def __init__(self, modules: Mapping[str, nn.Module], parameters: Mapping[str, Tensor] | None = None) -> None:
        entries = [
            (table, f"{at}.{name}" if at else name, value)
            for at, module in modules.items()
            for table in TABLES
            for name, value in getattr(module, table).items()
        ]
        named = [(name, value) for table, name, value in entries if table == "_parameters" and value is not None]
        once = {id(value): (name, value) for name, value in [*named, *(parameters or {}).items()]}
        self.parameters: dict[str, Tensor] = dict(once.values())
        self._values = [value for *_, value in entries]  # for their ids
        self._modules = list(modules.values())
        self._tables: list[dict[str, Any]] = [of.__dict__[table] for of in self._modules for table in TABLES]
        self._hooks = [of.__dict__[hooks] for of in self._modules for hooks in HOOKS]
        self._names: tuple[list[str], ...] = (
            [name for _, name, _ in entries],
            [f"requires_grad or a hook of {name}" for name in self.parameters],
            [],
            [f"training or evaluation mode of {name}" for name in modules],
        )
        self._before = self._now()
        self._before[1][:] = [
            (needed, *(None if of is None else dict(of) for of in hooks)) for needed, *hooks in self._before[1]
        ]

    def changed(self) -> str:
        """A description of the first change that is found, for a message; empty if nothing has changed."""
        now, others = self._now(), ("a parameter, buffer or submodule", "", "a hook of a module", "")
        for names, new, old, other in zip(self._names, now, self._before, others, strict=True):
            if new != old:
                return next((name for name, a, b in zip(names, new, old, strict=False) if a != b), other)
        return ""

    def _now(self) -> tuple[list[Any], ...]:
        objects = map(id, chain.from_iterable(map(dict.values, self._tables)))
        hooks = map(tuple, filter(None, self._hooks))
        return list(objects), list(map(_STATE, self.parameters.values())), list(hooks), list(map(_MODE, self._modules))


def has_hooks(parameter: Tensor) -> bool:
    """Whether a parameter has hooks, which a step calls with its gradient."""
    return any(_STATE(parameter)[1:])


class Contents:
    """What some programs are made of, as it is when this object is made.

    Args:
        programs: a model, or a model and a guide, or these and a loss and others; None is made of nothing.
        code: whether to read code. Otherwise, and for models and guides of this package, only modules are found, and in the
            modules of a network the attributes that a forward may change: numbers, strings, tensors, collections of these.

    Attributes:
        modules: every module once, with all submodules, by the path at which it is found, such as ``guide.encoder.0``.
        tensors: the other tensors, by name, such as a running mean in an attribute, and NumPy's arrays.
    """

    def __init__(self, *programs: Any, code: bool = True) -> None:
        self.modules: dict[str, nn.Module] = {}
        self.tensors: dict[str, Tensor] = {}
        self.objects: dict[int, Any] = {}  # by id; it keeps the objects, so that no other gets the same id
        self.places: list[Place] = []
        self.iterators: list[tuple[str, Any]] = []  # by name
        self.containers: list[tuple[Any, Any, str]] = []  # lists, sets and dictionaries, with a copy and a name
        self._attributes: list[tuple[dict[str, Any], dict[str, Any]]] = []  # those of objects, with a copy
        self._imported: set[tuple[int, str]] = set()  # modules, and the names in them
        self._packages = {
            (getattr(program, "__module__", None) or type(program).__module__).partition(".")[0] for program in programs
        }
        ours = (HasWeights, HasPosterior)  # models and guides of this package, or of a class that inherits from one
        self._code = code and not all(
            isinstance(one, LocalModule) and (isinstance(one, ours) or _of_library(type(one).__module__))
            for one in programs
        )
        for role, program in zip(["model", "guide", *map(str, range(2, len(programs)))], programs, strict=False):
            if self._code:
                self._visit(program, role, inner=True)
                continue
            modules = dict(program.named_modules(set(self.modules.values()), role))
            self.modules |= modules
            for name, module in modules.items():
                self._object(module, name)

    def _counts(self, name: str, value: Any) -> bool:
        """Whether an attribute is compared, and put back."""
        return self._code or (name not in _FLAGS and _is_plain(value))

    def changed(self) -> str:
        """The name of something that code names and that has changed; empty if nothing has."""
        for owner, key, name, value in self.places:
            now = owner.get(key, _ABSENT) if type(owner) is dict else _read(owner, key)
            if now is not value and not _same(now, value, self._code):
                return name
        for container, items, name in self.containers:
            if len(items) <= _ITEMS and not _same_items(container, items, self._code):
                return name
        for attributes, before in self._attributes:
            new = attributes.keys() - before.keys() if len(attributes) != len(before) else ()
            for name in new:
                if self._counts(name, attributes[name]):
                    return name
        return ""

    def restore(self) -> None:
        """Put back all objects where code finds them, and the items of containers."""
        for container, items, _ in self.containers:
            if list(map(id, _items(container))) != list(map(id, _items(items))):
                container.clear()
                (container.update if isinstance(container, dict | set) else container.extend)(items)
        for attributes, before in self._attributes:
            for name in attributes.keys() - before.keys():
                if self._counts(name, attributes[name]):
                    del attributes[name]
            if self._code:
                attributes.update(before)
        for owner, key, _, value in self.places:
            if value is not _ABSENT and _read(owner, key) is not value:
                if isinstance(owner, dict):
                    owner[key] = value
                else:
                    setattr(owner, key, value)

    def state(self) -> dict[str, Tensor]:
        """Every parameter and buffer of the modules once, by name, by reference."""
        once: dict[int, tuple[str, Tensor]] = {}
        for prefix, module in self.modules.items():
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                once.setdefault(id(tensor), (f"{prefix}.{name}", tensor))  # type: ignore[arg-type]
        return {name: tensor for name, tensor in once.values() if tensor is not None}

    def _visit(self, value: Any, path: str, *, inner: bool = False) -> None:
        """Note what an object is made of; `inner` also for objects of libraries."""
        if isinstance(value, type):
            self._class(value, path)
            return
        if id(value) in self.objects or isinstance(value, (*_PLAIN, ModuleType)):
            return
        self.objects[id(value)] = value
        if isinstance(value, Iterator):
            self.iterators.append((path.rpartition(".")[2], value))
        if isinstance(value, Tensor):
            self.tensors[_free(path, self.tensors)] = value
        elif isinstance(value, np.ndarray):
            if value.flags.writeable and value.flags.c_contiguous and value.dtype.kind in "bif" and value.itemsize <= 8:
                self.tensors[_free(path, self.tensors)] = torch.from_numpy(value)
        elif isinstance(value, nn.Module):
            modules = dict(value.named_modules(set(self.modules.values()), path))
            for name, module in modules.items():
                self.modules[_free(name, self.modules)] = self.objects[id(module)] = module
            for name, module in modules.items():
                self._object(module, name)
        elif isinstance(value, FunctionType):
            if not self._skips(value.__module__) or (inner and value.__module__.startswith("pyrodrop.")):
                self._function(value, path)
        elif isinstance(value, MethodType):
            self._visit(value.__self__, path, inner=inner)
            self._visit(value.__func__, path)
        elif isinstance(value, functools.partial):
            named = {"": value.func, **{str(number): item for number, item in enumerate(value.args)}, **value.keywords}
            for name, item in named.items():
                self._visit(item, f"{path}.{name}" if name else path, inner=True)
        elif isinstance(value, _CONTAINERS):
            if not isinstance(value, tuple | frozenset):
                self.containers.append((value, copy.copy(value), path.rpartition(".")[2]))
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in list(itertools.islice(items, _VISITED)):
                self._visit(item, f"{path}.{key}")
        elif inner or not _of_library(type(value).__module__):
            self._object(value, path)

    def _object(self, value: Any, path: str) -> None:
        """Note the attributes of an object and of its class."""
        attributes = getattr(value, "__dict__", {})
        # which keep what they have computed, in attributes with an underscore
        caches = isinstance(value, Transform) or (not self._code and isinstance(value, LocalModule))
        if not caches:
            self._attributes.append((attributes, dict(attributes)))
        for name, attribute in list(attributes.items()):
            if (caches and name.startswith("_")) or (isinstance(value, nn.Module) and name in _FLAGS):
                continue
            if self._counts(name, attribute) and not (_replaceable(attribute) and _of_library(type(value).__module__)):
                self._note(attributes, name, path)
        if not self._code:
            return
        for kind in type(value).__mro__:
            if not _of_library(kind.__module__):
                for name in [name for name, slot in vars(kind).items() if isinstance(slot, MemberDescriptorType)]:
                    self._note(value, name, path)
        self._class(type(value), path)

    def _class(self, kind: type, path: str) -> None:
        """Note the attributes of a class and of those that it inherits from."""
        for base in kind.__mro__:
            if id(base) in self.objects or self._skips(base.__module__):
                continue
            self.objects[id(base)] = base
            for name, value in list(vars(base).items()):
                if name == "__call__" or not name.startswith("__"):
                    self._note(base, name, path)
                    self._visit(getattr(value, "fget", None) or getattr(value, "__func__", None), path)

    def _function(self, function: FunctionType, path: str) -> None:
        names = _names(function.__code__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._named(cell, "cell_contents", name, names, path)
        for name in sorted(names & function.__globals__.keys()):
            self._named(function.__globals__, name, name, names, path)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._visit(value, f"{path}.a default of {function.__name__}")
        self._visit(getattr(function, "__wrapped__", None), path)

    def _named(self, owner: Any, key: str, name: str, names: AbstractSet[str], path: str) -> None:
        """Note what code names; of an imported module, the attributes that the code names."""
        value = _read(owner, key)
        if not isinstance(value, ModuleType):
            self._note(owner, key, path, name)
        elif not self._skips(value.__name__):
            for attribute in sorted(names & vars(value).keys()):
                if (id(value), attribute) not in self._imported:
                    self._imported.add((id(value), attribute))
                    self._named(vars(value), attribute, attribute, names, path)

    def _note(self, owner: Any, key: str, path: str, name: str = "") -> None:
        value = _read(owner, key)
        self.places.append((owner, key, name or key, value))
        self._visit(value, f"{path}.{name or key}")

    def _skips(self, module: str | None) -> bool:
        """Whether the code of a module is not read: Python's, a library's or that of another installed package."""
        top = (module or "builtins").partition(".")[0]
        if top in _LIBRARIES or top in self._packages:
            return top in _LIBRARIES
        file = getattr(sys.modules.get(module or ""), "__file__", None) or ""
        return top in sys.stdlib_module_names or file.startswith(_PACKAGES)


def modules_of(*programs: Any) -> dict[str, nn.Module]:
    """Every module of a model, or of a model and a guide, once, by name."""
    return Contents(*programs).modules


def places_of(*programs: Any) -> dict[str, list[tuple[nn.Module, str]]]:
    """Every buffer by name, with the modules that have it, each with the buffer's name there."""
    places: dict[int, tuple[str, list[tuple[nn.Module, str]]]] = {}
    for prefix, module in modules_of(*programs).items():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                places.setdefault(id(buffer), (f"{prefix}.{name}", []))[1].append((module, name))
    return dict(places.values())


def tensors_of(*programs: Any) -> dict[str, Tensor]:
    """Every parameter and buffer of modules once, by name, by reference."""
    return Contents(*programs).state()


@contextmanager
def evaluating(*programs: Any) -> Iterator[None]:
    """Put all modules of programs in evaluation mode within the block, and restore the mode of each afterwards.

    Modules that are in evaluation mode already are not written to, so threads may share a trained model. The dropouts of a
    network from `pyrodrop.read` keep their mode (`STAYS`).
    """
    training = [module for module in modules_of(*programs).values() if mode_changes(module)]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


class Kept:
    """The parameters and buffers of programs, and their parameters in Pyro's store, as they are now."""

    def __init__(self, *programs: Any) -> None:
        tensors = tensors_of(*programs)
        store, of_modules = pyro.get_param_store().get_state(), set(map(id, tensors.values()))
        self._tensors = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        others = {name: value for name, value in store["params"].items() if id(value) not in of_modules}
        self._params = {name: value.detach().clone() for name, value in others.items()}
        self._constraints = store["constraints"]

    @contextmanager
    def put_in(self, *programs: Any) -> Iterator[None]:
        """Have the programs compute with these values within the block, whatever has been trained or set since.

        Raises:
            RuntimeError: a parameter or buffer of the programs is missing or has another shape.
        """
        tensors = tensors_of(*programs)
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        wrong = [name for name, value in self._tensors.items() if shapes.get(name) != value.shape]
        if wrong:
            raise RuntimeError(
                f"{wrong[0]} of this fit's program has been replaced by one of another shape, or removed: the fit has no "
                "network to put its values into; make the change in a copy, copy.deepcopy((model, guide))"
            )
        params = {name: value.clone().requires_grad_() for name, value in self._params.items()}
        store = pyro.get_param_store().scope({"params": params, "constraints": dict(self._constraints)})
        with store, put_back(*programs, all_writes=False) as look:
            with torch.no_grad():
                for name, value in self._tensors.items():
                    if not torch.equal(tensors[name], value):
                        look.writes.keep(tensors[name])
                        tensors[name].copy_(value)
            yield


class Look:
    """What some programs are made of (`Contents`), with its values, as they are now; what calls have changed since.

    Args:
        programs, code: as of `Contents`. Without `code`, random generators are left as they are.
        all_writes: whether operations of the calls are intercepted, so that no tensors need to be copied before.

    Attributes:
        moved: the buffers that have changed, each as its module and its name there; known after `note`, as the following.
        changes: what else has changed that the next call may read, as text; empty if there is nothing.
        replaced: names of the parameters of Pyro's store that have been replaced.
    """

    def __init__(self, *programs: Any, code: bool = True, all_writes: bool = False) -> None:
        self.moved: list[tuple[nn.Module, str]] = []
        self.changes: str = ""
        self.replaced: list[str] = []
        self._programs, self._code = programs, code
        self._contents = contents = Contents(*programs, code=code)
        self._store, self.writes = StoreAsItIs(), _Writes()
        self._buffers = [
            (module, name, value, value.detach().clone(), value._version)
            for module in contents.modules.values()
            for name, value in module._buffers.items()
            if value is not None
        ]
        for tensor in contents.tensors.values():
            of_numpy = id(tensor) not in contents.objects
            small = bool(_address(tensor)) and tensor.untyped_storage().nbytes() <= _COPIED
            if small and (of_numpy or not all_writes):
                self.writes.keep(tensor)
        sources = [value for value in contents.objects.values() if isinstance(value, _GENERATORS)]
        states = [(source, *_state(source)) for source in (random, np.random, *sources) if code]
        self._generators = [(source, get, put, pickle.dumps(get())) for source, get, put in states]
        for name, value in contents.iterators:
            if not hasattr(value, "__dict__") or _of_library(type(value).__module__):  # its position is in no attribute
                raise ValueError(
                    f"the program takes items from the iterator {name!r}, a {type(value).__name__}, which cannot be put "
                    "back after calls: pass the items as arguments, or keep a list of them and a counter"
                )

    def note(self) -> None:
        """Note what has changed."""
        self.moved = [(module, name) for module, name in self.moves() if module._buffers[name] is not None]
        self.replaced = self._store.replaced()
        names = {id(value): name for _, _, name, value in self._contents.places}
        moved = [source for source, get, _, state in self._generators[2:] if pickle.dumps(get()) != state]
        if name := self.changed() or next((names.get(id(source), "a random generator") for source in moved), ""):
            self.changes = f"a call changes {name}"

    def moves(self) -> list[tuple[nn.Module, str]]:
        """The buffers that have been replaced or written to, also without a new version, as batch norm does."""
        return [
            (module, name)
            for module, name, value, old, version in self._buffers
            if module._buffers[name] is not value or value._version != version or not torch.equal(value, old)
        ]

    def changed(self) -> str:
        """The name of something other than parameters and buffers that has changed; empty if nothing has."""
        if name := self._contents.changed():
            return name
        written = self.writes.changed() - set(map(_address, self._contents.state().values()))
        names = [name for name, tensor in self._contents.tensors.items() if _address(tensor) in written]
        return names[0].rpartition(".")[2] if names else ""

    def forget(self, names: Sequence[str]) -> None:
        """Delete parameters from Pyro's store for good."""
        for name in names:
            forget_in_store(name)
            self._store.before.pop(name, None)

    def undo(self) -> None:
        """Put everything back."""
        self.writes.undo()
        self._store.restore()
        for *_, put, state in self._generators:
            put(pickle.loads(state))
        if Contents(*self._programs, code=self._code).modules.keys() <= self._contents.modules.keys():
            with torch.no_grad():
                for module, name, value, old, _ in self._buffers:
                    module._buffers[name] = value
                    if not torch.equal(value, old):
                        value.copy_(old)
            self._contents.restore()


@contextmanager
def undisturbed(network: nn.Module) -> Iterator[None]:
    """Restore buffers and Python attributes of the modules of a network after the block."""
    before = Look(network, code=False)
    try:
        yield
    finally:
        before.undo()


@contextmanager
def put_back(*programs: Any, all_writes: bool = True) -> Iterator[Look]:
    """Undo the side effects of the block, in which these programs are called.

    Put back are what the programs are made of (`Contents`), buffers and attributes of modules, all tensors that are written
    to in place, small arrays, the programs' random generators and those of Python and NumPy, and parameters of Pyro's store
    that are replaced. A program that makes modules in the block, as at a first call, keeps these and its other objects.

    Args:
        all_writes: whether to put back all tensors that are written to, for which every operation is intercepted; or only
            the programs' own of at most 64 MiB, of which copies are made.

    Raises:
        ValueError: the program takes items from an iterator.
    """
    look = Look(*programs, all_writes=all_writes)
    try:
        with intercepted(look.writes.call) if all_writes else nullcontext():
            yield look
        look.note()
    finally:
        look.undo()


class _Writes:
    """Copies every tensor from before the block when an operation first writes to it."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}
        self._made: set[int] = set()  # memory that operations of the block have made

    def keep(self, tensor: Tensor) -> None:
        """Copy a tensor, unless that was done before."""
        memory = _address(tensor)
        if memory and memory not in self._copies:  # all of the memory that it is a view of
            size = tensor.untyped_storage().nbytes() // tensor.itemsize
            whole = tensor.detach().as_strided((size,), (1,), 0)
            self._copies[memory] = whole, whole.clone()

    def call(self, operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Make an operation."""
        for tensor in written(operation, args, kwargs):
            if isinstance(tensor, Tensor) and _address(tensor) not in self._made:
                self.keep(tensor)
        result = operation(*args, **kwargs)
        taken = {_address(tensor) for tensor in tensors_in((args, kwargs))}
        self._made |= {memory for tensor in tensors_in(result) if (memory := _address(tensor)) not in taken}
        return result

    def changed(self) -> set[int]:
        """The addresses of memory with other values than before."""
        return {memory for memory, (tensor, values) in self._copies.items() if not torch.equal(tensor, values)}

    def undo(self) -> None:
        """Restore the values of these tensors."""
        for tensor, values in self._copies.values():
            with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                if not torch.equal(tensor, values):
                    tensor.copy_(values)


def written(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments that an operation of PyTorch writes to."""
    if operation in _BATCH_NORMS:  # they write to running statistics, which their signatures do not say
        return list(args[3:5]) if args[5] else []  # in training mode
    places = _written_places(operation)
    values = [args[n] if n < len(args) else kwargs[name] for n, name in places if n < len(args) or name in kwargs]
    return [one for value in values for one in (value if isinstance(value, tuple | list) else [value])]


@functools.cache
def _written_places(operation: Any) -> list[tuple[int, str]]:
    """The positions and names of the arguments that an operation writes to according to its signature."""
    arguments = enumerate(arguments_of(operation))
    return [(n, a.name) for n, a in arguments if a.alias_info is not None and a.alias_info.is_write]


def _address(tensor: Tensor) -> int:
    """The address of a tensor's memory; 0 for layouts other than strided, and for lazy weights, which have no memory."""
    try:
        return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0
    except RuntimeError:  # the only way to know
        return 0


def _state(source: Any) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    """Functions that read and set the state of a random generator of torch, NumPy or Python."""
    if isinstance(source, np.random.Generator):
        bits = source.bit_generator
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    return (source.getstate, source.setstate) if hasattr(source, "getstate") else (source.get_state, source.set_state)


def _free(path: str, names: Mapping[str, Any]) -> str:
    """A name that is not taken."""
    names_of = (f"{path} ({number})" if number > 1 else path for number in itertools.count(1))
    return next(name for name in names_of if name not in names)


def _items(container: Any) -> list[Any]:
    return [*container, *container.values()] if isinstance(container, dict) else list(container)


def _same_items(container: Any, items: Any, code: bool) -> bool:
    """Whether a container has these items: numbers and strings of the same value, and otherwise the same objects."""
    with suppress(Exception):  # whatever the items' comparison raises, as of tensors
        if container == items:
            return True
    if isinstance(container, set | frozenset) or len(container) != len(items):
        return False
    pairs = zip(_items(container), _items(items), strict=True)
    return all(_same(one, other, code) or (_replaceable(one) and type(one) is type(other)) for one, other in pairs)


def _same(one: Any, other: Any, code: bool) -> bool:
    """Whether this is the same object, or a number, string or container of the same value; without `code` also a tensor."""
    if one is other or type(one) is not type(other):
        return one is other
    if isinstance(one, _CONTAINERS):
        return _same_items(one, other, code)
    if isinstance(one, Tensor):
        return not code and one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
    return isinstance(one, _PLAIN) and (one == other or one != one)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple | set | frozenset):
        return all(_is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(_is_plain(item) for pair in value.items() for item in pair)
    return isinstance(value, (*_PLAIN, Tensor))


def _of_library(module: str | None) -> bool:
    return (module or "builtins").partition(".")[0] in _LIBRARIES


def _names(code: CodeType) -> set[str]:
    """The global names and attributes that a function's code, and that of the functions in it, mentions."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _read(owner: Any, key: str) -> Any:
    """What is at a place: an entry of a dictionary, or an attribute, such as the value of a variable in a closure."""
    if isinstance(owner, dict | type):
        return (owner if isinstance(owner, dict) else vars(owner)).get(key, _ABSENT)
    try:
        return getattr(owner, key, _ABSENT)
    except ValueError:  # a variable without a value
        return _ABSENT


def _replaceable(value: Any) -> bool:
    """Whether this is an object that a library may replace by an equal one at every call, as autoguides replace plates."""
    kept = (*_PLAIN, *_CONTAINERS, Tensor, nn.Module, FunctionType, MethodType, functools.partial)
    return not isinstance(value, kept) and _of_library(type(value).__module__)
