"""Find the dropout calls of a network by running it.

The network runs on two and on three examples, within `DropoutCalls`, which intercepts every call that drops units. An axis
of a mask that has 2 entries in one run and 3 in the other indexes examples; an axis with 2 r and 3 r entries merges examples
with r rows each, whose order the inputs of the call show.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from pyrodrop.checks import Inputs, mapped, tensors_in
from pyrodrop.devices import seeded
from pyrodrop.networks.call import Output, Unfit, call
from pyrodrop.networks.dropout_calls import DropoutCall, DropoutCalls
from pyrodrop.networks.dropouts import Dropout, Layout
from pyrodrop.networks.trial import Look, Trial, close, running
from pyrodrop.reparam.lazy import LazyWeight

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


class Passes(Trial):
    """Calls of a network that drops units.

    Args:
        values, names: values of all parameters by first name, and all of their names.
        sites: names of the parameters that have a prior.
        x: the inputs, in the dtype of the parameters.
        output: function that selects a tensor from the network's output; None if the output is a tensor.

    Attributes, set by `find`:
        dropouts: the calls that drop units, in order, as if no weight carried their masks.
        calls: the calls with the inputs that `x` are now.
        times: position of every call in the sequence of the network's operations.
        uses: positions of the operations that use a weight, by its name.
        found: properties of the network in the modes that `stays` has now.
    """

    draws = (
        "the network draws random numbers that are not masks of dropout: put that module in evaluation mode, or draw "
        "masks by torch.bernoulli with one rate"
    )

    def __init__(
        self,
        network: nn.Module,
        values: Mapping[str, Tensor],
        names: Mapping[str, tuple[str, ...]],
        sites: Sequence[str],
        x: Inputs,
        output: Output | None = None,
    ) -> None:
        def run(weights: Mapping[str, Tensor], x: Inputs) -> Tensor:
            return call(network, {**values, **weights}, names, x, output)

        super().__init__(network, run, {name: values[name] for name in sites})
        self.other = dict(self.weights)
        self.watching = lambda: _Watch(network)
        self._training = {module for module in network.modules() if module.training and not isinstance(module, _NORMS)}
        # of the modules around a call that train: the innermost, all (None), the network's (0)
        self._depth: int | None = 1
        self.values, self.names, self.x, self.output = dict(values), dict(names), x, output

    def masked(self, sets: Sequence[tuple[Sequence[Tensor | None], Mapping[str, Tensor]]]) -> Tensor:
        """The outputs ``[sets, N, ...]`` for several sets of masks, in the order of the calls, and of values of parameters.

        A call whose mask is None in all sets drops nothing, and parameters that no set has keep their value.
        """
        names = {name for _, values in sets for name in values}
        tensors = {name: torch.stack([values.get(name, self.values[name]) for _, values in sets]) for name in names}
        of_calls = dict(enumerate(zip(*(masks for masks, _ in sets), strict=True)))
        tensors |= {f"mask {number}": torch.stack(masks) for number, masks in of_calls.items() if masks[0] is not None}

        def run(tensors: Mapping[str, Tensor]) -> Tensor:
            masks = iter([tensors.get(f"mask {number}") for number in of_calls])
            with DropoutCalls(lambda _: next(masks, None)):
                return self.run({name: tensors[name] for name in names}, self.x)

        return self.each(run, tensors)

    def in_double_precision(self) -> Passes:
        """The same network in float64, with weights that are perturbed a little, so that no layer is exactly 0."""
        generator = torch.Generator().manual_seed(0)

        def changed(value: Tensor) -> Tensor:
            noise = torch.randn(value.shape, generator=generator, dtype=torch.float32).to(value.device)
            exact = value.detach().to(torch.float64, copy=True)
            size = float(exact.norm()) / math.sqrt(exact.numel()) or 1 / math.sqrt(max(1, value[0].numel()))
            return exact.add_(noise, alpha=0.3 * size)

        values = {name: changed(value) for name, value in self.values.items()}
        names = dict(self.names)
        for name, buffer in self.network.named_buffers(remove_duplicate=False):
            if buffer.is_floating_point() and name not in names:
                values[name], names[name] = buffer.detach().double(), (name,)
        x = mapped(lambda part: part.double() if part.is_floating_point() else part, self.x)
        exact = Passes(self.network, values, names, list(self.weights), x, self.output)
        exact.stays, exact.maps = self.stays, self.maps
        exact.dropouts, exact.times, exact.uses = self.dropouts, self.times, self.uses
        return exact

    def first(self) -> Look:
        """A call in all modes, which must draw nothing but masks; the next one is in those that it requires."""
        self.stays = self._training
        look = super().first()
        if self._depth != 0:
            self.stays = self._training & {
                module for _, around, _ in look.seen.calls for _, module in around[: self._depth]
            }
        return look

    def find(self) -> None:
        """Find every call of the network that drops units, and when the network uses each weight.

        Afterwards, `stays` has as few modules as these calls require to be in training mode, and `x` three examples, if
        examples do not interact.

        Raises:
            ValueError: the network cannot be run on its inputs, or drops units in another way for another number of
                examples.
        """
        with seeded(0, next(iter(self.values.values())).device):
            for self._depth in (1, None, 0):
                self.record(self.x)
                small, large = self.small, self.large
                if small.seen.places == large.seen.places:
                    break
            else:
                raise Unfit(
                    "the network drops units in other places for three examples than for two, so its dropout cannot be "
                    f"read: {small.seen} and {large.seen}"
                )
            if not close(large.output[self.at], small.output):  # which depended on other modes
                self.small = small = self(self.two, gradients=True, probing=not self.whole)
            mixed = self.whole or self.mixes(small, outputs=large.output)
            self.found = self.properties(self.x, mixes=mixed, maps=True)
            watch = self(self.x).seen if mixed else large.seen  # then masks are for all of x
            self.x = self.x if mixed else self.three
        both = zip(small.seen.calls, large.seen.calls, small.seen.inputs, large.seen.inputs, strict=True)
        layouts = [Layout(None) if mixed else _layout(a, b, x, y) for (a, *_), (b, *_), x, y in both]
        names = [place[0] or "forward" for place in watch.places]
        dropouts = []
        for number, ((made, *_), layout, name) in enumerate(zip(watch.calls, layouts, names, strict=True)):
            which = f" {names[:number].count(name) + 1}" if names.count(name) > 1 else ""
            shape = layout.per_draw(made.shape, 3)
            dropouts.append(Dropout(f"dropout {name}{which}", made.kind, made.drop_rate, shape, layout))
        self.dropouts, self.calls, self.uses = dropouts, [call for call, *_ in watch.calls], watch.uses
        self.times = [time for *_, time in watch.calls]

    def of_torch(self) -> tuple[Tensor, list[Tensor]]:
        """The output of one pass in training mode, by PyTorch alone, and masks that are drawn from the same random state.

        They are those of the pass if the network makes these calls, and PyTorch draws their masks in these shapes. The
        caller's random state does not change.
        """
        device = next(iter(self.values.values())).device
        inside = torch.backends.cudnn.flags(enabled=False)  # whose recurrent layers draw masks inside
        with seeded(0, device), torch.no_grad(), self.restored(), sdpa_kernel(SDPBackend.MATH), inside:
            output = self.run(self.weights, self.x)
        with seeded(0, device):
            return output, [call.draw().to(call.like.dtype) for call in self.calls]


class _Watch(DropoutCalls):
    """Records the calls that drop units, which drop nothing, and the operations that use weights.

    Attributes:
        calls: each with the modules that make it, innermost first, and the number of operations before.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__(self._record)
        self.calls: list[tuple[DropoutCall, list[tuple[str, nn.Module]], int]] = []
        self.inputs: list[Tensor | None] = []
        self.uses: dict[str, list[int]] = {}
        self._network, self._clock = network, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._clock += 1
        for tensor in tensors_in((args, kwargs)):
            if isinstance(tensor, LazyWeight):
                self.uses.setdefault(tensor.distribution.name, []).append(self._clock)
        return super().__torch_function__(func, types, args, kwargs)

    def _record(self, call: DropoutCall) -> None:
        lazy = call.input is None or isinstance(call.input, LazyWeight)
        self.inputs.append(None if lazy else call.input.detach().clone())  # type: ignore[union-attr]
        self.calls.append((call, running(self._network), self._clock))

    @property
    def places(self) -> list[tuple[str, str, float]]:
        """Name of the module, kind and drop rate of every call."""
        return [(modules[0][0], call.kind, call.drop_rate) for call, modules, _ in self.calls]

    def __str__(self) -> str:
        return ", ".join(name or "the network itself" for name, *_ in self.places) or "nowhere"


def _layout(two: DropoutCall, three: DropoutCall, x: Tensor | None, y: Tensor | None) -> Layout:
    """Which axis of a mask indexes examples, and in which order.

    Args:
        two, three: the call in the runs with two examples, and with these behind another.
        x, y: the inputs of the call in these runs.
    """
    a, b = two.shape, three.shape
    if len(a) != len(b):
        return Layout(0, None)
    axes = [axis for axis in range(len(a)) if a[axis] != b[axis]]
    if not axes:
        return Layout(None)
    axis, rows = axes[0], a[axes[0]] // 2
    known = len(axes) == 1 and 3 * a[axis] == 2 * b[axis]
    if not known or rows == 1 or x is None or y is None:
        return Layout(axis, "examples" if known and rows == 1 else None)
    consecutive = close(y.narrow(axis, rows, 2 * rows), x)
    interleaved = close(y.unflatten(axis, (rows, 3)).narrow(axis + 1, 1, 2).flatten(axis, axis + 1), x)
    return Layout(axis, None if consecutive == interleaved else "examples" if consecutive else "rows")
