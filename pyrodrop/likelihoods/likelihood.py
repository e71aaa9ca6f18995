"""What every likelihood answers."""

from __future__ import annotations

from typing import Any

from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from pyrodrop.likelihoods.shapes import aligned, elements, per_row
from pyrodrop.modules import LocalModule
from pyrodrop.scaling import Standardize


class Likelihood(LocalModule):
    """The distribution of an observation given the network's output.

    A network works in standardised units; `targets` turns them into the units of y. Every argument and result here
    that is not called an output is in the units of y. A likelihood of one's own needs `forward`, and `location` where f
    is something else than the outputs in the units of y.
    """

    def forward(self, output: Tensor, targets: Standardize) -> TorchDistribution:
        """The distribution of y given outputs ``[..., N, *outputs]``, where ``...`` are draws.

        Batch shape ``[..., N]``; further batch dimensions are taken as parts of one example (`likelihoods.per_row`).

        Args:
            output: what the network returns, at least two-dimensional.
            targets: the standardisation of y.
        """
        raise TypeError(f"{type(self).__name__} is a likelihood without forward(output, targets)")

    def location(self, output: Tensor, targets: Standardize) -> Tensor:
        """The function f that users look at, in the units of y where y has units: shape ``[..., N, ...]``."""
        return targets.inverse(output)

    def as_target(self, y: Tensor) -> Tensor:
        """y in the form that this likelihood scores, its shape apart; raises a ValueError if it cannot be."""
        return y

    def outputs(self, targets: int) -> int:
        """How many outputs a network needs for `targets` columns of y."""
        return targets

    def check(self, y: Tensor, output: Tensor, targets: Standardize) -> None:
        """Raise a ValueError, before anything is trained, if y is nothing that this likelihood can have drawn.

        Args:
            y: all observations, ``[N, ...]``.
            output: the network's outputs for the first rows, ``[n, *outputs]`` with n >= 1.
            targets: the standardisation of y.
        """
        y = self.as_target(y)
        if y.is_floating_point() and y.dim() == 2 and output.dim() == 2 and output.shape[1] != self.outputs(y.shape[1]):
            raise ValueError(
                f"y has {y.shape[1]} columns, for which {self.describe()} needs a network with "
                f"{self.outputs(y.shape[1])} outputs; this one has {output.shape[1]}"
            )
        law = per_row(self(output, targets), 1)
        y = aligned(y, law, len(y))
        if constraints.is_dependent(type(elements(law)).support):  # on the outputs: only these rows have theirs
            y = y[: len(output)]
        support: Any = elements(law).support
        inside = support.check(y)
        if not bool(inside.all()):
            wrong = y[~inside].flatten()[0].item()
            raise ValueError(f"y must be a value that {self.describe()} can take, {support}; got {wrong:g} among them")

    def describe(self) -> str:
        """One line for tables and saved files."""
        return type(self).__name__
