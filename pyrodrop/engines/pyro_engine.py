"""The engine that runs Pyro's handlers at every step, for any model and guide."""

from __future__ import annotations

import torch
from torch import Tensor

from pyrodrop.engines.engine import Plan, set_rates
from pyrodrop.engines.graph import Batch
from pyrodrop.engines.loss import Loss


class Pyro:
    """Evaluates the loss with Pyro's handlers at every step.

    Args:
        loss: to minimise.
        optimizer: of the loss's parameters.
    """

    name = "pyro"

    def __init__(self, loss: Loss, optimizer: torch.optim.Optimizer) -> None:
        self.loss, self.optimizer = loss, optimizer

    def begin(self, plan: Plan) -> None:
        self.plan = plan

    def step(self, batch: Batch, index: int) -> Tensor:
        terms = self.loss.terms(batch)
        power, weight = self.plan.factors[index]
        self.optimizer.zero_grad()
        (power * terms.nll + weight * terms.kl_weights + terms.kl_hyper).backward()
        set_rates(self.optimizer, self.plan.rates[index])
        self.optimizer.step()
        return torch.stack([terms.nll.detach(), terms.kl.detach()])

    def finish(self, steps: int) -> None:
        pass
