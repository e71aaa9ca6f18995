"""The settings of a training: one validated set for `fit`, `fit_replicates` and `Training`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pyro.infer import ELBO, RenyiELBO, ReweightedWakeSleep, TraceTailAdaptive_ELBO

from pyrodrop.arguments import positive, real, shown
from pyrodrop.constraints import Count, EngineName, Seed, checked
from pyrodrop.devices import products_of_float32, resolve
from pyrodrop.schedules import KLSchedule, LRSchedule

Optimizer = Callable[..., torch.optim.Optimizer]
LearningRate = float | Callable[[str], float]
LearningRateSchedule = Callable[[int], float]
KLWeight = float | Callable[[float], float]
Estimator = Literal["shared", "per_example", "local", "flipout"]
Starts = Literal["model", "new"]

adam: Callable[..., torch.optim.Optimizer] = functools.partial(torch.optim.Adam, fused=True)
_LR = "the learning rate, a number or a function of a parameter's name,"
_KL_WEIGHT = "the factor of the KL divergence, a number or a function of the epochs done,"


@checked
@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a training; `pyrodrop.fit` describes each of them.

    `steps` is None where the number of steps is not known, and `device` may be given as a string.

    Raises:
        TypeError: a setting of the wrong kind, such as a schedule of the learning rate for `kl_weight`.
        ValueError: a value out of range, or a device that this machine does not have.
    """

    steps: Annotated[int, Count("the number of gradient steps")] | None = None
    batch_size: Annotated[int, Count("the number of rows of a minibatch")] | None = None
    lr: LearningRate = 1e-3
    optimizer: Optimizer = adam
    lr_schedule: LearningRateSchedule | None = None
    estimator: Estimator = "shared"
    kl_weight: KLWeight = 1.0
    objective: ELBO | None = None
    engine: EngineName = "auto"
    starts: Starts = "model"
    device: str | torch.device = "auto"
    seed: Seed = 0

    def __post_init__(self) -> None:
        if not callable(self.lr):
            self._set("lr", positive(self.lr, "lr", _LR))
        if not callable(self.optimizer):
            name = type(self.optimizer).__name__
            hint = f": fit makes it for its own parameters, optimizer=torch.optim.{name}, lr=..."
            raise TypeError(
                "optimizer must be a torch.optim class or a function with the same arguments, such as "
                f"functools.partial(torch.optim.SGD, momentum=0.9); got {shown(self.optimizer)}"
                f"{hint if hasattr(self.optimizer, 'step') else ''}"
            )
        _check_lr_schedule(self.lr_schedule)
        _check_kl_weight(self.kl_weight)
        if not callable(self.kl_weight):
            self._set("kl_weight", real(self.kl_weight, "kl_weight", _KL_WEIGHT, least=0))
        self.lr_factor(0)  # schedules that are wrong from the start
        self.factors(0.0)
        _check_objective(self)
        self._set("device", resolve(self.device))

    def _set(self, name: str, value: Any) -> None:
        """Store a checked setting, as Python's own type."""
        object.__setattr__(self, name, value)

    @property
    def place(self) -> torch.device:
        """The device as torch's object."""
        return torch.device(self.device)

    def products(self) -> AbstractContextManager[None]:
        """Matrix products and convolutions of float32 in float32, also on a GPU."""
        return products_of_float32() if self.place.type == "cuda" else nullcontext()

    def factors(self, epochs: float) -> tuple[float, float]:
        """The factors of the likelihood, 1, and of the KL divergence after this number of epochs.

        Raises:
            TypeError, ValueError: the schedule returns no number, or one that is negative, NaN or infinite.
        """
        if not callable(self.kl_weight):
            return 1.0, float(self.kl_weight)
        at = f"{_KL_WEIGHT} here of its schedule after {epochs:g} epochs,"
        return 1.0, real(self.kl_weight(epochs), "kl_weight", at, least=0)

    def lr_factor(self, steps: int) -> float:
        """The factor of the learning rate after this number of steps.

        Raises:
            TypeError, ValueError: the schedule returns no number, or one that is negative, NaN or infinite.
        """
        if self.lr_schedule is None:
            return 1.0
        at = f"the factor of the learning rate, here after {steps} steps,"
        return real(self.lr_schedule(steps), "lr_schedule", at, least=0)


def _check_lr_schedule(value: Any) -> None:
    if isinstance(value, type | torch.optim.lr_scheduler.LRScheduler):
        got = f"the class {value.__name__}" if isinstance(value, type) else shown(value)
        raise TypeError(
            "lr_schedule must be a function from the number of steps done to a factor of the learning rate, such as "
            f"schedules.cosine(steps); got {got}, which changes an optimiser instead"
        )
    if isinstance(value, KLSchedule):
        raise TypeError(
            f"lr_schedule must be a factor of the learning rate by step; got a {type(value).__name__}, {value}, a schedule "
            "of the KL divergence's weight by epoch: pass it as kl_weight"
        )
    if value is not None and not callable(value):
        raise TypeError(
            "lr_schedule is a function from the number of steps done to a factor of the learning rate, such as "
            f"schedules.cosine(steps); it must be one, or None; got {shown(value)}"
        )


def _check_kl_weight(value: Any) -> None:
    if isinstance(value, LRSchedule):
        raise TypeError(
            f"kl_weight must be a number or a function of the epochs done, such as schedules.linear(20); got a "
            f"{type(value).__name__}, {value}, a schedule of the learning rate by step: pass it as lr_schedule"
        )


def _check_objective(settings: Settings) -> None:
    """Raise an error for an objective that is no loss object of Pyro, or with settings that only the default supports."""
    loss = settings.objective
    if loss is None:
        return
    if not isinstance(loss, ELBO) or not hasattr(loss, "loss_and_grads"):
        raise TypeError(
            "objective must be a loss object of Pyro, such as pyro.infer.Trace_ELBO(num_particles=2), or None for the ELBO "
            f"with closed-form divergences; got {f'the class {loss.__name__}' if isinstance(loss, type) else shown(loss)}"
        )
    if isinstance(loss, ReweightedWakeSleep | TraceTailAdaptive_ELBO):
        raise TypeError(
            "objective must have one loss whose value can be estimated, such as pyro.infer.RenyiELBO(alpha=0.5); got "
            f"{shown(loss)}, which {'has two' if isinstance(loss, ReweightedWakeSleep) else 'gives gradients alone'}"
        )
    if isinstance(loss, RenyiELBO) and settings.estimator != "shared":
        raise ValueError(
            "estimator must be 'shared' with the objective RenyiELBO, which weighs draws of the weights by the density of "
            f"all rows; got {settings.estimator!r}, under which rows have noise of their own"
        )
    if callable(settings.kl_weight) or settings.kl_weight != 1:
        raise ValueError(
            "kl_weight must be 1 with an objective, since a loss object of Pyro does not give its terms one by one; got "
            f"{shown(settings.kl_weight)}. pyro.poutine.scale in model or guide weights sites under any objective"
        )
