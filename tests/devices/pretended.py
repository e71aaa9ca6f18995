"""A device that this machine does not have, for programs that were never run on a GPU.

    register()
    x = torch.randn(3, device="pretend")
    x + torch.randn(3)                      # raises RuntimeError, as on a GPU: tensors on two devices

PyTorch has a dispatch key, PrivateUse1, for devices that it does not know. Here its kernels are those of the CPU, on its
memory, so values, gradients and random numbers are real, and the same as on the CPU. PyTorch itself does the rest:
`Tensor.device`, factories, `Module.to` and autograd. An operation on tensors of both devices raises where CUDA's would: for
elementwise operations a tensor of the CPU without dimensions is a number, and indices may be on the CPU.

For one process: registering cannot be taken back.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "pretend"
DEVICE = torch.device("cpu")  # until it is registered
_aten = torch.ops.aten
_CPU_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_COPIES = {_aten._copy_from.default, _aten._copy_from_and_resize.default}
_BY_INDICES = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
_TAKES_NUMBERS = {"aten::fill", "aten::fill_", "aten::masked_fill", "aten::masked_fill_", *_BY_INDICES}
_kept: list[Any] = []  # libraries unregister when they are collected


class Generator(torch.Generator):
    """A generator of the CPU that says that it is the device's."""

    def __new__(cls, device: Any = "cpu") -> Generator:
        made: Generator = super().__new__(cls, "cpu")
        made.pretends = torch.device(device).type == NAME
        return made

    def __init__(self, device: Any = "cpu") -> None:
        """As `torch.Generator`."""

    @property
    def device(self) -> torch.device:
        return DEVICE if self.pretends else torch.device("cpu")


class _Device(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


def register() -> None:
    """Make ``torch.device("pretend")`` a device of this process."""
    global DEVICE
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Device())
    DEVICE = torch.device(NAME, 0)
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(_kernel, "PrivateUse1")
    convolutions = torch.library.Library("aten", "IMPL")
    ours = {"convolution_overrideable": _aten.convolution, "convolution_backward_overrideable": _convolution_backward}
    for name, cpus in ours.items():
        convolutions.impl(name, _with(cpus), "PrivateUse1")
    _kept.extend((everything, convolutions))
    torch.Generator = Generator  # type: ignore[misc]
    torch.Tensor.is_cuda = property(lambda tensor: tensor.device.type in (NAME, "cuda"))  # type: ignore[assignment]
    _device_constructors()  # PyTorch notes the functions that make tensors, before they are replaced
    torch.tensor, torch.as_tensor = _of_numbers(torch.tensor), _of_numbers(torch.as_tensor)
    torch.UntypedStorage.clone = _clone(torch.UntypedStorage.clone)  # type: ignore[method-assign]
    fork = torch.random.fork_rng
    torch.random.fork_rng = lambda devices=None, *args, **kwargs: fork(_without(devices), *args, **kwargs)


def _without(devices: Any) -> Any:
    """The devices that have generators of their own; the pretended one draws from the CPU's."""
    return devices if devices is None else [each for each in devices if torch.device(each).type != NAME]


def _of_numbers(usual: Any) -> Any:
    """`torch.tensor` moves numbers to the device where a dispatch mode is on and kernels in Python are not found."""

    def make(data: Any, *, device: Any = None, **kwargs: Any) -> Tensor:
        device = torch.empty(0).device if device is None and not isinstance(data, Tensor) else device
        if isinstance(data, Tensor) or torch.device(device).type != NAME:
            return usual(data, device=device, **kwargs)  # type: ignore[no-any-return]
        with _disable_current_modes():
            moved = usual(data, device="cpu", **kwargs).to(device)
        return _aten.lift_fresh(moved)  # type: ignore[no-any-return]

    return make


def _clone(usual: Any) -> Any:
    """Storages have no kernels; a copy of a module clones them."""
    return lambda storage: _front(storage.behind.clone()) if hasattr(storage, "behind") else usual(storage)


def _with(operation: Any) -> Any:
    return lambda *args, **kwargs: _kernel(operation, *args, **kwargs)


def _convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, *args: Any) -> Any:
    *options, mask = args
    return _aten.convolution_backward(grad, x, weight, [weight.shape[1 if options[3] else 0]], *options, mask)


def _kernel(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Any operation on tensors of the device: the CPU's, on the same memory, also where another device is the default."""
    with torch.device("cpu"):
        return _by_the_cpu(operation, *args, **kwargs)


def _by_the_cpu(operation: Any, *args: Any, **kwargs: Any) -> Any:
    _check(operation, args, kwargs)
    cpus: dict[int, tuple[Tensor, Tensor]] = {}

    def lowered(tensor: Tensor) -> Tensor:
        if tensor.device.type != NAME:
            return tensor
        cpu = _on_the_cpu(tensor)
        cpus[id(cpu)] = cpu, tensor
        return cpu

    below, named = _over(Tensor, lowered, (args, kwargs))
    below = _over(torch.UntypedStorage, lambda storage: getattr(storage, "behind", storage), below)
    if getattr(named.get("device"), "type", None) == NAME:
        named["device"] = torch.device("cpu")
    if operation in _COPIES:
        below[1].copy_(below[0])
        return args[1]
    result = (operation.overloadpacket if _has_numbers(operation, below) else operation)(*below, **named)
    for cpu, tensor in cpus.values():  # an operation in place, or with out=, may change the shape
        if _layout(cpu) != _layout(tensor):
            _place(tensor, cpu)
    return _over(Tensor, lambda out: cpus[id(out)][1] if id(out) in cpus else _on_the_device(out), result)


def _over(kind: type, function: Callable[[Any], Any], value: Any) -> Any:
    """The function's results in place of what is of this kind, in lists, tuples and dicts."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, list | tuple):
        return type(value)([_over(kind, function, each) for each in value])
    return {name: _over(kind, function, each) for name, each in value.items()} if isinstance(value, dict) else value


def _has_numbers(operation: Any, args: Any) -> bool:
    """Whether a number arrives in place of a tensor, as those do that PyTorch has wrapped: another overload takes them."""
    schema = getattr(operation, "_schema", None)
    if schema is None or not any(type(value) in (bool, int, float, complex) for value in args):
        return False
    numbers = ((value, argument) for value, argument in zip(args, schema.arguments, strict=False))
    return any(type(value) in (bool, int, float, complex) and str(each.type) == "Tensor" for value, each in numbers)


def _check(operation: Any, args: Any, kwargs: Any) -> None:
    name = getattr(getattr(operation, "_schema", None), "name", str(operation))
    if operation in _COPIES:
        return
    counted = (args[0], *args[2:]) if name in _BY_INDICES else args
    tensors: list[Tensor] = []
    generators: list[torch.Generator] = []
    _over(Tensor, tensors.append, (counted, kwargs))
    _over(torch.Generator, generators.append, (args, kwargs))
    numbers = torch.Tag.pointwise in getattr(operation, "tags", ()) or name in _TAKES_NUMBERS
    if any((tensor.dim() or not numbers) and tensor.device.type == "cpu" for tensor in tensors):
        where = ", ".join(f"{tuple(tensor.shape)} on {tensor.device}" for tensor in tensors)
        raise RuntimeError(f"{name}: tensors on two devices: {where}")
    if any(not getattr(generator, "pretends", False) for generator in generators):
        raise RuntimeError(f"{name}: a generator of the CPU for a tensor on {NAME}")


def _on_the_cpu(tensor: Tensor) -> Tensor:
    """A tensor of the CPU with this one's memory."""
    cpu = torch.empty(0, dtype=tensor.dtype)
    cpu.set_(tensor.untyped_storage().behind, tensor.storage_offset(), tensor.size(), tensor.stride())  # type: ignore[call-overload]
    return torch._conj(cpu) if tensor.is_conj() else cpu


def _on_the_device(cpu: Tensor) -> Tensor:
    """A tensor of the device with this one's memory; tensors that share memory there share it here."""
    tensor = torch._C._acc.create_empty_tensor([0], cpu.dtype)
    _place(tensor, cpu)
    return tensor


def _place(tensor: Tensor, cpu: Tensor) -> None:
    setting = _aten.set_.source_Storage_storage_offset
    setting.redispatch(_CPU_KEY, tensor, _front(cpu.untyped_storage()), cpu.storage_offset(), cpu.size(), cpu.stride())


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    memory = tensor.untyped_storage()
    return tensor.size(), tensor.stride(), tensor.storage_offset(), memory.data_ptr(), memory.nbytes()


def _front(behind: Any) -> Any:
    """The device's storage in front of one of the CPU."""
    front = getattr(behind, "front", lambda: None)()
    if front is None or front.nbytes() != behind.nbytes():
        front = torch._C._construct_storage_from_data_pointer(behind.data_ptr(), DEVICE, behind.nbytes())
        front.behind, behind.front = behind, weakref.ref(front)
    return front


def pytest_configure() -> None:
    """As a plugin, ``-p tests.devices.pretended``: the package may compute there, and ``"cuda"`` means this device."""
    register()
    import pyrodrop.devices

    usual = pyrodrop.devices.resolve

    def resolve(device: Any) -> torch.device:
        return torch.device(NAME) if str(device).startswith((NAME, "cuda")) else usual(device)

    for module in [*sys.modules.values()]:
        if getattr(module, "resolve", None) is usual:
            module.resolve = resolve  # type: ignore[attr-defined]
