"""The noise of a minibatch that is evaluated in parts.

A part is some consecutive rows of a pool, for which noise is drawn. What every row has for itself, such as masks under the
local reparameterisation, is drawn for the whole pool, and a part takes its own rows; what all rows share, such as a draw of
the weights, is the same for every part. So the parts have the noise that one evaluation of the pool has with the same seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyro
import torch
from torch import Tensor

from pyrodrop.devices import seeded, set_random_state
from pyrodrop.engines.graph import Batch, Graph
from pyrodrop.engines.loss import Loss
from pyrodrop.engines.noise import draws
from pyrodrop.engines.untraceable import Untraceable
from pyrodrop.inputs import mapped
from pyrodrop.networks.modes import undisturbed
from pyrodrop.private_apis import intercepted


class Rows(NamedTuple):
    """Where the rows are in a random tensor: `each` consecutive entries of `axis` belong to a row."""

    axis: int
    each: int


class PooledNoise:
    """Draws the random inputs of the graphs of all parts.

    Args:
        loss: whose graphs they are.
        part: any part; its rows stand for those of the pool, of which only the number matters.
        pool: number of rows.

    Raises:
        Untraceable: the pool cannot be traced.
    """

    def __init__(self, loss: Loss, part: Batch, pool: int) -> None:
        whole = Batch(mapped(lambda x: _repeated(x, pool), part.x), _repeated(part.y, pool), part.kwargs)
        self._loss, self._pool, self._whole = loss, pool, loss.noise_of(whole)
        self._rows: dict[int, list[Rows | None]] = {}

    def draw(self) -> list[Tensor]:
        """New noise for the pool, from torch's default generator."""
        return self._whole.draw()

    def shapes(self) -> list[Tensor]:
        """Uninitialised tensors in the shapes of the noise."""
        return self._whole.shapes()

    def of(self, drawn: Sequence[Tensor], part: Batch, first: int) -> list[Tensor]:
        """The noise of a part that begins at row `first` of the pool."""
        rows = len(part.y)
        if rows not in self._rows:
            self._rows[rows] = self._find(self._loss.graph(part), rows)
        return [
            noise if at is None else noise.narrow(at.axis, first * at.each, rows * at.each).contiguous()
            for noise, at in zip(drawn, self._rows[rows], strict=True)
        ]

    def _find(self, graph: Graph, rows: int) -> list[Rows | None]:
        if [noise.kind for noise in graph.noise] != [noise.kind for noise in self._whole.noise]:
            raise Untraceable("it draws other noise for a part of the rows than for all of them")
        shapes = zip(graph.shapes(), self._whole.shapes(), strict=True)
        return [_rows_in(some.shape, rows, whole.shape, self._pool) for some, whole in shapes]


class ReplayedNoise:
    """Gives the parts of a pool their noise where Pyro draws it: every part draws the noise of the pool and takes its rows.

    Args:
        loss: to be evaluated.
        part: any part.

    Raises:
        ValueError: the noise cannot be told apart by rows.
    """

    def __init__(self, loss: Loss, part: Batch) -> None:
        self._rows = _probed(loss, part)

    @contextmanager
    def __call__(self, part: Batch, first: int, pool: int, state: Tensor) -> Iterator[None]:
        """The noise of a part within the block; `state` is that of the generator before the noise of the pool."""
        set_random_state(state, part.device)
        if len(part.y) == pool:
            yield
            return
        rows, places = len(part.y), iter(self._rows)

        def call(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            if not draws(operation, args, kwargs):
                return operation(*args, **kwargs)
            at = next(places, None)
            if at is None:
                return operation(*args, **kwargs)
            return _drawn_by_row(operation, args, kwargs, at, rows, pool, first)

        with intercepted(call):
            yield


def _rows_in(some: torch.Size, rows: int, whole: torch.Size, pool: int) -> Rows | None:
    """Where the rows are in a random tensor, from its shapes for `rows` and for `pool` rows; None if it has none.

    Raises:
        Untraceable: the shapes differ in another way.
    """
    axes = [axis for axis, sizes in enumerate(zip(some, whole, strict=False)) if sizes[0] != sizes[1]]
    if some == whole:
        return None
    if len(some) == len(whole) and len(axes) == 1:
        axis = axes[0]
        each, rest = divmod(some[axis], rows)
        if not rest and each * pool == whole[axis]:
            return Rows(axis, each)
    raise Untraceable(
        f"its noise cannot be told apart by rows: for {rows} rows of x it has the shape {list(some)}, for {pool} rows "
        f"{list(whole)}"
    )


def _probed(loss: Loss, part: Batch) -> list[Rows | None]:
    """Where the rows are in every random tensor, in the order in which Pyro draws them; by two calls that change nothing."""
    rows = len(part.y)
    more = torch.arange(rows + 1, device=part.device) % rows
    longer = Batch(mapped(lambda x: x.index_select(0, more), part.x), part.y.index_select(0, more), part.kwargs)
    shapes = []
    for batch in (part, longer):
        seen: list[torch.Size] = []

        def call(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any], seen: list[torch.Size] = seen) -> Any:
            result = operation(*args, **kwargs)
            if draws(operation, args, kwargs):
                seen.append(_single(operation, result).shape)
            return result

        with (
            undisturbed(*loss.moving.parts),
            torch.no_grad(),
            pyro.validation_enabled(False),
            seeded(0, batch.device),
            intercepted(call),
        ):
            loss.terms(batch)
        shapes.append(seen)
    if len(shapes[0]) != len(shapes[1]):
        raise _refusal(f"it draws {len(shapes[0])} random tensors for {rows} rows and {len(shapes[1])} for one more")
    try:
        return [_rows_in(some, rows, one_more, rows + 1) for some, one_more in zip(*shapes, strict=True)]
    except Untraceable as error:
        raise _refusal(str(error)) from error


def _drawn_by_row(
    operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any], at: Rows, rows: int, pool: int, first: int
) -> Tensor:
    """The result of a random operation, as rows of one for the whole pool."""
    size, whole = rows * at.each, pool * at.each
    name = str(operation.overloadpacket)
    place = args[0] if name.endswith("_") else None
    like = args[0] if place is not None or name.endswith("_like") else None  # only its shape matters

    def enlarged(value: Any) -> Any:
        if isinstance(value, Tensor) and value.dim() > at.axis and value.shape[at.axis] == size:
            row = value.narrow(at.axis, 0, 1)
            shape = [whole if axis == at.axis else length for axis, length in enumerate(value.shape)]
            if like is not None and value is like:
                return like.new_empty(shape)
            if not bool((value == row).all()):
                raise _refusal(f"the distribution of its noise, {operation}, differs between rows")
            return row.expand(shape)
        if isinstance(value, list | tuple) and len(value) > at.axis and value[at.axis] == size:
            return [whole if axis == at.axis else length for axis, length in enumerate(value)]
        return value

    drawn = operation(*map(enlarged, args), **{name: enlarged(value) for name, value in kwargs.items()})
    own = _single(operation, drawn).narrow(at.axis, first * at.each, size)
    return own.contiguous() if place is None else place.copy_(own)


def _single(operation: Any, result: Any) -> Tensor:
    if not isinstance(result, Tensor):
        raise _refusal(f"{operation} draws noise and computes with it at once")
    return result


def _refusal(why: str) -> ValueError:
    return ValueError(
        f"the steps of this model and guide cannot be made in parts, by accumulate or by several processes that share "
        f"noise: {why}"
    )


def _repeated(rows: Tensor, count: int) -> Tensor:
    """A tensor with so many rows, all the first one; takes no memory."""
    return rows[:1].expand(count, *rows.shape[1:])
