"""One look at a network: what it does to a few rows of x, found by calling it before training and prediction.

    mode         weights                     rows    shows
    evaluation   that record their use       2, 3    axes and rows of examples, derivatives, whether examples are apart
    evaluation   as they are                 2       random numbers, weights changed in place
    evaluation   others, and both by vmap    2       whether `torch.vmap` can map over weights
    training     with gradients              2       random numbers, parameters of others, what a call changes
    training     without                     3       whether gradients matter, and whether examples are apart
    evaluation   with gradients              2       weights that have no gradient

Every call starts from the same buffers and Python attributes. If one shows something, further calls find out what it is.
Networks that need all rows of x are called on those. An axis of length 2 in one run and 3 in the other indexes examples; if
the network merges examples and their rows into one axis, no axis does.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from pyrodrop.inputs import Inputs, mapped, num_rows, parts
from pyrodrop.module_states import Snapshot, say_changes
from pyrodrop.networks.call import RECOMPUTES, Unfit
from pyrodrop.networks.checks import cannot_run, say_unused, wrong_inputs
from pyrodrop.networks.noise import random_module, say_noise
from pyrodrop.private_apis import activations_kept, in_function_transform
from pyrodrop.recurrence import elementary
from pyrodrop.reparam.lazy import LazyDistribution, LazyReparam, LazyWeight
from pyrodrop.reparam.maps import LinearMap

_log = logging.getLogger("pyrodrop")

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
        mixes_in_training: as `mixes`, in the modes of training, such as under BatchNorm; None if it was not run in them.
    """

    axes: dict[str, tuple[int | None, ...]]
    rows: tuple[str, ...]
    mixes: bool
    whole: bool
    maps: bool
    output: torch.Size
    differed: bool
    differentiates: bool = False
    mixes_in_training: bool | None = None


class Calls:
    """Calls of a network in one mode, each from the same buffers and Python attributes.

    Args:
        network: whose buffers and attributes are restored after every call.

    Attributes:
        changed: whether a call changed buffers or attributes.
    """

    def __init__(
        self, network: nn.Module, run: Callable[[Mapping[str, Tensor], Inputs], Tensor], weights: Mapping[str, Tensor]
    ) -> None:
        self.network: nn.Module = network
        self.run = run
        self.weights: Mapping[str, Tensor] = weights
        self.changed = False
        self._before, self._device = self._now(), next(iter(weights.values())).device

    def __call__(self, x: Inputs, weights: Mapping[str, Tensor] | None = None) -> Tensor:
        with self.restored():
            return self.run(self.weights if weights is None else weights, x)

    def few(self, x: Inputs) -> tuple[Any, Any]:
        """Two and three rows of x (`few_rows`) on the weights' device."""
        two, three = (mapped(lambda part: part.to(self._device), rows) for rows in few_rows(x))
        return two, three

    def all(self, x: Inputs) -> Any:
        """A copy of x on that device, which the network may change in place."""
        return mapped(lambda part: part.to(self._device, copy=True), x)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore buffers and attributes after the block."""
        try:
            yield
        finally:
            self.changed |= self._before.restore()

    def with_gradients(self, x: Inputs) -> tuple[Tensor, list[str], list[Tensor]]:
        """The output, the names of the weights that it has no gradient by, and the other tensors that it has one by.

        Raises:
            ValueError: the network has hooks on saved tensors, or changes its weights in place.
        """
        leaves = {name: value.detach().requires_grad_() for name, value in self.weights.items()}
        versions = _versions(leaves)
        try:
            with self.restored(), torch.enable_grad():
                y = self.run(leaves, x)
                total = y.sum()
                gradients: Any = [None] * len(leaves)
                if total.requires_grad:
                    gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
        except RuntimeError as error:
            if str(error) == RECOMPUTES or "use_reentrant" in str(error):
                raise ValueError(RECOMPUTES) from error
            raise
        _check_kept(leaves, versions)
        unused = [name for name, gradient in zip(leaves, gradients, strict=True) if gradient is None]
        ours = {id(tensor) for tensor in (*leaves.values(), *parts(x))}
        return y.detach(), unused, [leaf for leaf in _leaves(y) if id(leaf) not in ours]

    def changes(self, x: Inputs) -> str:
        """A sentence about the attributes that a second call changes, empty if there are none.

        What the first call alone sets, a cache, is no such change.
        """
        with self.restored():
            self.run(self.weights, x)
            between = self._now()
            self.run(self.weights, x)
            return say_changes([name for _, name in between.changed()])

    def _now(self) -> Snapshot:
        return Snapshot(dict(self.network.named_modules()))


def examine(calls: Calls, x: Inputs) -> Examined:
    """Find the properties of a network by running it on a few rows of x, in evaluation mode and without gradients.

    Raises:
        ValueError: the network runs neither on a few rows of x nor on all of them, does not return a single tensor with one
            row per example, draws random numbers, or changes its weights in place.
    """
    weights = calls.weights
    two, three = calls.few(x)
    small, large = _Probe(), _Probe()
    failed = None
    try:
        y2, y3 = calls(two, small.weights(weights)), calls(three, large.weights(weights))
    except Unfit:
        raise
    except Exception as error:  # of any type: the network may need all rows
        failed, two = error, calls.all(x)  # which it may change in place
    else:
        check_output(y2, 2)
        check_output(y3, 3)
    versions = _versions(weights)
    try:
        y, culprit = random_module(calls.network, lambda: calls(two))
    except Exception:
        if failed is None:
            raise
        raise ValueError(wrong_inputs(x, failed)) from failed
    check_output(y, num_rows(two))
    _check_culprit(culprit)
    _check_kept(weights, versions)
    if failed is not None or not close(y2, y):  # each of them runs the network as it is, but for rounding
        _check_same(y, calls(two))
    maps = _maps(calls, two, y)
    if failed is not None:
        return Examined(dict.fromkeys(weights, ()), (), True, True, maps, y.shape[1:], True)
    axes = {name: (None,) if small.calls(name) > 1 else _axes(small.seen[name], large.seen[name]) for name in weights}
    several = tuple(name for name in weights if None not in axes[name] and any(n > 2 for n in small.rows[name]))
    mixes = not close(y3[:2], y2)
    return Examined(axes, several, mixes, False, maps, y.shape[1:], differ(x), small.differentiates)


def examine_training(calls: Calls, two: Inputs, three: Inputs) -> tuple[bool, str]:
    """Whether the output of one example depends on others in the modes of training, and a sentence about the Python
    attributes that calls change, empty if there are none.

    Args:
        calls: in these modes.
        two, three: as `few_rows`; twice all rows for a network that needs them.

    Raises:
        ValueError: the network cannot run in these modes, draws random numbers, has gradients by parameters that are not its
            own or none that can be computed, or has other outputs without them.
    """
    with _training(two), activations_kept() as recomputation:
        before = recomputation.calls
        (y, _, others), culprit = random_module(calls.network, lambda: calls.with_gradients(two))
        recomputes = recomputation.calls > before
    _check_culprit(culprit)
    if recomputes:
        _log.warning(
            "the network recomputes activations (torch.utils.checkpoint), which would be with other weights and noise: they "
            "are kept instead, so training takes the memory of the network without checkpointing"
        )
    if others and {id(one) for one in others} & {id(one) for one in calls.with_gradients(two)[2]}:
        # one that is there in every call, unlike what a forward makes to differentiate by
        raise ValueError(
            "the network of a model must have all parameters that it uses, as nothing would train others; this one uses "
            "some that are not its own, such as those of a layer in a plain list, of another module, or in `output`: "
            "register them in the network, or fix them (requires_grad_(False))"
        )
    try:
        mixes = not close(calls(three)[: len(y)], y)
    except Exception:  # of any type: it may need an even number of rows
        mixes = True
    if mixes:
        with _training(two):
            predicted = calls(two)
        if not close(predicted, y):
            _check_same(y, calls.with_gradients(two)[0])
            raise ValueError(
                "the network of a model must not depend on torch.is_grad_enabled(), as training and prediction would use "
                f"different functions; its outputs differ by up to {float((predicted - y).abs().max()):.2g}"
            )
    return mixes, calls.changes(two) if calls.changed else ""


def check_used(calls: Calls, x: Inputs, more: Callable[[], Inputs]) -> Tensor:
    """The output at a few rows, after a check that it has a gradient by every weight.

    Args:
        calls: in evaluation mode.
        more: makes more rows, to be tried before the network is refused: a forward may branch on x.

    Raises:
        ValueError: a weight has no gradient.
    """
    output, unused, _ = calls.with_gradients(x)
    if unused:
        x = more()
        _, unused, _ = calls.with_gradients(x)
        if unused:
            raise ValueError(say_unused(calls.network, lambda weights: calls(x, weights), calls.weights, unused))
    return output


def mixes_examples(model: Any, x: Inputs) -> bool:
    """Whether outputs at some rows of x depend on other rows, as in a graph network.

    False for a model without a method ``mixes_examples``.
    """
    return bool(model.mixes_examples(x)) if hasattr(model, "mixes_examples") else False


@contextmanager
def _training(x: Inputs) -> Iterator[None]:
    """Turn what a network raises on x in the modes of training into a ValueError, but for a `ValueError` that says more."""
    try:
        yield
    except Exception as error:
        if isinstance(error, Unfit) or (
            isinstance(error, ValueError) and str(error).startswith("the network of a model")
        ):
            raise
        raise ValueError(cannot_run(x, error, doing="be trained")) from error


def _versions(weights: Mapping[str, Tensor]) -> dict[str, int]:
    """How often each weight has been changed in place."""
    return {name: value._version for name, value in weights.items()}


def _check_kept(weights: Mapping[str, Tensor], before: Mapping[str, int]) -> None:
    """Raise a ValueError if a call has changed weights in place: their density would be that of other values."""
    changed = [name for name, version in _versions(weights).items() if version != before[name]]
    if changed:
        raise ValueError(
            "the network of a model must not change its weights when it is called; this network changes "
            f"{', '.join(changed)} in place, as nn.Embedding(max_norm=...) does, so that its output would not be that of "
            "the sampled weights. Remove max_norm, or scale a copy of the weight in the forward"
        )


def _maps(calls: Calls, x: Inputs, y: Tensor) -> bool:
    """Whether two sets of weights under vmap give the same outputs as separate calls; y is that of the first."""
    other = {name: value * 0.9 for name, value in calls.weights.items()}
    alone = torch.stack([y, calls(x, other)])
    both = {name: torch.stack([value, other[name]]) for name, value in calls.weights.items()}
    try:
        with calls.restored(), elementary(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            together = torch.vmap(lambda one: calls.run(one, x))(both)
    except Exception:  # torch raises many types where vmap is not supported
        return False
    return close(together, alone)


def _check_culprit(culprit: str | None) -> None:
    """Raise a ValueError for a network in which a module (`random_module`) draws random numbers."""
    if culprit is not None:
        raise ValueError(
            f"{say_noise('that draws random numbers itself')}{culprit}. Dropout and stochastic depth in evaluation mode, or "
            "at rate 0, draw none; pyrodrop.read reads those of a trained network as a posterior"
        )


def _check_same(first: Tensor, second: Tensor) -> None:
    """Raise a ValueError unless two calls gave the same outputs."""
    if not close(first, second):
        gap = float((first - second).abs().max())
        raise ValueError(
            f"{say_noise(f'whose outputs change by up to {gap:.2g} when it is called again')} with the same input"
        )


def _leaves(output: Tensor) -> list[Tensor]:
    """The tensors that the gradient of an output would reach."""
    leaves, seen, nodes = [], set(), [output.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [before for before, _ in node.next_functions]
            leaves += [node.variable] if hasattr(node, "variable") else []
    return leaves


def close(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have one shape and are equal up to rounding, ``|a - b| <= 1e-4 |b| + 1e-5 max |b|``, as what is
    computed in parts, in another order, or by another kernel. NaN equals NaN.

    A sum of K terms in float32 errs by about sqrt(K) u of their size, with u = 2^-24, and L such sums one after the other by
    sqrt(K L) u. For ten thousand terms that is 6e-6, which entries that cancel may differ by, and for a hundred layers of
    them 6e-5, which any entry may. Networks in float64 may compute in float32 somewhere, so the dtype does not matter.
    """
    scale = float(b.nan_to_num(0.0, 0.0, 0.0).abs().max()) if b.numel() else 0.0
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-5 * scale, equal_nan=True)


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


def _axes(two: list[torch.Size | None], three: list[torch.Size | None]) -> tuple[int | None, ...]:
    """The axis, per use of a weight, whose length went from 2 to 3.

    None for every use of a weight that has several (tied, recurrent): noise per example would differ between them, so such
    a weight must be sampled as a whole. All steps of a call of a recurrent layer are one use.
    """
    if len(two) != 1 or len(three) != 1 or two[0] is None or three[0] is None:
        return (None,) * max(len(two), len(three))
    return (_axis(two[0], three[0]),)


def _axis(two: torch.Size, three: torch.Size) -> int | None:
    if len(two) != len(three):
        return None
    other = [axis for axis, (a, b) in enumerate(zip(two, three, strict=True)) if a != b]
    return other[0] if len(other) == 1 and (two[other[0]], three[other[0]]) == (2, 3) else None


class _Probe:
    """Makes lazy weights that record the shapes of the inputs that they are applied to."""

    def __init__(self) -> None:
        self.seen: dict[str, list[torch.Size | None]] = {}
        self.rows: dict[str, list[int]] = {}
        self.made: dict[str, LazyDistribution] = {}
        self.differentiates = False

    def weights(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self.seen = {name: [] for name in values}
        self.rows = {name: [] for name in values}
        strategies = {name: _One(self.seen[name], self.rows[name], self._differentiated) for name in values}
        self.made = {name: LazyDistribution(_constant(v), strategies[name], name) for name, v in values.items()}
        return {name: LazyWeight(distribution) for name, distribution in self.made.items()}

    def calls(self, name: str) -> int:
        """The number of calls of recurrent layers with a weight. Several may have the examples in other orders."""
        return self.made[name].layers

    def _differentiated(self, _: object = None) -> None:
        self.differentiates = True


class _One(LazyReparam):
    """The strategy of one probed weight: its constant value in every use."""

    one_weight = True

    def __init__(self, seen: list[torch.Size | None], rows: list[int], differentiated: Callable[..., None]) -> None:
        self.seen, self.rows, self.differentiated = seen, rows, differentiated
        self.repeated: torch.Size | None = None  # the shape of the input at every step of a recurrent layer

    def keeps(self, q: Any) -> bool:
        return True

    def push(self, q: Any, at: LinearMap) -> Tensor:
        y = at.f(at.x, q.base_dist.loc)
        if in_function_transform():
            self.differentiated()
        elif y.requires_grad:
            y.register_hook(self.differentiated)
        if not at.repeated:
            self.rows.append(y.numel() // y.shape[at.outputs])
        if not at.repeated or at.x.shape != self.repeated:
            self.seen.append(at.x.shape)
        self.repeated = at.x.shape if at.repeated else self.repeated
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
