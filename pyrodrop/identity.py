"""What a model or a guide is known by, in words, so that a file can say what differs from what it was written for.

    {"model": "pyrodrop.models.MLP", "model.activation": "relu", "model.prior.scale": "1.0", ...}

Listed are the classes and arguments of the parts of this package (`pyrodrop.parts`), and the layers of a network. Functions
and classes of users are known by their names, not by their code.
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


def made_of(module: Any, name: str) -> dict[str, str]:
    """What a model or guide is made of: words by place, whose names start with `name`."""
    return in_words(made_with({name: module})[name], name)


def values_of(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The values of tensors in words: a number, or dtype, shape and digest."""
    return {name: _value(value) for name, value in tensors.items()}


def differences(there: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """What differs, as sentences: ``theta is 0 there and 0.1 here``."""
    return [
        f"{name} is {there.get(name, 'absent')} there and {here.get(name, 'absent')} here"
        for name in {**here, **there}
        if there.get(name) != here.get(name)
    ]


def check_made_of(there: Any, parts: Mapping[str, Any], file: str | Path, allow: Collection[str] = ()) -> None:
    """Check that model and guide are made of what a file says.

    Args:
        there: `made_with` of every part by name, as the file has it; None in files of older versions.

    Raises:
        ValueError: they differ in something else than the start of a tensor that the file restores, or the file says
            something else; or `allow` has another name.
    """
    for name in allow:
        known(name, parts, "part of the file, in allow,")
    if there is None:
        return
    if not isinstance(there, dict) or not all(isinstance(there.get(name), dict) for name in parts):
        raise ValueError(f"{file} is damaged: it does not say what the {' and the '.join(parts)} was made of")
    compared = {
        name: differences(_fixed(in_words(there[name], name), name, part), _fixed(made_of(part, name), name, part))
        for name, part in parts.items()
        if name not in allow
    }
    refuse(compared, f"{file} is of another {' or '.join(parts)}", "To read it all the same, pass allow={}")


def _fixed(entries: Mapping[str, str], name: str, module: Any) -> dict[str, str]:
    """The entries but for arguments that a tensor of the module starts from, such as rates and precisions."""
    tensors = module.state_dict() if isinstance(module, nn.Module) else {}
    names = [key.removesuffix("_unconstrained") for key in tensors]
    names += [key.partition("_")[2] for key in names]  # log_scale starts noise_log_scale
    restored = tuple(f"{name}.{key}." for key in names)

    def starts(place: str, word: str) -> bool:
        of_several = word[-1:].isdigit() and any(tensor.startswith(f"{place}.") for tensor in restored)
        return of_several or f"{place}.".startswith(restored)

    return {place: word for place, word in entries.items() if not starts(place, word)}


def refuse(compared: Mapping[str, list[str]], problem: str, remedy: str) -> None:
    """Raise a ValueError if there are differences; it shows a few.

    Args:
        compared: the `differences` of every part, by name.
        problem: what is of something else.
        remedy: what to do, with {} for the names of the parts that differ.
    """
    lines = [line for differing in compared.values() for line in differing]
    if lines:
        more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
        names = tuple(name for name, differing in compared.items() if differing)
        raise ValueError(f"{problem}: {'; '.join(lines[:_SHOWN])}{more}. {remedy.format(names)}")


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
