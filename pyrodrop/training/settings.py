"""The settings of a training: every option once, for `fit`, `fit_replicates` and `Training`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict, TypeVar, get_args, get_type_hints

import torch
from pyro.infer import ELBO, ReweightedWakeSleep, TraceTailAdaptive_ELBO

from pyrodrop.checks import Count, EngineName, Real, Seed, checked, real, shown
from pyrodrop.devices import products_of_float32, resolve
from pyrodrop.schedules import cosine, linear

Optimizer = Callable[..., torch.optim.Optimizer]
LearningRate = float | Callable[[str], float]
LearningRateSchedule = Callable[[int], float]
KLWeight = float | Callable[[float], float]
Estimator = Literal["shared", "per_example", "local"]
Starts = Literal["model", "new"]
F = TypeVar("F", bound=Callable[..., Any])

adam: Callable[..., torch.optim.Optimizer] = functools.partial(torch.optim.Adam, fused=True)
_LR = "the learning rate, a number or a function of a parameter's name,"
_KL_WEIGHT = "the factor of the KL divergence, a number or a function of the epochs done,"


class TrainingOptions(TypedDict, total=False):
    """The options that `fit`, `fit_replicates` and `Training` share; `fit` describes them."""

    batch_size: int | None
    lr: LearningRate
    optimizer: Optimizer
    lr_schedule: LearningRateSchedule | None
    estimator: Estimator
    kl_weight: KLWeight
    objective: ELBO | None
    average: float
    engine: EngineName
    device: str | torch.device
    seed: int


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
    average: Annotated[
        float, Real("the share of the steps at the end whose parameters are averaged", least=0, most=1)
    ] = 0.0
    engine: EngineName = "auto"
    starts: Starts = "model"
    device: str | torch.device = "auto"
    seed: Seed = 0

    def __post_init__(self) -> None:
        # values of the wrong kind; `pyrodrop.training.problem` refuses combinations
        if not callable(self.optimizer):
            raise TypeError(
                "optimizer must be a torch.optim class or a function with the same arguments, such as "
                f"functools.partial(torch.optim.SGD, momentum=0.9); got {shown(self.optimizer)}"
            )
        for name, kind, other in (("lr_schedule", linear, "kl_weight"), ("kl_weight", cosine, "lr_schedule")):
            if isinstance(value := getattr(self, name), kind):
                raise TypeError(f"{name} must be no schedules.{kind.__name__}; got {value}: pass it as {other}")
        if not (self.lr_schedule is None or callable(self.lr_schedule)):
            raise TypeError(
                "lr_schedule must be a function from the number of steps done to a factor of the learning rate, such as "
                f"schedules.cosine(steps), or None; got {shown(self.lr_schedule)}"
            )
        two = ReweightedWakeSleep | TraceTailAdaptive_ELBO
        if self.objective is not None and (not isinstance(self.objective, ELBO) or isinstance(self.objective, two)):
            raise TypeError(
                "objective must be a loss object of Pyro with one loss whose value can be estimated, such as "
                "pyro.infer.Trace_ELBO(num_particles=2), or None for the ELBO with closed-form divergences; got "
                f"{shown(self.objective)}"
            )
        checked_values: dict[str, Any] = {"device": resolve(self.device)}
        if not callable(self.lr):
            checked_values["lr"] = real(self.lr, "lr", _LR, above=0)
        if not callable(self.kl_weight):
            checked_values["kl_weight"] = real(self.kl_weight, "kl_weight", _KL_WEIGHT, least=0)
        vars(self).update(checked_values)
        self.lr_factor(0)  # schedules that are wrong from the start
        self.kl_factor(0.0)

    @property
    def place(self) -> torch.device:
        """The device as torch's object."""
        return torch.device(self.device)

    def products(self) -> AbstractContextManager[None]:
        """Matrix products and convolutions of float32 in float32, also on a GPU."""
        return products_of_float32() if self.place.type == "cuda" else nullcontext()

    def kl_factor(self, epochs: float) -> float:
        """The factor of the KL divergence after this number of epochs.

        Raises:
            TypeError, ValueError: the schedule returns no number, or one that is negative, NaN or infinite.
        """
        if not callable(self.kl_weight):
            return float(self.kl_weight)
        at = f"{_KL_WEIGHT} here of its schedule after {epochs:g} epochs,"
        return real(self.kl_weight(epochs), "kl_weight", at, least=0)

    def lr_factor(self, steps: int) -> float:
        """The factor of the learning rate after this number of steps.

        Raises:
            TypeError, ValueError: the schedule returns no number, or one that is negative, NaN or infinite.
        """
        if self.lr_schedule is None:
            return 1.0
        at = f"the factor of the learning rate, here after {steps} steps,"
        return real(self.lr_schedule(steps), "lr_schedule", at, least=0)


def with_options(function: F) -> F:
    """Put the options of ``**options: Unpack[...]`` into a function's signature, with the defaults of `Settings`."""
    signature, hints = inspect.signature(function), get_type_hints(function)
    parameters = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    (spelled,) = get_args(hints.pop("options"))
    defaults = {field.name: field.default for field in dataclasses.fields(Settings)}
    own = get_type_hints(spelled)
    parameters += [
        inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=defaults[n], annotation=own[n]) for n in own
    ]
    function.__annotations__ = hints | own
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function
