"""Every step by Pyro's handlers: any model, any guide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyrodrop.engines.engine import Plan, set_rates
from pyrodrop.engines.graph import Batch, evaluate


class Pyro:
    """Every step by Pyro's handlers."""

    name = "pyro"

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        optimizer: torch.optim.Optimizer,
        precision: torch.dtype | None,
    ) -> None:
        self.model, self.guide, self.optimizer, self.precision = model, guide, optimizer, precision

    def begin(self, plan: Plan) -> None:
        self.plan = plan

    def step(self, batch: Batch, index: int) -> Tensor:
        terms = evaluate(self.model, self.guide, batch, self.precision)
        power, weight = self.plan.factors[index]
        self.optimizer.zero_grad()
        (power * terms.nll + weight * terms.kl_weights + terms.kl_hyper).backward()
        set_rates(self.optimizer, self.plan.rates[index])
        self.optimizer.step()
        return torch.stack([terms.nll.detach(), terms.kl.detach()])

    def finish(self, steps: int) -> None:
        pass
