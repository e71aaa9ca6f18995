"""Plain networks sampled from a posterior and created on access.

    network i:   W ~ q, sampled with seed + i

Only the posterior is stored, regardless of the number of networks: for a Gaussian posterior, a mean and a variance per
weight. A network uses memory of its own as long as the caller keeps it. A second access gives the same network, bit for
bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pyrodrop import arguments
from pyrodrop.cards import Described
from pyrodrop.compression.compress import on_cpu, smaller
from pyrodrop.compression.kept import keep_mask
from pyrodrop.compression.plain import check_model, examples, plain_network
from pyrodrop.inputs import Inputs
from pyrodrop.prediction.module import functions_of
from pyrodrop.threads import exclusive


class DrawnNetworks(Described):
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
        ValueError: `count` is below 1, `seed` is negative, or `threshold` is out of range; the guide does not sample every
            weight.
        TypeError: `count` or `seed` is no whole number, or `guide` no guide. With a threshold: the guide has no alpha per
            weight, or no unit of the network is followed.
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
        if isinstance(guide, type) or not callable(guide):
            raise TypeError(f"guide must be the trained guide of the model; got {arguments.shown(guide)}")
        self.model: Any = model
        self.guide: Callable[..., Any] = guide
        self.size: int = count
        self.seed: int = seed
        self._mask = None if threshold is None else keep_mask(guide, threshold)
        self._x = examples(on_cpu(model), x)
        self[0]  # raises now if the network is not supported

    def describe(self) -> str:
        return f"DrawnNetworks({self.size} draws of {self.model.describe()})"

    def __len__(self) -> int:
        return self.size

    @exclusive()
    def __getitem__(self, index: int) -> nn.Module:
        device = next(iter(self.model.weight_sites().values())).device
        drawn = functions_of(self.model, self.guide, self._x, 1, self.seed + range(self.size)[index], device)
        weights = drawn.same | {name: values[0] for name, values in drawn.weights.items()}
        if self._mask is None:
            return plain_network(on_cpu(self.model), weights, self._x)
        weights = {name: torch.where(self._mask[name], w, 0.0) for name, w in weights.items()}
        return smaller(plain_network(on_cpu(self.model), weights, self._x), self._x)
