"""Model and guide in saved results. A model or guide that a file is read into is compared with the file before it changes.

    tensors   model.NAME, guide.NAME                                       their states
    header    {"settings": {...}, "made_with": {"model": {...}, ...}}      settings of the run; their classes and arguments

`Fit.save`, `Replicates.save` and `Sampled.save` add the losses, or the draws and their statistics.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import pyrodrop.guides
import pyrodrop.models  # noqa: F401  files name their classes
from pyrodrop.data.columns import Columns
from pyrodrop.devices import made_on, seeded
from pyrodrop.files import under
from pyrodrop.identity import check_made_of
from pyrodrop.likelihoods import Likelihood
from pyrodrop.models.network import NetworkModel
from pyrodrop.modules import check_assignable
from pyrodrop.parts import made, made_with
from pyrodrop.scaling import Standardize


def contents_of(parts: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of a result with these parts (``model`` and usually ``guide``) and settings of the run."""
    tensors = {
        f"{part}.{name}": value
        for part, module in _modules(parts).items()
        for name, value in module.state_dict().items()
    }
    return tensors, {"settings": settings, "made_with": made_with(parts)}


class StoredParts:
    """Model and guide of a file. Call `check`, then `restore`.

    Args:
        tensors, header: `contents_of` the result.
        parts: the objects to read the states into, by name, the model first; None to create one as the file describes it.
        where: the file, in messages.

    Attributes:
        parts: all parts, including those created from the file.
        modules: the parts that are modules.
        states: their tensors in the file, by part.

    Raises:
        ValueError: a part is None and the file does not describe it; the file is damaged.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        header: Mapping[str, Any],
        parts: Mapping[str, Any],
        where: str,
    ) -> None:
        self.where: str = where
        self.states: dict[str, dict[str, Tensor]] = {part: under(f"{part}.", tensors) for part in parts}
        self._dtype: torch.dtype | None = None
        self._made_with: Any = header.get("made_with")
        settings = header["settings"]
        self._columns = Columns.of_words(settings["columns"], where) if "columns" in settings else None
        self.parts: dict[str, Any] = self._all(parts) if any(part is None for part in parts.values()) else dict(parts)
        self.modules: dict[str, nn.Module] = _modules(self.parts)

    def convert(self, dtype: torch.dtype) -> None:
        """Convert the states to this dtype. `restore` then converts the parts, too."""
        self._dtype = dtype
        for state in self.states.values():
            state |= {name: value.to(dtype) for name, value in state.items() if value.is_floating_point()}

    def check(self, allow: Collection[str] = ()) -> None:
        """Raise a ValueError unless all parts are made as the file describes and their states can be restored.

        Args:
            allow: names of parts that may have other classes or arguments, as long as their states can be restored.
        """
        for name, module in self.modules.items():
            converted = module if self._dtype is None else copy.deepcopy(module).to(self._dtype)
            check_assignable(converted, self.states[name], f"the {name} in {self.where}")
            _check_scales(module, self.states[name], f"{self.where} is damaged: {name}")
        check_made_of(self._made_with, self.parts, self.where, allow)

    def restore(self, device: torch.device | None = None) -> None:
        """Copy the states into the parts, on this device, in evaluation mode."""
        for name, module in self.modules.items():
            module.to(dtype=self._dtype).load_state_dict(self.states[name])
            module.to(device=device).eval()
        if isinstance(self.parts["model"], NetworkModel):
            self.parts["model"].columns = self._columns

    def _all(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """The parts; those that are None are created as the file describes them."""
        if self._made_with is None:
            raise ValueError(
                f"{self.where} was written by an older version of pyrodrop and does not say how its {' and '.join(parts)} "
                "are made: make them as for the training, and pass them"
            )
        complete: dict[str, Any] = {}
        with seeded(0, torch.device("cpu")):
            # shapes are checked before they take memory
            for meta in (True, False) if parts["model"] is None else (False,):
                complete = dict(parts)
                for name in (name for name, part in parts.items() if part is None):
                    complete[name] = self._made(name, complete["model"], of_file=parts["model"] is None, meta=meta)
        return complete

    def _made(self, name: str, model: Any, *, of_file: bool, meta: bool) -> Any:
        """Create one part as the file describes it; `of_file` says whether the model is also created from the file."""
        dtypes = {value.dtype for value in self.states[name].values() if value.is_floating_point()}
        try:
            if self._made_with[name].get("arguments", {}).get("members", 0) > len(self.states[name]):
                raise ValueError("it would have more members than the file has tensors")
            with made_on(torch.device("meta" if meta else "cpu")):
                part = made(self._made_with[name], model)
            part.to(dtypes.pop() if len(dtypes) == 1 else None)
            check_assignable(part, self.states[name], f"the {name}")
        except NotImplementedError as error:
            raise ValueError(
                f"{self.where} does not have all that its {name} is made of, since {error}: make it as for the training, "
                f"and pass it as {name}"
            ) from None
        except Exception as error:  # whatever such data make the class raise
            fault = "is damaged" if of_file else "is of another model, or damaged"
            raise ValueError(f"{self.where} {fault}: no {name} can be made of it: {error}") from error
        return part


def _check_scales(module: nn.Module, state: Mapping[str, Tensor], where: str) -> None:
    """Raise a ValueError for standardisations and likelihoods that would get a scale of 0, or one that is negative or not
    finite."""
    for path, child in module.named_modules():
        if isinstance(child, Standardize | Likelihood):
            loaded = copy.deepcopy(child)
            loaded.load_state_dict(under(f"{path}.", state))
            for name in loaded.scales:
                value = getattr(loaded, name, None)  # None where it is an output of the network
                if value is not None and not bool((value.isfinite() & (value > 0)).all()):
                    raise ValueError(f"{where}.{path}.{name} must be positive and finite")
            if isinstance(loaded, Standardize) and not bool(loaded.loc.isfinite().all()):
                raise ValueError(f"{where}.{path}.loc must be finite")


def _modules(parts: Mapping[str, Any]) -> dict[str, nn.Module]:
    return {name: part for name, part in parts.items() if isinstance(part, nn.Module)}
