"""A loss with the graphs of its gradient, one for each shape of minibatch."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from pyrodrop.compiled.graph import Graph, differs_from_pyro, trace
from pyrodrop.compiled.untraceable import Untraceable
from pyrodrop.module_flags import has_hooks
from pyrodrop.steps import Arguments, Buffers, Loss, Shapes


class Graphs(Protocol):
    """A loss with graphs to compile: `Recorded`, or `StackedLoss`."""

    @property
    def leaves(self) -> list[Tensor]: ...

    @property
    def buffers(self) -> list[Tensor]: ...

    def graph(self, batch: Arguments) -> Any: ...

    def refresh(self) -> bool: ...


class Recorded:
    """A loss and the graphs of its gradient, which stay with the loss."""

    def __init__(self, loss: Loss) -> None:
        self.loss: Loss = loss
        self._graphs: dict[Shapes, Graph | str] = loss.recordings  # or why there is none

    @property
    def leaves(self) -> list[Tensor]:
        """The unconstrained parameters that require a gradient now."""
        return self.loss.leaves

    @property
    def moving(self) -> Buffers:
        """The buffers that a step updates."""
        return self.loss.moving

    @property
    def buffers(self) -> list[Tensor]:
        """Their present values, by reference."""
        return self.loss.buffers

    def refresh(self) -> bool:
        """Update all graphs to the present tensors of model and guide. Returns whether these have changed."""
        return any([graph.refresh() for graph in self._graphs.values() if isinstance(graph, Graph)])  # noqa: C419  all

    def graph(self, batch: Arguments) -> Graph:
        """The graph of the gradient for minibatches of this shape, recorded at the first request.

        Raises:
            Untraceable: a call changes Python attributes, a parameter has a hook, or as `pyrodrop.compiled.graph.trace`.
        """
        if self.loss.changes:
            raise Untraceable(f"{self.loss.changes}, which a trace would freeze")
        if any(map(has_hooks, self.leaves)):
            raise Untraceable("a parameter has a hook")
        if batch.shapes not in self._graphs:
            try:
                self._graphs[batch.shapes] = trace(self.loss.objective, self.loss.trained, batch, self.moving)
            except Untraceable as error:
                self._graphs[batch.shapes] = str(error)
        graph = self._graphs[batch.shapes]
        if isinstance(graph, str):
            raise Untraceable(graph)
        return graph

    def forget(self) -> None:
        """Drop all graphs, so that the next are recorded anew."""
        self._graphs.clear()

    def differs(self, batch: Arguments) -> str:
        """As `differs_from_pyro` for the graph of such minibatches; an empty string if there is no graph."""
        graph = self._graphs.get(batch.shapes)
        if not isinstance(graph, Graph):
            return ""
        return differs_from_pyro(graph, self.loss.objective, self.loss.trained, batch, self.moving)
