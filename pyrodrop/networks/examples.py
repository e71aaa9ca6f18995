"""Which axis of a tensor inside a network indexes examples.

The network is run on two and on three examples with weights that record what they are applied to. An axis of length 2 in one
run and 3 in the other indexes examples; if the network merges examples and their rows into one axis, no axis does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pyrodrop.inputs import Inputs, mapped, num_rows, parts
from pyrodrop.private_apis import in_function_transform
from pyrodrop.reparam.lazy import LazyLaw, LazyReparam, LazyWeight
from pyrodrop.reparam.maps import LinearMap

_SOUGHT = 256  # number of rows that are searched for one that differs from the first


def signature(x: Inputs) -> tuple[Any, ...]:
    """Key of inputs that need only one examination: structure, shape of one example, dtypes."""
    names = tuple(x) if isinstance(x, dict) else isinstance(x, tuple)
    return (names, *((tuple(part.shape[1:]), part.dtype) for part in parts(x)))


def check_output(y: Tensor, rows: int) -> None:
    """Raise a ValueError unless y has that many rows."""
    if y.dim() < 2 or len(y) != rows:
        hint = ": have forward return its output.unsqueeze(-1), [N, 1]" if y.shape == (rows,) else ""
        raise ValueError(
            "the network of a model must return one row per example, [N, outputs] or [N, ..., outputs]; got shape "
            f"{tuple(y.shape)} for {rows} examples{hint}"
        )


def few_rows(x: Inputs) -> tuple[Any, Any]:
    """Two rows of x, and the same two, in the same memory, followed by a third."""
    size = num_rows(x)
    unlike = _unlike_the_first(x)
    last = int(unlike[-1]) if len(unlike) else size - 1  # a row that differs from the first if any does
    rows = torch.tensor([0, min(1, size - 1), last])
    three = mapped(lambda part: part[rows.to(part.device)], x)
    return mapped(lambda part: part[:2], three), three


def differ(x: Inputs) -> bool:
    """Whether one of the first rows of x differs from the first."""
    return len(_unlike_the_first(x)) > 0


def _unlike_the_first(x: Inputs) -> Tensor:
    unlike = [
        (part[:_SOUGHT] != part[:1]).flatten(1).any(1) if part.dim() > 1 else part[:_SOUGHT] != part[0]
        for part in parts(x)
    ]
    return torch.stack(unlike).any(0).nonzero()[:, 0]


def axes_of(two: Probe, three: Probe) -> dict[str, tuple[int | None, ...]]:
    """For every weight and each of its uses, the axis that indexes examples, from runs on two and on three of them."""
    return {name: _axes(seen, three.seen[name]) for name, seen in two.seen.items()}


def _axes(two: list[torch.Size | None], three: list[torch.Size | None]) -> tuple[int | None, ...]:
    """The axis, per use of a weight, whose length went from 2 to 3.

    None for every use of a weight that has several (tied, recurrent): noise per example would differ between them, so such
    a weight must be sampled as a whole.
    """
    if len(two) != 1 or len(three) != 1 or two[0] is None or three[0] is None:
        return (None,) * max(len(two), len(three))
    return (_axis(two[0], three[0]),)


def _axis(two: torch.Size, three: torch.Size) -> int | None:
    if len(two) != len(three):
        return None
    other = [axis for axis, (a, b) in enumerate(zip(two, three, strict=True)) if a != b]
    return other[0] if len(other) == 1 and (two[other[0]], three[other[0]]) == (2, 3) else None


class Probe:
    """Makes lazy weights that record the shapes of the inputs that they are applied to."""

    def __init__(self) -> None:
        self.seen: dict[str, list[torch.Size | None]] = {}
        self.rows: dict[str, list[int]] = {}
        self.differentiates = False

    def weights(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self.seen = {name: [] for name in values}
        self.rows = {name: [] for name in values}
        strategies = {name: _One(self.seen[name], self.rows[name], self._differentiated) for name in values}
        return {name: LazyWeight(LazyLaw(_constant(v), strategies[name], name)) for name, v in values.items()}

    def _differentiated(self, _: object = None) -> None:
        self.differentiates = True


class _One(LazyReparam):
    """The strategy of one probed weight: its constant value in every use."""

    one_weight = True

    def __init__(self, seen: list[torch.Size | None], rows: list[int], differentiated: Callable[..., None]) -> None:
        self.seen, self.rows, self.differentiated = seen, rows, differentiated

    def push(self, q: Any, at: LinearMap) -> Tensor:
        y = at.f(at.x, q.base_dist.loc)
        if in_function_transform():
            self.differentiated()
        elif y.requires_grad:
            y.register_hook(self.differentiated)
        self.seen.append(at.x.shape)
        self.rows.append(y.numel() // y.shape[at.outputs])
        return y

    def bias(self, q: Any, at: LinearMap) -> Tensor:
        return at.over_outputs(q.base_dist.loc)

    def whole(self, q: Any) -> Tensor:
        if in_function_transform():
            self.differentiated()
        self.seen.append(None)
        return q.base_dist.loc  # type: ignore[no-any-return]


def _constant(value: Tensor) -> Any:
    return dist.Normal(value, torch.ones_like(value), validate_args=False).to_event(value.dim())
