"""The data of a Pyro program: the keyword arguments of its model and its guide."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrodrop.arrays import copied, without_graph
from pyrodrop.checks import over_tensors, shown
from pyrodrop.files import digests

_PLAIN = (bool, int, float, complex, str, bytes, np.generic, torch.dtype, torch.device)


class Keywords:
    """Keyword arguments, ``model(**values)``. Every step gets all of them; the program's plates take subsamples.

    Args:
        values: by name. Tensors, also within tuples, lists and dictionaries, are data, and are copied as arrays are; other
            values are passed on unchanged.

    Raises:
        TypeError: `values` is no mapping, or a name is no str.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        if not isinstance(values, Mapping):
            raise TypeError(f"values must be a mapping of keyword arguments by name; got {shown(values)}")
        wrong = [name for name in values if not isinstance(name, str)]
        if wrong:
            raise TypeError(
                "values of data must have the names of the program's keyword arguments, model(**data), as keys; got "
                f"{shown(wrong[0])}"
            )
        self.values: Any = over_tensors(_copied, dict(values), Tensor | np.ndarray)

    @classmethod
    def of(cls, values: Keywords | Mapping[str, Any]) -> Keywords:
        """Return `values` itself if it is a `Keywords`, or convert a mapping."""
        return values if isinstance(values, Keywords) else cls(values)

    @classmethod
    def named(cls, values: Any, names: Sequence[str], optional: Collection[str] = ()) -> Keywords:
        """`values` as `Keywords`, if they have these names.

        Args:
            optional: names that may be left out. The values are then None.

        Raises:
            TypeError: `values` is no mapping.
            ValueError: a name is missing or unknown.
        """
        if not isinstance(values, Mapping):
            raise TypeError(
                f"data must be a mapping of the keyword arguments {', '.join(names)}, as in training, or None; got "
                f"{shown(values)}"
            )
        missing = [name for name in names if name not in values]
        if values.keys() - set(names) or not set(missing) <= set(optional):
            raise ValueError(
                f"data must have the names of the arguments in training, {', '.join(names)}, of which only those with the "
                f"default None may be left out; got {', '.join(map(str, values)) or 'none'}"
            )
        return cls({**values, **dict.fromkeys(missing)})

    @property
    def words(self) -> dict[str, str]:
        """A description of each argument: dtype, shape and digest of an array; the value or name of another object."""
        return {name: _word(value) for name, value in _placed(self.values, "data")}

    @property
    def fingerprint(self) -> str:
        """Hash of the names and values, as 32 hexadecimal digits."""
        return hashlib.blake2b(repr(sorted(self.words.items())).encode(), digest_size=16).hexdigest()

    def on(self, device: torch.device) -> dict[str, Any]:
        """The arguments, with all tensors on a device."""
        return over_tensors(lambda tensor: tensor.to(device), self.values)  # type: ignore[no-any-return]


def _placed(tree: Any, name: str) -> list[tuple[str, Any]]:
    """The values of nested collections, each with its path, such as ``data.x.0``."""
    items = tree.items() if isinstance(tree, Mapping) else enumerate(tree) if isinstance(tree, tuple | list) else None
    if not items:
        return [(name, tree)]
    return [leaf for key, value in items for leaf in _placed(value, f"{name}.{key}")]


def _word(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.dtype != object:
        return f"{value.dtype} {list(value.shape)} {hashlib.blake2b(value.tobytes(), digest_size=8).hexdigest()}"
    if isinstance(value, Tensor):
        return digests({"": value})[""]
    return str(value) if isinstance(value, _PLAIN) else getattr(value, "__name__", type(value).__name__)


def _copied(values: Tensor | np.ndarray) -> Any:
    return copied(without_graph(values, "data") if isinstance(values, Tensor) else values)
