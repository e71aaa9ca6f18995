"""What every prior answers."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.distributions.units import InputUnits


class Prior(ABC):
    """A prior over weights of any shape.

    A model calls `for_site` where it draws the weight, inside its trace, so a prior with hyperparameters of its own may
    draw them there under names that begin with the weight's, and says which (`hyper_sites`). One without implements
    `expand` alone.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for method in (cls.for_site, cls.hyper_sites):
            if len(inspect.signature(method).parameters) < 4:
                raise TypeError(
                    f"a prior is told where a weight's input units are, {method.__name__}(self, name, like, units=None); "
                    f"{cls.__name__}.{method.__name__} takes no units: add the argument"
                )

    @abstractmethod
    def expand(self, *shape: int, like: Tensor | None = None) -> TorchDistribution:
        """The prior of a weight of this shape: a distribution with that `event_shape`.

        Args:
            shape: the weight's shape.
            like: a tensor whose dtype and device the distribution takes; torch's defaults if None.
        """

    def for_site(self, name: str, like: Tensor, units: InputUnits | None = None) -> TorchDistribution:
        """The prior of the weight `name`, shaped as `like`; `units` says where its input units are, if that is known."""
        return self.expand(*like.shape, like=like)

    def hyper_sites(self, name: str, like: Tensor, units: InputUnits | None = None) -> dict[str, Tensor]:
        """Names of the positive hyperparameters that `for_site` draws, with where a guide's factor should start."""
        return {}

    def numbers(self) -> dict[str, Tensor]:
        """Hyperparameters held as tensors, which replicates of a fit may have different values of."""
        return {}

    @abstractmethod
    def describe(self) -> str:
        """One line for tables and saved files."""


def full(shape: torch.Size | tuple[int, ...], value: float | Tensor, like: Tensor | None) -> Tensor:
    """`value` as a tensor of this shape, without memory of its own."""
    dtype, device = (torch.get_default_dtype(), None) if like is None else (like.dtype, like.device)
    scalar = torch.as_tensor(value, dtype=dtype, device=device)
    return scalar.expand(shape)
