"""What a recorded step takes for granted of modules beside the values of tensors.

Their parameters, buffers and submodules as objects, `requires_grad`, hooks, and training or evaluation mode.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

TABLES = ("_parameters", "_buffers", "_modules")
HOOKS = tuple(
    name for name in nn.Module().__dict__ if name.endswith("_hooks") and ("forward" in name or "backward" in name)
)


class Flags:
    """The flags of some modules and parameters as they are now.

    Args:
        modules: by name, with all their submodules.
        parameters: by name, further ones, such as those of Pyro's store.
        modes: whether training and evaluation mode count.
    """

    def __init__(
        self, modules: Mapping[str, nn.Module], parameters: Mapping[str, Tensor] | None = None, *, modes: bool = True
    ) -> None:
        self._modules = dict(modules)
        self._tables = [getattr(module, table) for module in modules.values() for table in TABLES]
        self._values = [value for table in self._tables for value in table.values()]  # which also keeps their ids
        self._ids = list(map(id, self._values))
        own = {_name(at, name): p for at, module in modules.items() for name, p in module._parameters.items()}
        found = {**own, **(parameters or {})}
        self.parameters: dict[str, Tensor] = {name: p for name, p in found.items() if p is not None}
        self._learned = [parameter.requires_grad for parameter in self.parameters.values()]
        self._pulled = [has_hooks(parameter) for parameter in self.parameters.values()]
        self._hooks = [getattr(module, hooks) for module in modules.values() for hooks in HOOKS]
        self._hooked = [tuple(hooks) for hooks in self._hooks] if any(self._hooks) else None
        self._modes = [module.training for module in modules.values()] if modes else None

    def changed(self) -> str:
        """What is no longer as it was, in words for a message; empty if nothing is."""
        if [id(value) for table in self._tables for value in table.values()] != self._ids:
            return self._replaced()
        if [parameter.requires_grad for parameter in self.parameters.values()] != self._learned:
            pairs = zip(self.parameters.items(), self._learned, strict=True)
            return f"requires_grad of {next(name for (name, p), learned in pairs if p.requires_grad != learned)}"
        if [has_hooks(parameter) for parameter in self.parameters.values()] != self._pulled:
            return "a hook of a parameter"
        if any(self._hooks) if self._hooked is None else [tuple(hooks) for hooks in self._hooks] != self._hooked:
            return "a hook of a module"
        if self._modes is not None and [module.training for module in self._modules.values()] != self._modes:
            modes = zip(self._modules.items(), self._modes, strict=True)
            return f"training or evaluation mode of {next(name for (name, own), mode in modes if own.training != mode)}"
        return ""

    def _replaced(self) -> str:
        """Which parameter, buffer or submodule is another object."""
        before = iter(self._values)
        for at, module in self._modules.items():
            for table in TABLES:
                for name, value in getattr(module, table).items():
                    if value is not next(before, None):
                        return _name(at, name)
        return "a parameter, buffer or submodule"


def has_hooks(parameter: Tensor) -> bool:
    """Whether a parameter has hooks, which a step calls with its gradient."""
    return bool(parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None))


def _name(module: str, parameter: str) -> str:
    return f"{module}.{parameter}" if module else parameter
