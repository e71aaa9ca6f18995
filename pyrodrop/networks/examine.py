"""One look at a network: what it does to a few rows of x, found by calling it before training and prediction.

    mode         weights                     rows    shows
    evaluation   that record their use       2, 3    axes and rows of examples, derivatives, whether examples are apart
    evaluation   as they are                 2       random numbers, weights changed in place
    evaluation   others, and both by vmap    2       whether `torch.vmap` can map over weights
    training     with gradients              2       random numbers, parameters of others, what a call changes
    training     without                     3       whether gradients matter, and whether examples are apart
    evaluation   with gradients              2       weights that have no gradient

Every call starts from the same buffers and Python attributes. If one shows something, further calls find out what it is.
Networks that need all rows of x are called on those.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from pyrodrop.inputs import Inputs, mapped, num_rows, parts
from pyrodrop.networks.call import RECOMPUTES, Unfit
from pyrodrop.networks.checks import cannot_run, say_unused, wrong_inputs
from pyrodrop.networks.examples import Probe, axes_of, check_output, differ, few_rows
from pyrodrop.networks.modes import Snapshot, say_changes
from pyrodrop.networks.noise import random_module, say_noise
from pyrodrop.private_apis import activations_kept
from pyrodrop.rounding import close

_log = logging.getLogger("pyrodrop")


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
        run: maps weights and inputs to outputs.
        weights: values of the weights, by name.

    Attributes:
        changed: whether a call changed buffers or attributes.
    """

    def __init__(
        self, network: nn.Module, run: Callable[[Mapping[str, Tensor], Inputs], Tensor], weights: Mapping[str, Tensor]
    ) -> None:
        self.network, self.run, self.weights = network, run, weights
        self.changed = False
        self._before = self._now()

    def __call__(self, x: Inputs, weights: Mapping[str, Tensor] | None = None) -> Tensor:
        with self.restored():
            return self.run(self.weights if weights is None else weights, x)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore buffers and attributes after the block."""
        try:
            yield
        finally:
            self.changed |= self._before.restore()

    def with_gradients(self, x: Inputs) -> Differentiated:
        """A call whose output is differentiated by the weights.

        Raises:
            ValueError: the network has hooks on saved tensors, or changes its weights in place.
        """
        leaves = {name: value.clone().requires_grad_() for name, value in self.weights.items()}
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
        return Differentiated(y.detach(), unused, [leaf for leaf in _leaves(y) if id(leaf) not in ours])

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


class Differentiated(NamedTuple):
    """The output of a call, the names of the weights that it has no gradient by, and other tensors that it has one by."""

    output: Tensor
    unused: list[str]
    others: list[Tensor]


def examine(calls: Calls, x: Inputs) -> Examined:
    """Find the properties of a network by running it on a few rows of x, in evaluation mode and without gradients.

    Raises:
        ValueError: the network runs neither on a few rows of x nor on all of them, does not return a single tensor with one
            row per example, draws random numbers, or changes its weights in place.
    """
    weights = calls.weights
    device = next(iter(weights.values())).device
    two, three = (mapped(lambda part: part.to(device), rows) for rows in few_rows(x))
    small, large = Probe(), Probe()
    failed = None
    try:
        y2, y3 = calls(two, small.weights(weights)), calls(three, large.weights(weights))
    except Unfit:
        raise
    except Exception as error:  # of any type: the network may need all rows
        failed, two = error, mapped(lambda part: part.to(device, copy=True), x)  # which it may change in place
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
    axes = axes_of(small, large)
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
    try:
        with activations_kept() as recomputation:
            before = recomputation.calls
            (y, _, others), culprit = random_module(calls.network, lambda: calls.with_gradients(two))
            recomputes = recomputation.calls > before
        y3 = calls(three)
    except Exception as error:
        if isinstance(error, Unfit) or (isinstance(error, ValueError) and str(error).startswith("the network of a")):
            raise
        raise ValueError(cannot_run(two, error, doing="be trained")) from error
    _check_culprit(culprit)
    if recomputes:
        _log.warning(
            "the network recomputes activations (torch.utils.checkpoint), which would be with other weights and noise: they "
            "are kept instead, so training takes the memory of the network without checkpointing"
        )
    if others and {id(one) for one in others} & {id(one) for one in calls.with_gradients(two).others}:
        # one that is there in every call, unlike what a forward makes to differentiate by
        raise ValueError(
            "the network of a model must have all parameters that it uses, as nothing would train others; this one uses "
            "some that are not its own, such as those of a layer in a plain list, of another module, or in `output`: "
            "register them in the network, or fix them (requires_grad_(False))"
        )
    mixes = not close(y3[: len(y)], y)
    if mixes:
        predicted = calls(two)
        if not close(predicted, y):
            _check_same(y, calls.with_gradients(two).output)
            raise ValueError(
                "the network of a model must not depend on torch.is_grad_enabled(), as training and prediction would use "
                f"different functions; its outputs differ by up to {float((predicted - y).abs().max()):.2g}"
            )
    return mixes, calls.changes(two) if calls.changed else ""


def check_used(calls: Calls, x: Inputs, more: Callable[[], Inputs]) -> Tensor:
    """The output at a few rows, after a check that it has a gradient by every weight.

    Args:
        calls: in evaluation mode.
        x: a few rows.
        more: makes more rows, to be tried before the network is refused: a forward may branch on x.

    Raises:
        ValueError: a weight has no gradient.
    """
    found = calls.with_gradients(x)
    if found.unused:
        x = more()
        unused = calls.with_gradients(x).unused
        if unused:
            raise ValueError(say_unused(calls.network, lambda weights: calls(x, weights), calls.weights, unused))
    return found.output


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
        with calls.restored(), sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
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
    found, seen, nodes = [], set(), [output.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [before for before, _ in node.next_functions]
            found += [node.variable] if hasattr(node, "variable") else []
    return found
