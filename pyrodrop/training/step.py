"""A training step, by Pyro: draw from the guide, evaluate the loss, differentiate, update.

    loss = nll + kl_weight * kl(weights) + kl(hyperparameters)

This is the definition, for any model and guide; the faster engines of `pyrodrop.compiled` agree with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyrodrop.prediction.agreement import check_call, innermost
from pyrodrop.steps import Arguments, Engine, Objective, Update, making
from pyrodrop.training.elbo import elbo_terms, terms_of


class ByPyro(Engine):
    """Steps by Pyro's handlers, for any model and guide.

    Args:
        as_svi: whether a parameter that has had a gradient and gets none gets 0, as in `pyro.infer.SVI` and in recorded
            steps: the optimiser's momentum then continues to move it.
    """

    name = "pyro"

    def __init__(self, objective: Objective, optimizer: torch.optim.Optimizer, *, as_svi: bool = False) -> None:
        self.objective, self.update, self.as_svi = objective, Update(optimizer), as_svi

    def step(self, batch: Arguments, index: int) -> Tensor:
        self.update.clear()
        terms = self.objective.backward(batch, self.plan.factors[index])
        if self.as_svi:
            self.update.fill()
        self.update(self.plan.rates[index])
        return terms

    def finish(self, steps: int) -> None:
        self.update.clear()


class MeanField(Objective):
    """factors[0] nll + factors[1] kl(weights) + kl(hyperparameters), with divergences in closed form where one exists."""

    def backward(self, batch: Arguments, factors: Any) -> Tensor:
        terms, loss = self._loss(batch, factors)
        loss.backward()  # type: ignore[no-untyped-call]
        return terms

    def _loss(self, batch: Arguments, factors: Any) -> tuple[Tensor, Tensor]:
        with making(batch):
            terms = elbo_terms(self.model, self.guide, *batch.args, **batch.kwargs)
        loss = factors[0] * terms.nll + factors[1] * terms.kl_weights + terms.kl_hyper
        return torch.stack([terms.nll.detach(), terms.kl.detach()]), loss

    def terms(self, batch: Arguments) -> Tensor:
        with torch.no_grad():
            return self._loss(batch, (1.0, 1.0))[0]

    def gradients(self, batch: Arguments, factors: Any, leaves: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        terms, loss = self._loss(batch, factors)
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        return terms, [gradient.to_dense() for gradient in gradients]  # of nn.Embedding(sparse=True)

    def check(self, batch: Arguments) -> None:
        """Call guide and model once: compare their sites, and evaluate the terms.

        Raises:
            TypeError, ValueError: as `check_call`; a draw of the guide that its distribution's parameters cannot
                differentiate, or a site without a density.
        """
        with making(batch):
            drawn, called = check_call(self.model, self.guide, *batch.args, **batch.kwargs)
            for site in drawn.nodes.values():
                if site["type"] != "sample" or site["is_observed"] or site_is_subsample(site) or site["fn"].has_rsample:
                    continue
                if site["fn"].log_prob(site["value"]).requires_grad:
                    kind = type(innermost(site["fn"])).__name__
                    raise ValueError(
                        "objective None differentiates draws of the guide by its parameters, which is impossible for the "
                        f"site {site['name']!r} with its {kind} distribution: the gradient would lack a term. Pass "
                        "objective=pyro.infer.Trace_ELBO(), or mark the site with infer={'enumerate': 'parallel'} and pass "
                        "objective=pyro.infer.TraceEnum_ELBO(max_plate_nesting=...), which sums over its values"
                    )
            terms_of(self.model, drawn, called)
