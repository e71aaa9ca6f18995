"""Which axis of a tensor inside a network indexes examples, and whether examples depend on each other.

The network is run on two and on three examples. An axis of length 2 in one run and 3 in the other indexes examples; if the
network merges examples and their rows into one axis, no axis does. If the outputs of the first two examples change when
the third is added, examples depend on each other, like the nodes of a graph.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from pyrodrop.inputs import Inputs, mapped, num_rows, parts
from pyrodrop.networks.call import Unfit
from pyrodrop.networks.sites import about_casts
from pyrodrop.private_apis import in_function_transform
from pyrodrop.reparam.lazy import LazyDistribution, LazyReparam, LazyWeight
from pyrodrop.reparam.maps import LinearMap

Call = Callable[[Mapping[str, Tensor], Inputs], Tensor]
_SOUGHT = 256  # number of rows that are searched for one that differs from the first


@dataclass(frozen=True)
class Examined:
    """Properties of a network found by running it.

    Attributes:
        axes: for every weight and each of its uses, the axis of the linear map's input that indexes examples. None if no
            single axis does, if the use is not a linear map, or if the weight is used several times.
        rows: names of the weights that are applied to several rows per example: tokens, nodes, positions of a convolution.
        mixes: whether the output of one example depends on other examples.
        whole: whether the network runs only on all rows of its data at once, not on a part of them.
        maps: whether `torch.vmap` over weights gives the same outputs as separate calls.
        output: shape of the output for one example.
        differed: whether the rows that it ran on differed. Equal rows cannot show whether one example affects another.
        differentiates: whether it computes derivatives, or transforms functions by `torch.func`, within its forward. The
            derivative of an activation with noise of its own is not that of a weight sample.
    """

    axes: dict[str, tuple[int | None, ...]]
    rows: tuple[str, ...]
    mixes: bool
    whole: bool
    maps: bool
    output: torch.Size
    differed: bool
    differentiates: bool = False


def signature(x: Inputs) -> tuple[Any, ...]:
    """Key of inputs that need only one examination: structure, shape of one example, dtypes."""
    names = tuple(x) if isinstance(x, dict) else isinstance(x, tuple)
    return (names, *((tuple(part.shape[1:]), part.dtype) for part in parts(x)))


def examine(
    network: Call, weights: Mapping[str, Tensor], x: Inputs, still: Callable[[], AbstractContextManager[None]]
) -> Examined:
    """Find the properties of a network by running it on a few rows of x.

    Args:
        network: maps weights and inputs to outputs, in evaluation mode and without noise.
        weights: values of the weights, by name.
        x: inputs ``[N, ...]`` on the weights' device.
        still: makes a context that restores the network's buffers and attributes.

    Raises:
        ValueError: the network runs neither on a few rows of x nor on all of them, or does not return a single tensor with
            one row per example.
    """

    def call(values: Mapping[str, Tensor], inputs: Inputs) -> Tensor:
        with still():
            return network(values, inputs)

    def maps(inputs: Inputs) -> bool:
        """Whether two sets of weights under vmap give the same outputs as separate calls."""
        other = {name: value * 0.9 for name, value in weights.items()}
        alone = torch.stack([call(dict(weights), inputs), call(other, inputs)])
        both = {name: torch.stack([value, other[name]]) for name, value in weights.items()}
        try:
            with still(), sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                together = torch.vmap(lambda one: network(one, inputs))(both)
        except Exception:  # torch raises many types where vmap is not supported
            return False
        return together.shape == alone.shape and close(together, alone)

    two, three = few_rows(x)
    try:
        small, large = _Probe(), _Probe()
        y2, y3 = call(small.weights(weights), two), call(large.weights(weights), three)
    except Unfit:
        raise
    except Exception as error:  # of any type: the network may need all rows
        x = mapped(Tensor.clone, x)  # the network may change it in place
        y = _on_all_rows(call, weights, x, error)
        return Examined(dict.fromkeys(weights, ()), (), True, True, maps(x), y.shape[1:], True)
    check_output(y2, 2)
    check_output(y3, 3)
    axes = {name: _axes(small.seen[name], large.seen[name]) for name in weights}
    mixes = not close(y3[:2], y2)
    several = tuple(name for name in weights if None not in axes[name] and any(n > 2 for n in small.rows[name]))
    return Examined(axes, several, mixes, False, maps(two), y2.shape[1:], differ(x), small.differentiates)


def _on_all_rows(call: Call, weights: Mapping[str, Tensor], x: Inputs, error: Exception) -> Tensor:
    try:
        y = call(dict(weights), x)
    except Exception:
        shapes = ", ".join(str(tuple(part.shape)) for part in parts(x))
        text = (str(error).strip().splitlines() or [""])[0]
        flat = isinstance(x, Tensor) and x.dim() == 3 and ("channels" in text or "conv2d" in text)
        hint = ": images need an axis of channels, such as x[:, None]" if flat else about_casts(text)
        raise ValueError(
            f"the network cannot be called on x of shape {shapes} ({type(error).__name__}: {text}); x must have one row per "
            f"example, [N, ...], or be a tuple or mapping of such tensors, the arguments of the network's forward{hint}"
        ) from error
    check_output(y, num_rows(x))
    return y


def check_output(y: Tensor, rows: int) -> None:
    """Raise a ValueError unless y has that many rows."""
    if y.dim() < 2 or len(y) != rows:
        hint = ": have forward return its output.unsqueeze(-1), [N, 1]" if y.shape == (rows,) else ""
        raise ValueError(
            "the network of a model must return one row per example, [N, outputs] or [N, ..., outputs]; got shape "
            f"{tuple(y.shape)} for {rows} examples{hint}"
        )


def few_rows(x: Inputs) -> tuple[Any, Any]:
    """Two rows of x, and the same two followed by a third."""
    rows = _three_rows(x)
    return _taken(x, rows[:2]), _taken(x, rows)


def differ(x: Inputs) -> bool:
    """Whether one of the first rows of x differs from the first."""
    return len(_unlike_the_first(x)) > 0


def _unlike_the_first(x: Inputs) -> Tensor:
    unlike = [
        (part[:_SOUGHT] != part[:1]).flatten(1).any(1) if part.dim() > 1 else part[:_SOUGHT] != part[0]
        for part in parts(x)
    ]
    return torch.stack(unlike).any(0).nonzero()[:, 0]


def _three_rows(x: Inputs) -> Tensor:
    """Indices of three rows; the third differs from the first if any does."""
    size = num_rows(x)
    found = _unlike_the_first(x)
    last = int(found[-1]) if len(found) else size - 1
    return torch.tensor([0, min(1, size - 1), last])


def _taken(x: Inputs, rows: Tensor) -> Any:
    return mapped(lambda part: part[rows.to(part.device)], x)


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


def close(one: Tensor, two: Tensor) -> bool:
    """Whether outputs are equal up to rounding."""
    scale = float(two.nan_to_num(0.0, 0.0, 0.0).abs().max()) if two.numel() else 0.0
    return torch.allclose(one, two, rtol=1e-4, atol=1e-5 * scale, equal_nan=True)


class _Probe:
    """Makes lazy weights that record the shapes of the inputs that they are applied to."""

    def __init__(self) -> None:
        self.seen: dict[str, list[torch.Size | None]] = {}
        self.rows: dict[str, list[int]] = {}
        self.differentiates = False

    def weights(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self.seen = {name: [] for name in values}
        self.rows = {name: [] for name in values}
        strategies = {name: _One(self.seen[name], self.rows[name], self._differentiated) for name in values}
        return {name: LazyWeight(LazyDistribution(_constant(v), strategies[name], name)) for name, v in values.items()}

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
