"""The loss of a model and a guide as a function of their parameters and the arguments of a step.

loss = nll + kl_weight * kl(weights) + kl(hyperparameters), or the value of a loss object of Pyro.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from pyro import poutine
from pyro.infer import (
    ELBO,
    JitTrace_ELBO,
    JitTraceEnum_ELBO,
    JitTraceGraph_ELBO,
    JitTraceMeanField_ELBO,
)
from torch import Tensor
from torch.distributions import constraints

from pyrodrop.devices import made_on
from pyrodrop.steps.batch import Arguments, Call
from pyrodrop.steps.buffers import Buffers

_JITTED = JitTrace_ELBO, JitTraceEnum_ELBO, JitTraceGraph_ELBO, JitTraceMeanField_ELBO


class Parameter(NamedTuple):
    """A parameter as the optimiser sees it, without constraint, and the constraint of its value."""

    unconstrained: Tensor
    constraint: constraints.Constraint


def making(batch: Arguments) -> AbstractContextManager[Any]:
    """Within the block, tensors that a Pyro program makes from numbers are on the device of its arguments."""
    return made_on(batch.device) if isinstance(batch, Call) else nullcontext()


class Objective(ABC):
    """A loss of a model and a guide as a function of their arguments, differentiated by the parameters that Pyro sees.

    Args:
        model, guide: with the estimator applied.

    Attributes:
        jitted: whether `torch.jit` traces the loss; another trace around that would break `torch.jit` for the whole process.
    """

    jitted: bool = False

    def __init__(self, model: Callable[..., Any], guide: Callable[..., Any]) -> None:
        self.model: Callable[..., Any] = model
        self.guide: Callable[..., Any] = guide

    @abstractmethod
    def terms(self, batch: Arguments) -> Tensor:
        """nll and kl, ``[2]``, without gradient."""

    @abstractmethod
    def backward(self, batch: Arguments, factors: Any) -> Tensor:
        """Add the gradient to that of the parameters; returns nll and kl, ``[2]``.

        Args:
            batch: arguments of model and guide.
            factors: of nll and of the weights' KL divergence in the loss.
        """

    @abstractmethod
    def gradients(self, batch: Arguments, factors: Any, leaves: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """nll and kl, ``[2]``, and the gradient of every leaf, 0 if the loss does not depend on it; no ``.grad`` changes."""

    @property
    def guesses(self) -> bool:
        """Whether Pyro calls guide and model once before the first step; known after a call of the loss."""
        return False

    def guess(self, batch: Arguments) -> None:
        """Make the calls of `guesses`, to draw the random numbers that Pyro draws before the first step."""
        with poutine.block(), making(batch):
            drawn = poutine.trace(self.guide).get_trace(*batch.args, **batch.kwargs)
            poutine.trace(poutine.replay(self.model, trace=drawn)).get_trace(*batch.args, **batch.kwargs)


class OfPyro(Objective):
    """A loss object of Pyro, which estimates and differentiates as under `pyro.infer.SVI`; its loss stands for nll.

    Args:
        loss: the user's object, which stays as it is.
        model, guide: as of `Objective`.
    """

    def __init__(self, loss: ELBO, model: Callable[..., Any], guide: Callable[..., Any]) -> None:
        super().__init__(model, guide)
        self.loss: Any = copy.copy(loss)  # some store what they learn at their first call
        self.jitted = isinstance(loss, _JITTED)
        self._nesting: Any = getattr(loss, "max_plate_nesting", None)

    @property
    def guesses(self) -> bool:
        """Whether the loss object has found the number of nested plates by an extra call of guide and model."""
        return bool(getattr(self.loss, "max_plate_nesting", None) != self._nesting)

    def terms(self, batch: Arguments) -> Tensor:
        with torch.no_grad():
            return self._called(self.loss.loss, batch)

    def backward(self, batch: Arguments, factors: Any) -> Tensor:
        return self._called(self.loss.loss_and_grads, batch)

    def _called(self, method: Callable[..., Any], batch: Arguments) -> Tensor:
        with making(batch):
            value = method(self.model, self.guide, *batch.args, **batch.kwargs)
        value = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64, device=batch.device)
        return torch.stack([value, torch.zeros_like(value)])

    def gradients(self, batch: Arguments, factors: Any, leaves: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        kept = [leaf.grad for leaf in leaves]
        try:
            for leaf in leaves:
                leaf.grad = None
            terms = self.backward(batch, factors)
            return terms, [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
        finally:
            for leaf, gradient in zip(leaves, kept, strict=True):
                leaf.grad = gradient


@dataclass(frozen=True, eq=False)
class Loss:
    """The loss that training minimises, with all that a step changes.

    Attributes:
        objective: the kind of loss, with model and guide.
        parameters: those that the optimiser changes, by name.
        moving: the buffers that a call of model or guide updates.
        changes: the Python attributes that a call changes, as words for a message; empty if there are none.
        recordings: graphs of the loss that `pyrodrop.compiled` keeps.
    """

    objective: Objective
    parameters: Mapping[str, Parameter]
    moving: Buffers = field(default_factory=Buffers)
    changes: str = ""
    recordings: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def trained(self) -> dict[str, Tensor]:
        """The unconstrained parameters that require a gradient now, by name."""
        unconstrained = {name: parameter.unconstrained for name, parameter in self.parameters.items()}
        return {name: leaf for name, leaf in unconstrained.items() if leaf.requires_grad}

    @property
    def leaves(self) -> list[Tensor]:
        """The unconstrained parameters that require a gradient now."""
        return list(self.trained.values())

    @property
    def buffers(self) -> list[Tensor]:
        """The buffers that a step updates."""
        return self.moving.tensors()
