"""The dropouts of a network that was read (`pyrodrop.read`), and the masks of one run.

A mask is one of two kinds:

    carried     the mask multiplies the input units of a weight. The posterior of that weight draws it, and the call itself
                does nothing
    noise       no weight carries the mask. It is noise of the function, whose posterior and prior are the same
                distribution, so it does not contribute to the KL divergence

A draw of a function has one mask per call for all examples; noise per example has a mask for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from pyrodrop.distributions import InputUnits
from pyrodrop.distributions.coins import coins
from pyrodrop.networks.dropout_calls import DropoutCall, DropoutCalls
from pyrodrop.reparam.lazy import LazyWeight

# A mask, or how to get one: drawn once for all examples, drawn for each of them, or nothing is dropped.
Mask: TypeAlias = Tensor | Literal["one", "each", "none"]


_OTHER = (
    "the network does not drop units as it did when it was read; its forward may depend on its inputs: read it with inputs "
    "like these"
)


@dataclass(frozen=True)
class Layout:
    """The place of the examples in a mask.

    Attributes:
        axis: the axis that indexes examples, alone or merged with their rows; None if all examples share the mask.
        order: order of merged rows: ``examples`` if all rows of an example are consecutive, ``rows`` if the first rows of
            all examples are, None if it is unknown or the network computes examples together.
    """

    axis: int | None = 0
    order: Literal["examples", "rows"] | None = "examples"

    @property
    def joint(self) -> bool:
        """Whether one mask for all examples exists."""
        return self.axis is None or self.order is not None

    def per_draw(self, shape: Sequence[int], examples: int) -> torch.Size:
        """The shape of one mask for all examples, from that of a call's mask."""
        return torch.Size([n // examples if axis == self.axis else n for axis, n in enumerate(shape)])

    def of_examples(self, shape: Sequence[int], examples: int) -> torch.Size:
        """The shape of a call's mask, from that of one mask for all examples."""
        return torch.Size([n * examples if axis == self.axis else n for axis, n in enumerate(shape)])

    def spread(self, mask: Tensor, shape: Sequence[int], examples: int) -> Tensor:
        """A mask that broadcasts to the call's `shape`: one mask for all examples is repeated, any other is unchanged."""
        if self.axis is None or mask.shape[self.axis] in (1, shape[self.axis]):
            return mask
        new = self.axis if self.order == "examples" else self.axis + 1
        repeated = mask.unsqueeze(new)
        sizes = [*repeated.shape[:new], examples, *repeated.shape[new + 1 :]]
        return repeated.expand(sizes).flatten(self.axis, self.axis + 1)


@dataclass(frozen=True)
class Dropout:
    """One call that drops units.

    Attributes:
        name: the module that calls it, with a number if it does so several times.
        kind: a short description of the function.
        drop_rate: probability of dropping.
        shape: of one mask for all examples, at the inputs with which the network was read.
        layout: where the examples are.
        weight: the weight that carries the mask; None for noise.
        units: the input units of that weight, each of which an entry of the mask multiplies.
    """

    name: str
    kind: str
    drop_rate: float
    shape: torch.Size
    layout: Layout
    weight: str | None = None
    units: InputUnits = InputUnits(None)  # noqa: RUF009


class Dropouts(nn.Module):
    """The calls of a network that drop units, in the order in which it makes them."""

    drop_rates: Tensor

    def __init__(self, calls: Sequence[Dropout]) -> None:
        super().__init__()
        self.calls: tuple[Dropout, ...] = tuple(calls)
        self.register_buffer("drop_rates", torch.tensor([call.drop_rate for call in calls], dtype=torch.float64))

    def __len__(self) -> int:
        return len(self.calls)

    @property
    def noise(self) -> dict[str, Dropout]:
        """The calls whose masks no weight carries, by name."""
        return {call.name: call for call in self.calls if call.weight is None}

    @property
    def carried(self) -> dict[str, Dropout]:
        """The calls whose masks a weight carries, by the name of the weight."""
        return {call.weight: call for call in self.calls if call.weight is not None}

    def apart(self, values: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Mask]]:
        """Separate weights from masks, with a mask for every call whose mask no weight carries.

        Args:
            values: weights by site, and masks by name of the call. A scalar in place of a mask stands for one mask per
                example. A missing mask is drawn per example if a lazy weight has noise per example, else once.
        """
        noise = self.noise
        weights = {name: value for name, value in values.items() if name not in noise}
        lazy = [weight for weight in weights.values() if isinstance(weight, LazyWeight)]
        usual: Mask = "each" if any(not weight.distribution.strategy.one_weight for weight in lazy) else "one"
        drawn: dict[str, Mask] = {
            name: values[name] if values[name].dim() else "each" for name in noise if name in values
        }
        return weights, {**dict.fromkeys(noise, usual), **drawn}

    @contextmanager
    def run(self, masks: Mapping[str, Mask], examples: int, seen: list[torch.Size] | None = None) -> Iterator[None]:
        """Apply these masks within the block, in which the network must run once.

        Args:
            masks: masks by name of the call; a call without a mask drops nothing.
            examples: N, the number of examples of the run.
            seen: a list to which the shape of one mask for all examples is appended in every call.

        Raises:
            ValueError: the network's calls are not those with which it was read.
        """
        called = 0

        def answer(call: DropoutCall) -> Tensor | None:
            nonlocal called
            number, called = called, called + 1
            planned = self.calls[number] if number < len(self.calls) else None
            what = call.kind, call.drop_rate, len(call.shape)
            if planned is None or what != (planned.kind, planned.drop_rate, len(planned.shape)):
                raise ValueError(
                    f"{_OTHER}; its dropout {number + 1} is now a {call.kind} with rate {call.drop_rate:g}"
                )
            axis, shape = planned.layout.axis, planned.layout.per_draw(call.shape, examples)
            fits = axis is None or not planned.layout.order or planned.shape[axis] != 1 or call.shape[axis] == examples
            if not fits or (planned.weight and shape != planned.shape):
                raise ValueError(
                    f"{planned.name} was read with masks {tuple(planned.shape)} of {planned.weight or 'no weight'}; "
                    f"at these inputs a mask of {examples} examples has the shape {tuple(call.shape)}. Read the network "
                    "with inputs of this shape"
                )
            if seen is not None:
                seen.append(shape)
            mask = masks.get(planned.name, "none")
            if isinstance(mask, Tensor):
                if mask.shape not in (shape, call.shape):
                    raise ValueError(
                        f"the mask of {planned.name} has the shape {tuple(mask.shape)}; at these inputs it must have the "
                        f"shape {tuple(shape)}, so that these inputs have other functions. Predict at inputs of one shape "
                        "at a time, without padding that the network removes"
                    )
                return planned.layout.spread(mask, call.shape, examples)
            if mask == "none":
                return None
            keep = 1 - self.drop_rates[number].to(call.like.dtype)
            if mask == "each" or not planned.layout.joint:
                return coins(keep, call.shape)
            return planned.layout.spread(coins(keep, shape), call.shape, examples)

        with DropoutCalls(answer):
            yield
        if called < len(self.calls):
            raise ValueError(_OTHER)
