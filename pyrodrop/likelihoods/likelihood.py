"""What every likelihood answers."""

from __future__ import annotations

from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.modules import LocalModule
from pyrodrop.scaling import Standardize


class Likelihood(LocalModule):
    """The law of an observation given the network's output.

    A network works in standardised units; `targets` turns them into the units of y. Every argument and result here
    that is not called an output is in the units of y.
    """

    def forward(self, output: Tensor, targets: Standardize) -> TorchDistribution:
        """The law of y, batch shape ``[..., N]``.

        Args:
            output: what the network returns, shape ``[..., N, outputs]``.
            targets: the standardisation of y.
        """
        raise TypeError(f"{type(self).__name__} is a likelihood without forward(output, targets)")

    def location(self, output: Tensor, targets: Standardize) -> Tensor:
        """The function f that users look at, in the units of y where y has units: shape ``[..., N, D]``."""
        return targets.inverse(output)

    def as_target(self, y: Tensor) -> Tensor:
        """y as this likelihood scores it; raises a ValueError if it cannot."""
        return y.unsqueeze(-1) if y.dim() == 1 else y

    def outputs(self, targets: int) -> int:
        """How many outputs a network needs for `targets` columns of y."""
        return targets

    def describe(self) -> str:
        """One line for tables and saved files."""
        return type(self).__name__
