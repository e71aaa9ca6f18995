"""Plain networks drawn from a posterior, at the storage of the posterior.

    network i:   W = draw of q under seed + i

Of n networks only the posterior is held: for a Gaussian one two numbers a weight, mean and variance, whatever n is. A
network is made when it is asked for and takes its own memory for as long as it is kept; asked for again it is the same one,
bit for bit. n networks in use at once are n networks: nothing short of that computes n draws exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import torch
from torch import nn

from pyrodrop.compression.chain import NoChain, chain_of
from pyrodrop.compression.kept import keep_mask
from pyrodrop.compression.units import without_dead_units
from pyrodrop.compression.whole import whole_network
from pyrodrop.devices import seeded
from pyrodrop.inputs import Inputs, mapped
from pyrodrop.threads import drawing


class DrawnNetworks(Sequence[nn.Module]):
    """Several plain networks, each a draw of the posterior and a function of x in its own units.

    A network that is no chain of layers (`compression.chain`) is drawn in the shape that it has.

    Args:
        model, guide: trained ones.
        count: number of networks, at least 1.
        threshold: cut the weights of larger ln alpha and the units that this leaves dead; None keeps all weights.
        seed: of network 0; network i has seed + i.
        x: example inputs, by which the shapes of layers are found.

    Raises:
        TypeError: a guide that does not draw weights, or, with a threshold, a network that is no chain of layers.
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
        if count < 1:
            raise ValueError(f"an ensemble has a number of networks, at least 1; got {count}")
        if not hasattr(guide, "draw"):
            raise TypeError(
                f"networks are drawn from guides that draw weights, as those of pyrodrop.guides; got {type(guide).__name__}"
            )
        self.model, self.guide, self.size, self.seed = model, guide, count, seed
        self._mask = None if threshold is None else keep_mask(guide, threshold)
        self._x = None if x is None else mapped(lambda part: part[:2].clone(), x)
        self._is_chain = True
        self._make(0)  # a network that cannot be read is refused now

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

    @drawing()  # torch.fx, which reads the network, replaces torch's own functions while it does
    def _make(self, index: int) -> nn.Module:
        guide: Any = self.guide
        like = next(iter(self.model.weight_sites().values()))
        with seeded(self.seed + index, like.device), torch.no_grad():
            weights = {name: draw[0] for name, draw in guide.draw(1).items()}
        if self._mask is not None:
            weights = {name: torch.where(self._mask[name], w, 0.0) for name, w in weights.items()}
        if self._is_chain:
            try:
                chain = chain_of(self.model, weights, self._x)
                return chain.network(chain.steps if self._mask is None else without_dead_units(chain.steps))
            except NoChain:
                if self._mask is not None:
                    raise
                self._is_chain = False
        return whole_network(self.model, weights, self._x)
