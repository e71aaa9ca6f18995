"""Inputs x of a network: a tensor, or a tuple or mapping of tensors whose first axis indexes the examples.

x                                  network(x)
(ids, mask)                        network(ids, mask)
{"input_ids": ids, "mask": mask}   network(input_ids=ids, mask=mask)

A forward with one argument takes the tuple or the mapping as a whole: forward(self, batch). One with further, optional ones
does, too, unless a key is the name of one of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch import Tensor

Inputs: TypeAlias = Tensor | tuple[Tensor, ...] | dict[str, Tensor]


def parts(x: Inputs) -> list[Tensor]:
    """The tensors of x, in order."""
    if isinstance(x, Tensor):
        return [x]
    return list(x.values()) if isinstance(x, Mapping) else list(x)


def mapped(function: Callable[[Tensor], Tensor], x: Any) -> Any:
    """x with `function` applied to each of its tensors."""
    if isinstance(x, Tensor):
        return function(x)
    if isinstance(x, Mapping):
        return {name: function(value) for name, value in x.items()}
    return tuple(function(value) for value in x)


def over_tensors(function: Callable[[Any], Any], tree: Any, kinds: Any = Tensor) -> Any:
    """Apply the function to every tensor, or value of these kinds, of nested tuples, lists and dictionaries."""
    if isinstance(tree, kinds):
        return function(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(over_tensors(function, value, kinds) for value in tree))
    if isinstance(tree, tuple | list):
        return type(tree)([over_tensors(function, value, kinds) for value in tree])
    if isinstance(tree, dict):
        return {name: over_tensors(function, value, kinds) for name, value in tree.items()}
    return tree


def tensors_in(tree: Any) -> list[Tensor]:
    """The tensors of nested tuples, lists and dictionaries, in order."""
    tensors: list[Tensor] = []
    over_tensors(tensors.append, tree)
    return tensors


def rebuilt(x: Inputs, tensors: list[Tensor]) -> Any:
    """Put `tensors` into the structure of x."""
    following = iter(tensors)
    return mapped(lambda _: next(following), x)


def named_parts(x: Inputs) -> dict[str, Tensor]:
    """The tensors of x by name: ``x`` for a tensor; ``x_0``, ``x_1`` for a tuple; ``x_input_ids`` for a mapping."""
    if isinstance(x, Tensor):
        return {"x": x}
    keys = x if isinstance(x, Mapping) else range(len(x))
    return {f"x_{key}": tensor for key, tensor in zip(keys, parts(x), strict=True)}


def num_rows(x: Inputs) -> int:
    """N, the number of examples."""
    return parts(x)[0].shape[0]  # not len, which a recording for any number of rows would make a constant


def arguments(x: Inputs, forward: Callable[..., Any]) -> tuple[tuple[Any, ...], dict[str, Tensor]]:
    """Positional and keyword arguments of the network's call: the tensors of x, or x itself if `forward` takes it whole."""
    if isinstance(x, Tensor):
        return (x,), {}
    one_by_one: tuple[tuple[Any, ...], dict[str, Tensor]] = ((), dict(x)) if isinstance(x, Mapping) else (tuple(x), {})
    whole = (dict(x) if isinstance(x, Mapping) else tuple(x),)
    if _takes(forward, *one_by_one) or not _takes(forward, whole, {}):
        return one_by_one
    known = inspect.signature(forward).parameters
    misnamed = len(known) > 1 and not known.keys().isdisjoint(one_by_one[1])  # which the error of the call says
    return one_by_one if misnamed else (whole, {})


def _takes(function: Callable[..., Any], positional: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    """Whether the function can be called with these arguments by its signature; True if it has none."""
    try:
        inspect.signature(function).bind(*positional, **named)
    except TypeError:
        return False
    except ValueError:  # no signature, as of a function in C
        return True
    return True
