"""Steps whose minibatch is evaluated in parts: one after the other (gradient accumulation), by several processes, or both.

    gradient of the step  =  sum over all parts of  weight * gradient of the loss of the part's rows

where the loss is scaled to the data set, and the weight is the part's share of the rows of the minibatch. So the gradient is
unbiased, and the KL divergence counts once. Every part updates buffers, such as running statistics, in its turn; of several
ranks the mean is taken.

Every part draws noise of its own. There are two programs: the gradient, by Pyro, by a replayed graph or by a compiled one,
and the optimiser.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from pyrodrop.compiled.against_pyro import Results
from pyrodrop.compiled.batch import Arguments
from pyrodrop.compiled.engine import Engine, Plan
from pyrodrop.compiled.loss import Loss
from pyrodrop.compiled.optimizers import Update

Average = Callable[[Tensor], None]


class Part(NamedTuple):
    """Some rows of the minibatch of a step.

    Attributes:
        batch: the rows; its ``num_data`` is the size of the whole data set.
        weight: of its gradient, of which the mean over all ranks is taken.
    """

    batch: Arguments
    weight: float


class Joint(NamedTuple):
    """The minibatch of a step, as far as this process evaluates it: at least one part."""

    parts: list[Part]

    @property
    def rows(self) -> int:
        """Number of rows that this process evaluates."""
        return sum(part.batch.rows for part in self.parts)


class Gradient(Protocol):
    """Computes the gradient of a part."""

    name: str

    def of(self, batch: Arguments, factors: Tensor) -> Results:
        """The gradient with new noise; `factors` are of nll and kl."""


class InParts(Engine):
    """Makes steps whose minibatches are evaluated in parts.

    Args:
        gradient: of a part.
        loss: to minimise.
        optimizer: of the loss's parameters.
        average: replaces a tensor, in place, by its mean over all processes; None for one process.
    """

    def __init__(
        self, gradient: Gradient, loss: Loss, optimizer: torch.optim.Optimizer, average: Average | None = None
    ) -> None:
        self.gradient: Gradient = gradient
        self.loss: Loss = loss
        self.update: Update = Update(optimizer)
        self.average: Average | None = average
        self.leaves: list[Tensor] = loss.leaves
        self.name = gradient.name

    def begin(self, plan: Plan) -> None:
        super().begin(plan)
        self.loss.refresh()

    def step(self, joint: Joint, index: int) -> Tensor:
        factors = torch.tensor(self.plan.factors[index], dtype=torch.float64).to(self.leaves[0])
        total: Tensor | float = 0.0
        for part in joint.parts:
            terms, gradients, moved = self.gradient.of(part.batch, factors)
            total = total + part.weight * torch.cat([value.reshape(-1) for value in (terms, *gradients)])
            self.loss.moving.take(moved)
        assert isinstance(total, Tensor)
        if self.average is not None:
            total = self._averaged(total, self.average)
        terms, *gradients = total.split([2, *(leaf.numel() for leaf in self.leaves)])
        for leaf, gradient in zip(self.leaves, gradients, strict=True):
            leaf.grad = gradient.view_as(leaf).to(leaf.dtype)
        self.update(self.plan.rates[index])
        return terms

    def _averaged(self, total: Tensor, average: Average) -> Tensor:
        """The mean over ranks; buffers get that of their floating-point values."""
        buffers = [buffer for buffer in self.loss.buffers if buffer.is_floating_point()]
        flat = torch.cat([total, *(buffer.reshape(-1) for buffer in buffers)])
        average(flat)
        total, *means = flat.split([len(total), *(buffer.numel() for buffer in buffers)])
        for buffer, mean in zip(buffers, means, strict=True):
            buffer.copy_(mean.view_as(buffer))
        return total

    def finish(self, steps: int) -> None:
        self.update.clear()


class ByPyro:
    """The gradient by Pyro's handlers, for any model and guide."""

    name = "pyro"

    def __init__(self, loss: Loss) -> None:
        self.loss = loss

    def of(self, batch: Arguments, factors: Tensor) -> Results:
        moving = self.loss.moving
        with moving.replaced([buffer.clone() for buffer in moving.tensors()]) as moved:
            terms, gradients = self.loss.gradients(batch, factors)
            after = [buffer.detach() for buffer in moved()]
        return Results(terms, gradients, after)
