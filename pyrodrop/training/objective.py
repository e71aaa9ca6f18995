"""Minus the ELBO with closed-form divergences, which training minimises unless `objective` is a loss object of Pyro."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyrodrop.agreement import innermost
from pyrodrop.elbo import elbo_terms
from pyrodrop.steps import Arguments, Objective
from pyrodrop.steps.loss import making


class MeanField(Objective):
    """factors[0] nll + factors[1] kl(weights) + kl(hyperparameters), with divergences in closed form where one exists."""

    def terms(self, batch: Arguments) -> Tensor:
        return self._loss(batch, (1.0, 1.0))[0]

    def backward(self, batch: Arguments, factors: Any) -> Tensor:
        terms, loss = self._loss(batch, factors)
        loss.backward()  # type: ignore[no-untyped-call]
        return terms

    def gradients(self, batch: Arguments, factors: Any, leaves: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        terms, loss = self._loss(batch, factors)
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        return terms, [gradient.to_dense() for gradient in gradients]  # of nn.Embedding(sparse=True)

    def check(self, batch: Arguments) -> None:
        """Raise a ValueError for draws of the guide that cannot be differentiated by their distribution's parameters."""
        with making(batch):
            trace: Any = poutine.trace(self.guide).get_trace(*batch.args, **batch.kwargs)
        for site in trace.nodes.values():
            if site["type"] != "sample" or site["is_observed"] or site_is_subsample(site) or site["fn"].has_rsample:
                continue
            if site["fn"].log_prob(site["value"]).requires_grad:
                kind = type(innermost(site["fn"])).__name__
                raise ValueError(
                    "objective None differentiates draws of the guide by its parameters, which is impossible for the site "
                    f"{site['name']!r} with its {kind} distribution: the gradient would lack a term. Pass "
                    "objective=pyro.infer.Trace_ELBO(), or mark the site with infer={'enumerate': 'parallel'} and pass "
                    "objective=pyro.infer.TraceEnum_ELBO(max_plate_nesting=...), which sums over its values"
                )

    def _loss(self, batch: Arguments, factors: Any) -> tuple[Tensor, Tensor]:
        with making(batch):
            terms = elbo_terms(self.model, self.guide, *batch.args, **batch.kwargs)
        loss = factors[0] * terms.nll + factors[1] * terms.kl_weights + terms.kl_hyper
        return torch.stack([terms.nll.detach(), terms.kl.detach()]), loss
