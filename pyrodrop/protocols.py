"""Protocols of models and guides that can do more than be called as a Pyro program.

model    NetworkModel       the class of `pyrodrop.models`, which training and prediction support in full
         HasWeights         lists its weights with their initial values, as guides of `pyrodrop.guides` need
guide    Guide, Ensemble    the classes of `pyrodrop.guides`
         HasPosterior       has a distribution of every weight
         HasDraws           samples all weights at once
         HasRows            computes its posterior from all rows of the data
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from pyro.distributions import TorchDistribution
from torch import Tensor


@runtime_checkable
class HasWeights(Protocol):
    """A model that lists the weights and hyperparameters that it samples, with initial values for training."""

    def weight_sites(self) -> dict[str, Tensor]: ...

    def hyper_sites(self) -> dict[str, dict[str, Tensor]]: ...


@runtime_checkable
class HasPosterior(Protocol):
    """A guide with the posterior of the weight `name`, a distribution whose event shape is the shape of the weight."""

    def posterior(self, name: str) -> TorchDistribution: ...


@runtime_checkable
class HasDraws(Protocol):
    """A guide that samples every weight outside of any Pyro trace: tensors ``[num_samples, ...]`` by site name."""

    def draw(self, num_samples: int) -> Mapping[str, Tensor]: ...


@runtime_checkable
class HasRows(Protocol):
    """A guide whose posterior is computed from its model and all rows of the data, both of which it keeps."""

    model: Any

    def condition_on(self, x: Tensor, y: Tensor) -> None: ...
