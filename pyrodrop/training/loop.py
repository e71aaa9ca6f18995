"""A training in progress: its state between two steps, and the blocks of steps that move it on.

The learning rates, factors and minibatches of a step are decided here; who makes it is an engine (`pyrodrop.engines`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyro
import pyro.optim
import torch
from pyro.optim import PyroOptim
from torch import Tensor
from tqdm import tqdm

from pyrodrop.devices import denormals_flushed, keep_heap
from pyrodrop.engines import Batch, Engine, Plan
from pyrodrop.training.minibatches import Batches

if TYPE_CHECKING:
    from pyrodrop.training.checkpoint import Checkpoint

Optimizer = Callable[..., torch.optim.Optimizer]
LearningRate = float | Callable[[str], float]

_LOOK_EVERY = 100  # steps between looks at the losses: each waits for the device


class Controls(NamedTuple):
    """How large each part of a step is: schedule of the learning rate, weight of divergence, power of the likelihood."""

    lr_schedule: Callable[[int], float] | None
    kl_weight: Callable[[float], float]
    likelihood_power: float


class Training:
    """Parameters, optimiser, losses and the number of steps done.

    Args:
        parameters: what the optimiser moves, by name.
        batches: where minibatches come from.
        optimizer: see `optimizer_of`.
        controls: sizes of the parts of a step.
        steps: number of steps in all.
        first: makes the first step, with Pyro's validation.
        choose: from a minibatch of every shape to come and a number of steps to who makes them.
        title: of the progress bar.
        replicates: shape of the losses of a step: () or [R].
        buffers: what the steps move beside the parameters, as they are when it is called, by name.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        batches: Batches,
        optimizer: torch.optim.Optimizer,
        controls: Controls,
        steps: int,
        *,
        first: Engine,
        choose: Callable[[Sequence[Batch], int], Engine],
        title: str,
        replicates: Sequence[int] = (),
        buffers: Callable[[], Mapping[str, Tensor]] = dict,
    ) -> None:
        self.buffers = buffers
        self.parameters, self.batches, self.optimizer, self.controls = parameters, batches, optimizer, controls
        self.engine, self._choose, self.title = first, choose, title
        self.base_rates = [group["lr"] for group in optimizer.param_groups]
        device = next(iter(parameters.values())).device
        self.history = torch.zeros(steps, *replicates, 3, device=device)
        self.done = 0

    def run(
        self,
        progress: bool | None,
        store: Checkpoint | None = None,
        every: int = 0,
        after_epoch: Callable[[int], None] | None = None,
    ) -> None:
        """Make all steps that are left, and after every epoch call `after_epoch` with the number of epochs done."""
        steps = len(self.history)
        bar = tqdm(
            total=steps, initial=self.done, unit="step", desc=self.title, leave=False,
            disable=None if progress is None else not progress,
        )  # fmt: skip
        with bar, denormals_flushed():
            if after_epoch is not None and self.done > 0:
                self._call(after_epoch)
            fresh = self.done == 0
            self.start()
            if after_epoch is not None and fresh:
                self._call(after_epoch)  # an epoch of one step
            with pyro.validation_enabled(False):
                while self.done < steps:
                    end = min(steps, _next_multiple(self.done, _LOOK_EVERY))
                    if after_epoch is not None:
                        end = min(end, _next_multiple(self.done, self.batches.per_epoch))
                    self.advance(end, store, every)
                    self._look()
                    if after_epoch is not None:
                        self._call(after_epoch)
                    if not bar.disable:
                        loss = self.history[self.done - 1, ..., :2].sum(-1).nanmedian()
                        bar.set_postfix_str(f"nll + kl {float(loss):.4g}", refresh=False)
                        bar.update(self.done - bar.n)
        self.engine.finish(self.done)

    def _call(self, after_epoch: Callable[[int], None]) -> None:
        """Call it at the end of an epoch, with the random state kept from it."""
        epochs, rest = divmod(self.done, self.batches.per_epoch)
        if rest == 0:
            with torch.random.fork_rng([self.history.device] if self.history.is_cuda else []):
                after_epoch(epochs)

    def start(self) -> None:
        """Make the first step, if none was made, and find out who makes the others."""
        keep_heap()
        if self.done == 0:
            self._first_step()
        if self.done < len(self.history):
            left = len(self.history) - self.done
            self.engine = self._choose(self.batches.samples(left), left)

    def advance(self, end: int, store: Checkpoint | None = None, every: int = 0) -> None:
        """Make the steps up to number `end`. Nothing in them waits for the device."""
        first = self.done
        plan = self._plan(first, end)
        self.engine.begin(plan)
        weights = torch.tensor([weight for _, weight in plan.factors]).to(self.history)
        self.history[first:end, ..., 2] = weights.reshape(-1, *(1,) * (self.history.dim() - 2))
        for row in self.history[first:end, ..., :2].unbind(0):
            row.copy_(self.engine.step(self.batches.next(), self.done - first))
            self.done += 1
            if store is not None and (self.done % every == 0 or self.done == len(self.history)):
                self.engine.finish(self.done)
                store.save()

    def _plan(self, first: int, end: int) -> Plan:
        lr_schedule, kl_weight, power = self.controls
        numbers = range(first, end)
        factors = [(power, kl_weight(n / self.batches.per_epoch)) for n in numbers]
        scales = [1.0 if lr_schedule is None else lr_schedule(n) for n in numbers]
        return Plan(first, factors, [[rate * scale for rate in self.base_rates] for scale in scales])

    def _first_step(self) -> None:
        """The first step, with Pyro's validation, and proof that it moved something."""
        before = [p.detach().clone() for p in self.parameters.values()]
        self.advance(1)
        self._look()
        if all(torch.equal(b, p.detach()) for b, p in zip(before, self.parameters.values(), strict=True)):
            raise RuntimeError(
                f"the first step moved none of the {len(before)} parameters ({', '.join(self.parameters)}): "
                "the loss does not depend on them, or the learning rate is 0"
            )

    def _look(self) -> None:
        """Raise a FloatingPointError if the recent losses of all replicates stopped being finite."""
        first = max(0, self.done - _LOOK_EVERY)
        recent = (
            self.history[first : self.done].flatten(1, -2)
            if self.history.dim() > 2
            else self.history[first : self.done, None]
        )
        bad = (~torch.isfinite(recent).all(-1)).all(1).nonzero()
        if len(bad):
            step = first + int(bad[0])
            nll, kl, _ = self.history[step].reshape(-1, 3)[0].tolist()
            raise FloatingPointError(
                f"the loss stopped being finite at step {step}: nll {nll:g}, kl {kl:g}. A smaller learning rate, a smaller "
                "initial scale or standardised data are what usually helps."
            )


def optimizer_of(
    parameters: Mapping[str, Tensor], optimizer: Optimizer, lr: LearningRate, *, stacked: bool = False
) -> torch.optim.Optimizer:
    """The optimiser of these parameters: one group, or one a parameter where `lr` is a function of the name.

    Args:
        parameters: by name.
        optimizer: makes one of parameter groups.
        lr: learning rate, or a function from a parameter's name to it.
        stacked: whether the first axis of every parameter counts independent fits.

    Raises:
        TypeError: `optimizer` makes no `torch.optim.Optimizer`.
        ValueError: it cannot be made of these parameters, needs to call the loss itself, or, stacked, would move one fit
            by another's gradient.
    """
    of_pyro = isinstance(optimizer, PyroOptim) or getattr(optimizer, "__module__", "").startswith("pyro.optim.pytorch")
    if of_pyro or optimizer in (pyro.optim.ClippedAdam, pyro.optim.DCTAdam, pyro.optim.AdagradRMSProp):
        raise TypeError(
            "optimizer is a torch.optim class or a function called like one; got one of pyro.optim, which take "
            "parameters from Pyro's SVI: torch.optim has the same ones, and pyro.optim.clipped_adam.ClippedAdam is such a "
            "class"
        )
    _check_one_gradient(optimizer)
    groups = [{"params": list(parameters.values()), "lr": lr}]
    if callable(lr):
        groups = [{"params": [p], "lr": lr(name)} for name, p in parameters.items()]
    made = _made(optimizer, groups)
    if not isinstance(made, torch.optim.Optimizer):
        raise TypeError(
            "optimizer is a torch.optim class or a function called like one, such as "
            f"functools.partial(torch.optim.SGD, momentum=0.9); it gave a {type(made).__name__}"
        )
    _check_one_gradient(type(made))
    if stacked:
        _check_elementwise(optimizer)
    return made


def _made(optimizer: Optimizer, groups: list[dict[str, Any]]) -> Any:
    try:
        return optimizer(groups)
    except Exception as error:  # whatever the optimiser's own checks say
        raise ValueError(
            f"optimizer could not be made for the {len(groups)} groups of parameters of this fit; it says: {error}"
        ) from error


def _check_elementwise(optimizer: Optimizer) -> None:
    """Raise a ValueError unless two parameters stacked move as each would alone."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(2, 4, 3, generator=generator)
    gradients = torch.randn(3, 2, 4, 3, generator=generator) * torch.tensor([1.0, 100.0]).reshape(2, 1, 1)

    def moved(start: Tensor, steps: Tensor) -> Tensor:
        parameter = torch.nn.Parameter(start.clone())
        made = _made(optimizer, [{"params": [parameter], "lr": 0.01}])
        for gradient in steps:
            parameter.grad = gradient.clone()
            made.step()
        return parameter.detach()

    alone = torch.stack([moved(values[r], gradients[:, r]) for r in range(2)])
    if not torch.allclose(moved(values, gradients), alone, rtol=1e-4, atol=1e-6):
        name = getattr(optimizer, "__name__", type(optimizer).__name__)
        raise ValueError(
            "replicates are trained as one stack of parameters, which needs an optimiser that moves every entry by its own "
            f"gradient alone, as Adam and SGD do; got {name}: use one of those, or fit one by one"
        )


def _check_one_gradient(optimizer: Any) -> None:
    """Raise a ValueError for optimisers that one dense gradient does not serve, such as LBFGS."""
    while isinstance(optimizer, functools.partial):
        optimizer = optimizer.func
    if not isinstance(optimizer, type) or not hasattr(optimizer, "step"):
        return
    if issubclass(optimizer, torch.optim.SparseAdam):
        raise ValueError(
            "optimizer must take dense gradients, which is what fit has; got SparseAdam: use torch.optim.Adam"
        )
    step: Callable[..., Any] = optimizer.step  # type: ignore[attr-defined]
    closure = inspect.signature(step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            "optimizer must step by one gradient: every step of fit draws new noise and a new minibatch, so the loss cannot "
            f"be called again for a line search; got {optimizer.__name__}, whose step needs a closure: use torch.optim.Adam "
            "or SGD"
        )


def _next_multiple(n: int, of: int) -> int:
    return (n // of + 1) * of
