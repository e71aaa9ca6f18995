"""What training minimises: minus the ELBO with closed-form divergences, or a loss object of Pyro."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from pyro import poutine
from pyro.infer import (
    ELBO,
    JitTrace_ELBO,
    JitTraceEnum_ELBO,
    JitTraceGraph_ELBO,
    JitTraceMeanField_ELBO,
    TraceEnum_ELBO,
)
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import Independent

from pyrodrop.compiled.batch import Arguments
from pyrodrop.compiled.private_apis import costs_weighted, without_nan_warnings
from pyrodrop.elbo import elbo_terms

_JITTED = JitTrace_ELBO, JitTraceEnum_ELBO, JitTraceGraph_ELBO, JitTraceMeanField_ELBO


class Objective(ABC):
    """A loss of a model and a guide as a function of their arguments, differentiated by the parameters that Pyro sees.

    Args:
        model, guide: with the estimator applied.
        precision: dtype of matrix products under autocast; None for the dtype of the parameters.

    Attributes:
        jitted: whether `torch.jit` traces the loss, which another trace would leave broken for the whole process.
    """

    jitted: bool = False

    def __init__(
        self, model: Callable[..., Any], guide: Callable[..., Any], precision: torch.dtype | None = None
    ) -> None:
        self.model: Callable[..., Any] = model
        self.guide: Callable[..., Any] = guide
        self.precision: torch.dtype | None = precision

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
        """nll and kl, ``[2]``, and the gradient of every leaf: 0 where the loss does not depend on it."""

    @property
    def guesses(self) -> bool:
        """Whether there are calls that Pyro makes once, before the first step; known once the loss has been called."""
        return False

    def guess(self, batch: Arguments) -> None:
        """Make these calls of guide and model, which draw the random numbers that Pyro draws before the first step."""
        with poutine.block():
            drawn = poutine.trace(self.guide).get_trace(*batch.args, **batch.kwargs)
            poutine.trace(poutine.replay(self.model, trace=drawn)).get_trace(*batch.args, **batch.kwargs)

    def recordable(self) -> AbstractContextManager[Any]:
        """The same operations within the block, whatever the values of tensors."""
        return nullcontext()

    def cast(self, batch: Arguments) -> AbstractContextManager[Any]:
        """Matrix products in `precision` within the block."""
        return torch.autocast(batch.device.type, dtype=self.precision, enabled=self.precision is not None)


class MeanField(Objective):
    """factors[0] nll + factors[1] kl(weights) + kl(hyperparameters), with divergences in closed form where there are."""

    def terms(self, batch: Arguments) -> Tensor:
        return self._loss(batch, (1.0, 1.0))[0]

    def backward(self, batch: Arguments, factors: Any) -> Tensor:
        terms, loss = self._loss(batch, factors)
        loss.backward()  # type: ignore[no-untyped-call]
        return terms

    def gradients(self, batch: Arguments, factors: Any, leaves: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        terms, loss = self._loss(batch, factors)
        return terms, list(torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True))

    def check(self, batch: Arguments) -> None:
        """Raise a ValueError for draws of the guide that cannot be differentiated by their distribution's parameters."""
        trace: Any = poutine.trace(self.guide).get_trace(*batch.args, **batch.kwargs)
        for site in trace.nodes.values():
            if site["type"] != "sample" or site["is_observed"] or site_is_subsample(site) or site["fn"].has_rsample:
                continue
            if site["fn"].log_prob(site["value"]).requires_grad:
                kind = type(_elements(site["fn"])).__name__
                raise ValueError(
                    "objective None differentiates draws of the guide by its parameters, which is impossible for the site "
                    f"{site['name']!r} with its {kind} distribution: the gradient would lack a term. Pass "
                    "objective=pyro.infer.Trace_ELBO(), or mark the site with infer={'enumerate': 'parallel'} and pass "
                    "objective=pyro.infer.TraceEnum_ELBO(max_plate_nesting=...), which sums over its values"
                )

    def _loss(self, batch: Arguments, factors: Any) -> tuple[Tensor, Tensor]:
        with self.cast(batch):
            terms = elbo_terms(self.model, self.guide, *batch.args, **batch.kwargs)
        loss = factors[0] * terms.nll + factors[1] * terms.kl_weights + terms.kl_hyper
        return torch.stack([terms.nll.detach(), terms.kl.detach()]), loss


class OfPyro(Objective):
    """A loss object of Pyro, which estimates and differentiates as under `pyro.infer.SVI`; its loss stands for nll.

    Args:
        loss: the user's object, which stays as it is.
        model, guide, precision: as of `Objective`.
    """

    def __init__(
        self, loss: ELBO, model: Callable[..., Any], guide: Callable[..., Any], precision: torch.dtype | None = None
    ) -> None:
        super().__init__(model, guide, precision)
        self.loss: Any = copy.copy(loss)  # some note what they find out at their first call
        self.jitted = isinstance(loss, _JITTED)
        self._nesting: Any = getattr(loss, "max_plate_nesting", None)

    @property
    def guesses(self) -> bool:
        """Whether the loss object finds the number of nested plates by a call of guide and model of its own."""
        return bool(getattr(self.loss, "max_plate_nesting", None) != self._nesting)

    def terms(self, batch: Arguments) -> Tensor:
        with torch.no_grad():
            return self._called(self.loss.loss, batch)

    def backward(self, batch: Arguments, factors: Any) -> Tensor:
        return self._called(self.loss.loss_and_grads, batch)

    def _called(self, method: Callable[..., Any], batch: Arguments) -> Tensor:
        with self.cast(batch):
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

    def recordable(self) -> AbstractContextManager[Any]:
        block = ExitStack()
        block.enter_context(without_nan_warnings())
        if isinstance(self.loss, TraceEnum_ELBO):
            block.enter_context(costs_weighted())
        return block


def _elements(distribution: Any) -> Any:
    return distribution.base_dist if isinstance(distribution, Independent) else distribution
