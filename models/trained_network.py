"""A network that was trained with dropout, as a Pyro model.

    w_j ~ prior_j                     one site per weight, as in `models.network`
    z   ~ Bernoulli(1 - drop_rate)    the masks that no weight carries: no sites, since posterior and prior are equal
    f   = network(x; w, z)            [N, ...], in training mode where the network drops units, else in evaluation mode
    y   ~ likelihood(f)               [N, ...], site ``y``

`pyrodrop.read` makes it and finds the masks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pyrodrop.checks import Inputs, instance, num_rows
from pyrodrop.models.network import NetworkModel
from pyrodrop.networks.dropouts import Dropouts, Mask
from pyrodrop.networks.trial import Properties


class TrainedNetwork(NetworkModel):
    """The model of a network that contains dropout.

    Args:
        network: as for `NetworkModel`; the modules that drop units are marked to stay in training mode
            (`changes.STAYS`).
        dropouts: the calls of the network that drop units.
        settings: further arguments of `NetworkModel`.

    Raises:
        TypeError, ValueError: as `NetworkModel`.
    """

    _randomness = "different"

    def __init__(self, network: nn.Module, dropouts: Dropouts, **settings: Any) -> None:
        instance(dropouts, Dropouts, "dropouts", "the Dropouts of a network, which pyrodrop.read finds")
        super().__init__(network, **settings)
        self.dropouts = dropouts

    def _check_network(self, network: nn.Module) -> None:
        """Allow dropout layers, whose masks this model samples itself."""

    def properties(self, x: Inputs) -> Properties:
        """As `NetworkModel.properties`.

        Raises:
            ValueError: also if examples depend on each other, although they did not when the network was read.
        """
        properties = super().properties(x)
        apart = [call.name for call in self.dropouts.calls if call.layout.axis is not None]
        if properties.mixes and apart:
            raise ValueError(
                "the output of one example depends on other examples here, which it did not when the network was read, so "
                f"the masks of {', '.join(apart)} are not those of its passes: read it with several examples that differ"
            )
        return properties

    def noise_shapes(self, x: Inputs) -> dict[str, tuple[float, torch.Size | None]]:
        """Drop rate and shape of one mask for all rows of x, for every dropout of the network that no weight carries.

        The shape is None where a mask for all rows does not exist, since it is unknown which entries belong to which row.
        """
        if not self.dropouts.noise:
            return {}
        seen: list[torch.Size] = []
        with self._trial().restored(training=True), torch.no_grad():
            self._call(self.weight_sites(), x, seen=seen)
        return {
            call.name: (call.drop_rate, shape if call.layout.joint else None)
            for call, shape in zip(self.dropouts.calls, seen, strict=True)
            if call.weight is None
        }

    def _draw(self, weights: Mapping[str, Tensor], x: Inputs) -> Tensor:
        """The outputs of one draw of the weights.

        Args:
            weights: by site; masks of the dropouts that no weight carries may be among them, by name. Others are drawn.
        """
        return self.masked(*self.dropouts.apart(weights), x)

    def masked(self, weights: Mapping[str, Tensor], masks: Mapping[str, Mask], x: Inputs) -> Tensor:
        """The outputs ``[N, ...]`` for weights by site and masks by name; a dropout without a mask drops nothing."""
        return self._call(weights, x, masks)

    def _call(
        self,
        weights: Mapping[str, Tensor],
        x: Inputs,
        masks: Mapping[str, Mask] | None = None,
        seen: list[torch.Size] | None = None,
    ) -> Tensor:
        """Run the network with these masks; a call without a mask drops nothing."""
        with self.dropouts.run(masks or {}, num_rows(x), seen):
            return super()._call(weights, x)
