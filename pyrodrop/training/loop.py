"""The loop over training steps, for one fit or for stacked replicates.

The loop decides learning rates, factors and minibatches; an engine makes the steps. `ByPyro` is the definition of a step,
with which the faster engines of `pyrodrop.compiled` agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyro
import torch
from torch import Tensor
from tqdm import tqdm

from pyrodrop.devices import denormals_flushed, heap_kept
from pyrodrop.steps import Engine, Plan, Update
from pyrodrop.training.after_epoch import AfterEpoch
from pyrodrop.training.minibatches import Batches
from pyrodrop.training.settings import Settings

CHECK_EVERY = 100  # steps between checks of the losses: each waits for the device

Backward = Callable[[Any, Any], Tensor]
"""From a minibatch and the factors of nll and of the weights' KL divergence to nll and kl ``[2]``; adds the gradient of the
loss to that of the parameters."""


class ByPyro(Engine):
    """Steps by Pyro's handlers, for any model and guide.

    Args:
        as_svi: whether a parameter that has had a gradient and gets none gets 0, as in `pyro.infer.SVI` and in recorded
            steps: the optimiser's momentum then continues to move it.
    """

    name = "pyro"

    def __init__(self, backward: Backward, optimizer: torch.optim.Optimizer, *, as_svi: bool = False) -> None:
        self.backward: Backward = backward
        self.update: Update = Update(optimizer)
        self.as_svi = as_svi

    def step(self, batch: Any, index: int) -> Tensor:
        self.update.clear()
        terms = self.backward(batch, self.plan.factors[index])
        if self.as_svi:
            self.update.fill()
        self.update(self.plan.rates[index])
        return terms

    def finish(self, steps: int) -> None:
        self.update.clear()


class Loop:
    """Parameters, optimiser, losses and the number of steps done.

    Args:
        first: engine of the first step, which is made with Pyro's validation, and of steps that no other engine makes.
        accelerate: returns the engine of the other steps, or None for `first`, given the number of steps done and the number
            of steps to choose it for.
        replicates: shape of the losses of a step: () or [R].

    Attributes:
        steps: number of steps in all; None if that is not known.
        done: number of steps made so far.
        checked: number of steps whose losses are known to be finite.
        moving: returns the buffers that a step updates, by name.
        changed: called before every block of steps; returns the argument `changed` of `Engine.holds`.
        hint: what to add to the error of a loss that is not finite, as a sentence.
        ahead: called before the first step of a training.
        history: nll, kl and the weight of the KL divergence for every step, ``[at least done, ..., 3]``.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        batches: Batches,
        optimizer: torch.optim.Optimizer,
        settings: Settings,
        *,
        first: Engine,
        accelerate: Callable[[int, int], Engine | None],
        title: str,
        replicates: Sequence[int] = (),
    ) -> None:
        self.parameters: Mapping[str, Tensor] = parameters
        self.batches: Batches = batches
        self.optimizer: torch.optim.Optimizer = optimizer
        self.settings: Settings = settings
        self._first = first
        self.engine: Engine = first
        self._accelerate = accelerate
        self._chosen = False
        self.title: str = title
        self.base_rates: list[Any] = [group["lr"] for group in optimizer.param_groups]
        device = next(iter(parameters.values())).device
        self.steps: int | None = settings.steps
        self.done: int = 0
        self.checked: int = 0
        self.history: Tensor = torch.zeros(self.steps or 0, *replicates, 3, dtype=torch.float32, device=device)
        self.moving: Callable[[], Mapping[str, Tensor]] = dict
        self.hint: Callable[[], str] = str
        self.changed: Callable[[], str] = str
        self.ahead: Callable[[], None] = lambda: None

    def run(
        self,
        progress: bool | None,
        save: Callable[[], None] | None = None,
        save_every: int = 0,
        after_epoch: AfterEpoch | None = None,
    ) -> None:
        """Make all remaining steps, unless `after_epoch` ends the training before.

        Args:
            progress: whether to show a progress bar; if None, where the output is a terminal.
            save: called after every `save_every` steps and after the last one.
            save_every: see `save`.
            after_epoch: called with the number of epochs done.
        """
        steps = len(self.history)
        bar = tqdm(
            total=len(self.history), initial=self.done, unit="step", desc=self.title, leave=False,
            disable=None if progress is None else not progress,
        )  # fmt: skip
        with bar, denormals_flushed(), heap_kept(release=True):
            fresh = self.done == 0
            ended = not fresh and self._ends(after_epoch)
            if not ended:
                self.start()
            if fresh and save is not None and 1 in (save_every, self.steps):
                save()
            ended = ended or (fresh and self._ends(after_epoch))  # an epoch of one step
            while self.done < steps and not ended:
                end = min(steps, _next_multiple(self.done, CHECK_EVERY))
                if after_epoch is not None:
                    end = min(end, after_epoch.next(self.done, self.batches.per_epoch))
                if save is not None:
                    end = min(end, _next_multiple(self.done, save_every))
                with pyro.validation_enabled(False):
                    self.advance(end)
                    self.check_finite()
                if save is not None and (self.done % save_every == 0 or self.done == self.steps):
                    save()
                ended = self._ends(after_epoch)
                if not bar.disable:
                    loss = self.history[self.done - 1, ..., :2].sum(-1).nanmedian()
                    words = "nll + kl" if self.settings.objective is None else "loss"
                    epochs = f"epoch {self.done / self.batches.per_epoch:.1f}, " * (self.batches.per_epoch > 1)
                    bar.set_postfix_str(f"{epochs}{words} {float(loss):.4g}", refresh=False)
                    bar.update(self.done - bar.n)
            self.check_finite(whole=True)
            self.engine.check(self.done)
        self.engine.finish(self.done)
        if ended and save is not None and self.done < steps:
            save()

    def _ends(self, after_epoch: AfterEpoch | None) -> bool:
        """Call `after_epoch` if it is due. Returns whether training ends. Its random draws do not affect training."""
        per_epoch = self.batches.per_epoch
        if after_epoch is None or not after_epoch.due(self.done, per_epoch, self.steps):
            return False
        with torch.random.fork_rng([self.history.device] if self.history.is_cuda else []):
            ends = after_epoch.ends(self.done, per_epoch)
        self.engine.called(self.done)
        return ends

    def start(self) -> None:
        """Make the first step, unless it was made before, and choose the engine of the other steps."""
        if self.done == 0:
            self.first_step()
        if self.done < len(self.history):
            # by all steps, so that a run that was interrupted takes the same engine as one that was not
            self.choose_engine(len(self.history) - 1)

    def choose_engine(self, steps: int) -> None:
        """Choose the engine for `steps` steps, unless it is chosen already."""
        if not self._chosen:
            self.engine, self._chosen = self._accelerate(self.done, steps) or self._first, True

    def forget_engine(self) -> None:
        """Return to the engine of the first step, for example after the optimiser's state was replaced."""
        self.engine = self._first
        self._chosen = False

    def reserve(self, steps: int) -> None:
        """Make room in the history for `steps` steps."""
        if steps > len(self.history):
            longer = self.history.new_zeros(max(steps, 2 * len(self.history), 1000), *self.history.shape[1:])
            longer[: self.done] = self.history[: self.done]
            self.history = longer

    def advance(self, end: int) -> None:
        """Make the steps up to number `end`, without waiting for the device."""
        while self.done < end:
            if not self.engine.holds(self.done, self.changed()):
                self.engine = self._first
            first, until = self.done, self.engine.until(self.done, end)
            self.reserve(until)
            plan = self.plan(first, until)
            self.engine.begin(plan)
            weights = torch.tensor([weight for _, weight in plan.factors]).to(self.history)
            self.history[first:until, ..., 2] = weights.reshape(-1, *(1,) * (self.history.dim() - 2))
            try:
                self.engine.advance(self.batches, until - first)
            finally:
                self._keep(self.engine.made)

    def _keep(self, made: list[Tensor]) -> None:
        """Put nll and kl of the steps that were made into the history."""
        if made:
            history = self.history if self.done else self._of_dtype(made[0].dtype)
            history[self.done : self.done + len(made), ..., :2] = torch.stack(made)
            self.done += len(made)

    def plan(self, first: int, end: int) -> Plan:
        """The factors and learning rates of the steps from number `first` to `end`."""
        numbers = range(first, end)
        factors = [self.settings.factors(n / self.batches.per_epoch) for n in numbers]
        scales = [self.settings.lr_factor(n) for n in numbers]
        return Plan(first, factors, [[rate * scale for rate in self.base_rates] for scale in scales])

    def first_step(self) -> None:
        """Make the first step, with Pyro's validation; a RuntimeError if it changes no parameter."""
        self.ahead()
        before = [p.detach().clone() for p in self.parameters.values()]
        self.advance(1)
        self.check_finite(whole=True)
        if all(torch.equal(b, p.detach()) for b, p in zip(before, self.parameters.values(), strict=True)):
            raise RuntimeError(
                f"the first step moved none of the {len(before)} parameters ({', '.join(self.parameters)}): "
                "the loss does not depend on them, or the learning rate is 0"
            )

    def check_finite(self, *, whole: bool = False) -> None:
        """Raise a FloatingPointError if a loss is not finite; with replicates, if none of them is.

        Args:
            whole: whether to also check parameters, and buffers that a step updates for NaN, before the next loss shows
                them.
        """
        recent = self.history[self.checked : self.done, ..., :2]
        recent = recent[:, None] if self.history.dim() == 2 else recent
        bad = (~torch.isfinite(recent).all(-1)).all(1).nonzero()
        if len(bad):
            step = self.checked + int(bad[0])
            nll, kl, _ = self.history[step].reshape(-1, 3)[0].tolist()
            terms = f"nll {nll:g}, kl {kl:g}" if self.settings.objective is None else f"{nll:g}"
            broken = self._broken()
            after = f" After step {self.done - 1}, {broken} is not finite." if broken else ""
            self._fail(f"the loss stopped being finite at step {step}: {terms}.{after} {self.hint()}".rstrip())
        if whole and (broken := self._broken()):
            self._fail(f"{broken} stopped being finite at step {self.done - 1}.")
        self.checked = self.done

    def _broken(self) -> str:
        """The parameters and buffers that are not finite; empty with replicates, which keep their last finite ones."""
        names = not_finite(self.parameters, self.moving()) if self.history.dim() == 2 else []
        more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        return f"{names[0]}{more}" if names else ""

    def _fail(self, what: str) -> None:
        raise FloatingPointError(f"{what} Try a smaller learning rate, a smaller initial scale, or standardised data.")

    def _of_dtype(self, dtype: torch.dtype) -> Tensor:
        """The history, in the dtype of the loss if that is more precise than float32."""
        self.history = self.history.to(torch.promote_types(self.history.dtype, dtype))
        return self.history


def not_finite(parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> list[str]:
    """Names of the parameters that are not finite and of the buffers that have NaN; waits for the device."""
    named = {**parameters, **buffers}
    if not named:
        return []
    sums = torch.stack([value.detach().sum().double() for value in named.values()])
    if bool(torch.isfinite(sums).all()):  # then all values are
        return []
    return [
        name
        for name, value in named.items()
        if not bool((torch.isfinite(value) if name in parameters else ~torch.isnan(value)).all())
    ]


def _next_multiple(n: int, of: int) -> int:
    return (n // of + 1) * of
