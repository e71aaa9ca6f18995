"""The loss that engines minimise, as Pyro evaluates it and as a graph.

loss = likelihood_power * nll + kl_weight * kl(weights) + kl(hyperparameters)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from pyrodrop.elbo import Terms
from pyrodrop.engines.buffers import Buffers
from pyrodrop.engines.graph import Batch, Graph, Parameter, Shapes, evaluate, trace
from pyrodrop.engines.untraceable import Untraceable


class Graphs(Protocol):
    """A loss with graphs to compile: `Loss`, or `StackedLoss`."""

    @property
    def leaves(self) -> list[Tensor]: ...

    @property
    def buffers(self) -> list[Tensor]: ...

    @property
    def precision(self) -> torch.dtype | None: ...

    def graph(self, batch: Batch) -> Any: ...

    def refresh(self) -> bool: ...


@dataclass(frozen=True, eq=False)
class Loss:
    """The loss of a model and a guide as a function of their parameters and a minibatch.

    Attributes:
        model, guide: with the estimator applied.
        parameters: what the optimiser changes, by name.
        precision: dtype of matrix products under autocast; None for the dtype of the parameters.
        moving: the buffers that a call of model or guide updates.
        changes: the Python attributes that a call changes, as words for a message; empty if there are none. A trace would
            freeze them.
    """

    model: Callable[..., Any]
    guide: Callable[..., Any]
    parameters: Mapping[str, Parameter]
    precision: torch.dtype | None = None
    moving: Buffers = field(default_factory=Buffers)
    changes: str = ""
    _graphs: dict[Shapes, Graph] = field(default_factory=dict, init=False, repr=False)
    _refused: dict[Shapes, str] = field(default_factory=dict, init=False, repr=False)

    @property
    def leaves(self) -> list[Tensor]:
        """The unconstrained parameters."""
        return [parameter.unconstrained for parameter in self.parameters.values()]

    @property
    def buffers(self) -> list[Tensor]:
        """The buffers that a step updates."""
        return self.moving.tensors()

    def refresh(self) -> bool:
        """Have all graphs use the present values of the tensors that model and guide hold; whether these have changed."""
        return any([graph.refresh() for graph in self._graphs.values()])  # noqa: C419  all of them

    def terms(self, batch: Batch) -> Terms:
        """The terms of the loss, evaluated by Pyro."""
        return evaluate(self.model, self.guide, batch, self.precision)

    def graph(self, batch: Batch) -> Graph:
        """The graph of the gradient for minibatches of this shape, traced at the first request.

        Raises:
            Untraceable: a call changes Python attributes, or see `pyrodrop.engines.graph.trace`; at every request.
        """
        if self.changes:
            raise Untraceable(f"{self.changes}, which a trace would freeze")
        if batch.shapes in self._refused:
            raise Untraceable(self._refused[batch.shapes])
        if batch.shapes not in self._graphs:
            try:
                self._graphs[batch.shapes] = trace(
                    self.model, self.guide, self.parameters, batch, self.precision, self.moving
                )
            except Untraceable as error:
                self._refused[batch.shapes] = str(error)
                raise
        return self._graphs[batch.shapes]
