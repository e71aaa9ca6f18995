"""Files of results: tensors, and what they were made with. All of a file is checked before a model or guide changes.

    tensors   model.NAME, guide.NAME       their states; of a fit also history, of draws samples.NAME and stats.NAME
    header    kind, settings of the run, and the classes and arguments of model and guide:

        {"kind": "fit", "settings": {...}, "made_with": {"model": {...}, "guide": {...}}}

The header of replicates has such a description of every fit as ``fits``, and tensors are then called ``0.model.NAME``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import pyrodrop.guides
import pyrodrop.models  # noqa: F401  files name their classes
from pyrodrop.checks import HasRows
from pyrodrop.data.columns import Columns
from pyrodrop.devices import made_on, seeded
from pyrodrop.failed import Failed
from pyrodrop.files import Record, read_tensors, under, write_tensors
from pyrodrop.models.network import NetworkModel
from pyrodrop.modules import check_assignable
from pyrodrop.parts import differences, in_words, made, made_of, made_with, refuse

_CLASSES = {"fit": "Fit", "replicates": "Replicates", "sampled": "Sampled"}  # by kind; each has save and load


@dataclass(frozen=True)
class Stored:
    """Tensors of a result and a description of what they were made with, for a file or from one.

    Attributes:
        tensors: by name.
        about: the description, plain data.
        where: the file, in messages.
    """

    tensors: dict[str, Tensor]
    about: Mapping[str, Any]
    where: str = ""

    @classmethod
    def of(cls, parts: Mapping[str, Any], settings: Mapping[str, Any]) -> Stored:
        """The states of a model and usually a guide, by name, with the settings of their run."""
        states = {name: module.state_dict() for name, module in _modules(parts).items()}
        tensors = {f"{part}.{name}": value for part, state in states.items() for name, value in state.items()}
        return cls(tensors, {"settings": settings, "made_with": made_with(parts)})

    def write(self, path: str | Path, **about: Any) -> Path:
        """Write a file, whole or not at all; `about` comes first in its header. Raises an OSError that names it."""
        write_tensors(Path(path), self.tensors, {**about, **self.about})
        return Path(path)

    @classmethod
    def read(cls, path: str | Path, kind: str | None = None) -> Stored:
        """Read a file.

        Raises:
            ValueError: it is of another kind, or as `read_tensors`.
            OSError: it cannot be read; the message names it.
        """
        stored = cls(*read_tensors(Path(path)), str(path))
        if kind is not None:
            stored.check_kind(kind)
        return stored

    def check_kind(self, kind: str) -> None:
        """Raise a ValueError unless the file is of this kind; the message says what reads it."""
        other = self.about.get("kind")
        if other != kind:
            reader = f": {_CLASSES[other]}.load reads it" if isinstance(other, str) and other in _CLASSES else ""
            raise ValueError(f"{self.where} is no file of {_CLASSES[kind]}.save: it is one of {other!r}{reader}")

    @property
    def record(self) -> Record:
        """The description, whose entries are checked."""
        return Record(self.where, self.about)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the run; a ValueError if entries that predictions depend on are of another kind."""
        settings = self.record.record("settings")
        settings.number("likelihood_power", optional=True)
        if settings.content.get("noise_by_row"):
            settings.texts("noise_by_row")
        settings.text("data_fingerprint", optional=True)
        return dict(settings.content)

    def into(
        self, parts: Mapping[str, Any], dtype: torch.dtype | None = None
    ) -> tuple[dict[str, Any], Callable[..., None]]:
        """Check model and guide against the file.

        Args:
            parts: the objects to read the states into, by name, the model first; None to create one as the file says.
            dtype: to convert the states and the parts to.

        Returns:
            All parts, and a function ``restore(device=None)``, which copies the states into them and leaves them in
            evaluation mode on the device. Parts that were passed do not change before.

        Raises:
            ValueError: a part differs from the file's; or it is None and the file does not describe it; or the file is
                damaged.
        """
        tensors = {n: v.to(dtype) if dtype and v.is_floating_point() else v for n, v in self.tensors.items()}
        states = {name: under(f"{name}.", tensors) for name in parts}
        columns = Columns.of_words(self.settings["columns"], self.where) if "columns" in self.settings else None
        complete = self._complete(parts, states) if any(part is None for part in parts.values()) else dict(parts)
        modules = _modules(complete)
        for name, module in modules.items():
            converted = module if dtype is None else copy.deepcopy(module).to(dtype)
            check_assignable(converted, states[name], f"the {name} in {self.where}")
        self._check_made_with(complete)

        def restore(device: torch.device | None = None) -> None:
            for name, module in modules.items():
                module.to(dtype=dtype).load_state_dict(states[name])
                module.to(device=device).eval()
            if isinstance(complete["model"], NetworkModel):
                complete["model"].columns = columns

        return complete, restore

    def _complete(self, parts: Mapping[str, Any], states: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Any]:
        """The parts; those that are None are created as the file describes them."""
        if self.about.get("made_with") is None:
            raise ValueError(
                f"{self.where} was written by an older version of pyrodrop and does not say how its {' and '.join(parts)} "
                "are made: make them as for the training, and pass them"
            )
        complete: dict[str, Any] = {}
        of_file = parts["model"] is None
        with seeded(0, torch.device("cpu")):
            for device in ("meta", "cpu") if of_file else ("cpu",):  # shapes are checked before they take memory
                complete = dict(parts)
                for name in (name for name, part in parts.items() if part is None):
                    with made_on(torch.device(device)):
                        complete[name] = self._made(name, complete["model"], states[name], of_file)
        return complete

    def _made(self, name: str, model: Any, state: Mapping[str, Tensor], of_file: bool) -> Any:
        """Create one part as the file describes it; `of_file` says whether the model is also created from the file."""
        dtypes = {value.dtype for value in state.values() if value.is_floating_point()}
        try:
            data = self.about["made_with"][name]
            if data.get("arguments", {}).get("members", 0) > len(state):
                raise ValueError("it would have more members than the file has tensors")
            part = made(data, model)
            if not isinstance(part, HasRows):  # which has the dtype of its model, and may have data of another
                part.to(dtypes.pop() if len(dtypes) == 1 else None)
            check_assignable(part, state, f"the {name}")
        except NotImplementedError as error:
            raise ValueError(
                f"{self.where} does not have all that its {name} is made of, since {error}: make it as for the training, "
                f"and pass it as {name}"
            ) from None
        except Exception as error:  # whatever such data make the class raise
            fault = "is damaged" if of_file else "is of another model, or damaged"
            raise ValueError(f"{self.where} {fault}: no {name} can be made of it: {error}") from error
        return part

    def _check_made_with(self, parts: Mapping[str, Any]) -> None:
        """Raise a ValueError if a part differs in more than the initial value of a stored tensor."""
        there = self.about.get("made_with")
        if there is None:  # in files of older versions
            return
        if not isinstance(there, dict) or not all(isinstance(there.get(name), dict) for name in parts):
            raise Failed(f"{self.where} is damaged: it does not say what the {' and the '.join(parts)} was made of")
        pairs = [(in_words(there[name], name), made_of(part, name), name, part) for name, part in parts.items()]
        lines = [line for old, new, *of in pairs for line in differences(_fixed(old, *of), _fixed(new, *of))]
        refuse(lines, f"{self.where} is of another {' or '.join(parts)}", "Build them as for the training")


def _fixed(description: Mapping[str, str], name: str, part: Any) -> dict[str, str]:
    """The description without arguments that only set the initial value of a tensor, such as rates and precisions."""
    tensors = part.state_dict() if isinstance(part, nn.Module) else {}
    names = [key.removesuffix("_unconstrained") for key in tensors]
    names += [key.partition("_")[2] for key in names]  # log_scale starts noise_log_scale
    restored = tuple(f"{name}.{key}." for key in names)

    def starts(place: str, text: str) -> bool:
        of_several = text[-1:].isdigit() and any(tensor.startswith(f"{place}.") for tensor in restored)
        return of_several or f"{place}.".startswith(restored)

    return {place: text for place, text in description.items() if not starts(place, text)}


def _modules(parts: Mapping[str, Any]) -> dict[str, nn.Module]:
    return {name: part for name, part in parts.items() if isinstance(part, nn.Module)}
