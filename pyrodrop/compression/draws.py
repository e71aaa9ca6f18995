"""Plain networks sampled from a posterior and created on access.

    network i:   W ~ q, sampled with seed + i

Only the posterior is stored, regardless of the number of networks: for a Gaussian posterior, a mean and a variance per
weight. A network uses memory of its own as long as the caller keeps it. A second access gives the same network, bit for
bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import torch
from torch import nn

from pyrodrop import arguments
from pyrodrop.cards import Described
from pyrodrop.compression.compress import on_cpu, smaller
from pyrodrop.compression.kept import keep_mask
from pyrodrop.compression.plain import check_model, examples, plain_network
from pyrodrop.devices import seeded
from pyrodrop.inputs import Inputs
from pyrodrop.protocols import HasDraws
from pyrodrop.threads import exclusive


class DrawnNetworks(Described, Sequence[nn.Module]):
    """A sequence of plain networks, each with weights sampled from the posterior; x and f are in their original units.

    Args:
        model: a trained model of `pyrodrop.models`.
        guide: its trained guide.
        count: number of networks, at least 1.
        threshold: prune weights with ln alpha at or above this value and remove the units that are then unused; None keeps
            all weights.
        seed: seed of network 0; network i has the seed ``seed + i``.
        x: example inputs, ``[N, ...]``, to determine the shapes of layers.

    Raises:
        ValueError: `count` is below 1, `seed` is negative, or `threshold` is out of range.
        TypeError: `count` or `seed` is no whole number. The guide does not sample weights. With a threshold: the guide has
            no alpha per weight, or no unit of the network is followed.
    """

    def __init__(
        self,
        model: Any,
        guide: Callable[..., Any],
        count: int,
        *,
        threshold: float | None = None,
        seed: int = 0,
        x: Inputs | None = None,
    ) -> None:
        arguments.count(count, "count", "the number of networks")
        arguments.count(seed, "seed", "the seed of network 0", least=0, most=arguments.MOST - count)
        check_model(model)
        sampled: Any = guide
        if isinstance(guide, type) or not isinstance(sampled, HasDraws):
            raise TypeError(
                "sampling networks needs a guide with a method draw, as in pyrodrop.guides; got "
                f"{arguments.shown(guide)}"
            )
        self.model: Any = model
        self.guide: Callable[..., Any] = guide
        self.size: int = count
        self.seed: int = seed
        self._mask = None if threshold is None else keep_mask(guide, threshold)
        self._x = examples(on_cpu(model), x)
        self._make(0)  # raises now if the network is not supported

    def describe(self) -> str:
        return f"DrawnNetworks({self.size} draws of {self.model.describe()})"

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> nn.Module: ...
    @overload
    def __getitem__(self, index: slice) -> list[nn.Module]: ...
    def __getitem__(self, index: int | slice) -> nn.Module | list[nn.Module]:
        if isinstance(index, slice):
            return [self._make(i) for i in range(self.size)[index]]
        return self._make(range(self.size)[index])

    def __iter__(self) -> Iterator[nn.Module]:
        return (self._make(i) for i in range(self.size))

    @exclusive()
    def _make(self, index: int) -> nn.Module:
        guide: Any = self.guide
        like = next(iter(self.model.weight_sites().values()))
        with seeded(self.seed + index, like.device), torch.no_grad():
            weights = {name: draw[0] for name, draw in guide.draw(1).items()}
        if self._mask is None:
            return plain_network(on_cpu(self.model), weights, self._x)
        weights = {name: torch.where(self._mask[name], w, 0.0) for name, w in weights.items()}
        return smaller(plain_network(on_cpu(self.model), weights, self._x), self._x)
