"""The engine that runs Pyro's handlers at every step, for any model and guide."""

from __future__ import annotations

import torch
from torch import Tensor

from pyrodrop.compiled.batch import Arguments
from pyrodrop.compiled.engine import Engine
from pyrodrop.compiled.loss import Loss
from pyrodrop.compiled.optimizers import Update


class Pyro(Engine):
    """Evaluates the loss with Pyro's handlers at every step.

    Args:
        loss: to minimise.
        optimizer: of the loss's parameters.
    """

    name = "pyro"

    def __init__(self, loss: Loss, optimizer: torch.optim.Optimizer) -> None:
        self.loss: Loss = loss
        self.update: Update = Update(optimizer)

    def step(self, batch: Arguments, index: int) -> Tensor:
        self.update.clear()
        terms = self.loss.backward(batch, self.plan.factors[index])
        self.update(self.plan.rates[index])
        return terms

    def finish(self, steps: int) -> None:
        self.update.clear()
