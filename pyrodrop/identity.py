"""Descriptions of models and guides in saved files, to check that a file is read into the same model and guide.

    {"model": "pyrodrop.models.MLP", "model.activation": "relu", "model.prior.scale": "1.0", ...}

A description lists the classes and arguments of parts of this package (`pyrodrop.parts`), and the layers of a network.
Functions and classes of users are described by their names, not by their code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from pyrodrop.names import known
from pyrodrop.parts import in_words, made_with

_SHOWN = 4  # differences in a message


def made_of(part: Any, name: str) -> dict[str, str]:
    """A description of a model or guide: strings by place, such as ``NAME.prior.scale``."""
    return in_words(made_with({name: part})[name], name)


def values_of(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Descriptions of the values of tensors: a number, or dtype, shape and digest."""
    return {name: _value(value) for name, value in tensors.items()}


def differences(there: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """The differences between two descriptions as sentences: ``theta is 0 there and 0.1 here``."""
    return [
        f"{name} is {there.get(name, 'absent')} there and {here.get(name, 'absent')} here"
        for name in {**here, **there}
        if there.get(name) != here.get(name)
    ]


def check_made_of(there: Any, parts: Mapping[str, Any], file: str | Path, allow: Collection[str] = ()) -> None:
    """Check that model and guide have the classes and arguments that a file describes.

    Args:
        there: `made_with` of every part by name, from the file; None in files of older versions.

    Raises:
        ValueError: a part whose name is not in `allow` differs, other than in the initial value of a tensor that the file
            restores; the description in the file is damaged; or `allow` has an unknown name.
    """
    for name in allow:
        known(name, parts, "part of the file, in allow,")
    if there is None:
        return
    if not isinstance(there, dict) or not all(isinstance(there.get(name), dict) for name in parts):
        raise ValueError(f"{file} is damaged: it does not say what the {' and the '.join(parts)} was made of")
    compared = {
        name: differences(_kept(in_words(there[name], name), name, part), _kept(made_of(part, name), name, part))
        for name, part in parts.items()
        if name not in allow
    }
    refuse(compared, f"{file} is of another {' or '.join(parts)}", "To read it all the same, pass allow={}")


def _kept(description: Mapping[str, str], name: str, part: Any) -> dict[str, str]:
    """The description without arguments that only set the initial value of a tensor, such as rates and precisions."""
    tensors = part.state_dict() if isinstance(part, nn.Module) else {}
    names = [key.removesuffix("_unconstrained") for key in tensors]
    names += [key.partition("_")[2] for key in names]  # log_scale starts noise_log_scale
    restored = tuple(f"{name}.{key}." for key in names)

    def starts(place: str, text: str) -> bool:
        of_several = text[-1:].isdigit() and any(tensor.startswith(f"{place}.") for tensor in restored)
        return of_several or f"{place}.".startswith(restored)

    return {place: text for place, text in description.items() if not starts(place, text)}


def refuse(compared: Mapping[str, list[str]], what: str, remedy: str) -> None:
    """Raise a ValueError if there are differences; it shows a few.

    Args:
        compared: the `differences` of every part, by name.
        what: what the message says about the file, such as ``FILE is of another model``.
        remedy: what to do, with {} for the names of the parts that differ.
    """
    lines = [line for differing in compared.values() for line in differing]
    if lines:
        more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
        names = tuple(name for name, differing in compared.items() if differing)
        raise ValueError(f"{what}: {'; '.join(lines[:_SHOWN])}{more}. {remedy.format(names)}")


def is_words(value: Any) -> bool:
    """Whether this can be a result of `made_of` that was read from a file."""
    return isinstance(value, Mapping) and all(isinstance(word, str) for word in value.values())


def is_settings(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether this can be the settings of a fit or of draws that were read from a file."""
    if not isinstance(value, dict):
        return False
    rows, power = value.get("noise_by_row") or [], value.get("likelihood_power", 1.0)
    return (
        isinstance(rows, list)
        and all(isinstance(name, str) for name in rows)
        and isinstance(power, int | float)
        and isinstance(value.get("data_fingerprint", ""), str | None)
    )


def _value(value: Tensor) -> str:
    if value.dim() == 0:
        return str(value.item())
    form = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    try:
        content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    except (RuntimeError, TypeError):  # a tensor without memory of its own, such as a sparse one
        return form
    return f"{form} {hashlib.blake2b(content, digest_size=8).hexdigest()}"
