"""Base class of the priors."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.distributions.units import InputUnits
from pyrodrop.parts import Part


class Prior(Part, ABC):
    """A prior over weights of any shape.

    A model calls `for_site` when it samples a weight, inside its Pyro trace. A prior with latent hyperparameters samples
    them there, at sites whose names start with the name of the weight, and lists them in `hyper_sites`. A prior without
    latent hyperparameters only implements `expand` and `describe`.
    """

    @abstractmethod
    def expand(self, *shape: int, like: Tensor | None = None) -> TorchDistribution:
        """The prior of a weight of this shape, a distribution whose `event_shape` is `shape`.

        Args:
            shape: shape of the weight.
            like: tensor that determines dtype and device of the distribution; torch's defaults if None.
        """

    def for_site(self, name: str, like: Tensor, units: InputUnits | None = None) -> TorchDistribution:
        """The prior of one weight; samples the latent hyperparameters if there are any.

        Args:
            name: name of the site of the weight.
            like: initial value of the weight, with its shape, dtype and device.
            units: input units of the weight, or None if they are unknown.
        """
        return self.expand(*like.shape, like=like)

    def initial(self, value: Tensor) -> Tensor:
        """The initial value of a weight: `value`, that of the network, unless the prior determines it."""
        return value

    def hyper_sites(self, name: str, like: Tensor, units: InputUnits | None = None) -> dict[str, Tensor]:
        """Site names of the positive hyperparameters that `for_site` samples, with initial values for the guide.

        The arguments are those of `for_site`.
        """
        return {}

    def numbers(self) -> dict[str, Tensor]:
        """Fixed hyperparameters that are stored as tensors, by name; replicates of a fit can have different values."""
        return {}

    @abstractmethod
    def describe(self) -> str:
        """A description in one line, for tables and saved files."""


def full(shape: torch.Size | tuple[int, ...], value: float | Tensor, like: Tensor | None) -> Tensor:
    """`value` expanded to a tensor of this shape, with the dtype and device of `like`."""
    dtype, device = (torch.get_default_dtype(), None) if like is None else (like.dtype, like.device)
    scalar = torch.as_tensor(value, dtype=dtype, device=device)
    return scalar.expand(shape)
