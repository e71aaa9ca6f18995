"""The loss that engines minimise, as Pyro evaluates it and as a graph.

loss = likelihood_power * nll + kl_weight * kl(weights) + kl(hyperparameters)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from pyrodrop.compiled.batch import Arguments, Shapes
from pyrodrop.compiled.buffers import Buffers
from pyrodrop.compiled.graph import Graph, Parameter, differs_from_pyro, trace
from pyrodrop.compiled.objective import Objective
from pyrodrop.compiled.untraceable import Untraceable
from pyrodrop.module_flags import has_hooks


class Graphs(Protocol):
    """A loss with graphs to compile: `Loss`, or `StackedLoss`."""

    @property
    def leaves(self) -> list[Tensor]: ...

    @property
    def buffers(self) -> list[Tensor]: ...

    @property
    def precision(self) -> torch.dtype | None: ...

    def graph(self, batch: Arguments) -> Any: ...

    def refresh(self) -> bool: ...


@dataclass(frozen=True, eq=False)
class Loss:
    """The loss of a model and a guide as a function of their parameters and a minibatch.

    Attributes:
        objective: the kind of loss, with model, guide and precision.
        parameters: what the optimiser changes, by name.
        moving: the buffers that a call of model or guide updates.
        changes: the Python attributes that a call changes, as words for a message; empty if there are none. A trace would
            freeze them.
    """

    objective: Objective
    parameters: Mapping[str, Parameter]
    moving: Buffers = field(default_factory=Buffers)
    changes: str = ""
    _graphs: dict[Shapes, Graph] = field(default_factory=dict, init=False, repr=False)
    _refused: dict[Shapes, str] = field(default_factory=dict, init=False, repr=False)

    @property
    def precision(self) -> torch.dtype | None:
        """Dtype of matrix products under autocast; None for the dtype of the parameters."""
        return self.objective.precision

    @property
    def trained(self) -> dict[str, Tensor]:
        """The unconstrained parameters that require a gradient now, by name."""
        found = {name: parameter.unconstrained for name, parameter in self.parameters.items()}
        return {name: leaf for name, leaf in found.items() if leaf.requires_grad}

    @property
    def leaves(self) -> list[Tensor]:
        """The unconstrained parameters that require a gradient now."""
        return list(self.trained.values())

    @property
    def buffers(self) -> list[Tensor]:
        """The buffers that a step updates."""
        return self.moving.tensors()

    def refresh(self) -> bool:
        """Have all graphs use the present values of the tensors that model and guide hold; whether these have changed."""
        return any([graph.refresh() for graph in self._graphs.values()])  # noqa: C419  all of them

    def backward(self, batch: Arguments, factors: Any) -> Tensor:
        """Add the gradient to that of the parameters, by Pyro; returns nll and kl, ``[2]``."""
        return self.objective.backward(batch, factors)

    def gradients(self, batch: Arguments, factors: Any) -> tuple[Tensor, list[Tensor]]:
        """nll and kl, ``[2]``, and the gradient of every parameter, by Pyro."""
        return self.objective.gradients(batch, factors, self.leaves)

    def graph(self, batch: Arguments) -> Graph:
        """The graph of the gradient for minibatches of this shape, traced at the first request.

        Raises:
            Untraceable: a call changes Python attributes, or see `pyrodrop.compiled.graph.trace`; at every request.
        """
        if self.changes:
            raise Untraceable(f"{self.changes}, which a trace would freeze")
        if any(map(has_hooks, self.leaves)):
            raise Untraceable("a parameter has a hook")
        if batch.shapes in self._refused:
            raise Untraceable(self._refused[batch.shapes])
        if batch.shapes not in self._graphs:
            try:
                self._graphs[batch.shapes] = trace(self.objective, self.trained, batch, self.moving)
            except Untraceable as error:
                self._refused[batch.shapes] = str(error)
                raise
        return self._graphs[batch.shapes]

    def forget(self) -> None:
        """Drop all graphs, so that the next are traced anew."""
        self._graphs.clear()
        self._refused.clear()

    def differs(self, batch: Arguments) -> str:
        """What the graph for such minibatches computes otherwise than Pyro; empty if nothing, or without a graph."""
        graph = self._graphs.get(batch.shapes)
        return "" if graph is None else differs_from_pyro(graph, self.objective, self.trained, batch, self.moving)
