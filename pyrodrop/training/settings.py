"""The settings of a training: one validated set for `fit`, `fit_replicates` and `Training`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import torch

from pyrodrop.devices import resolve, tf32_products
from pyrodrop.engines import Name as EngineName
from pyrodrop.names import one_of
from pyrodrop.schedules import KLSchedule, LRSchedule

Optimizer = Callable[..., torch.optim.Optimizer]
LearningRate = float | Callable[[str], float]
LearningRateSchedule = Callable[[int], float]
KLWeight = float | Callable[[float], float]
Estimator = Literal["shared", "per_example", "local", "flipout"]
Precision = Literal["float32", "bfloat16", "tf32"]
Starts = Literal["model", "new"]

adam = functools.partial(torch.optim.Adam, fused=True)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a training; `pyrodrop.fit` describes each of them.

    `steps` is None where the number of steps is not known, and `device` may be given as a string.

    Raises:
        TypeError: a setting of the wrong kind, such as a schedule of the learning rate for `kl_weight`.
        ValueError: a value out of range, or a device that this machine does not have.
    """

    steps: int | None = None
    batch_size: int | None = None
    lr: LearningRate = 1e-3
    optimizer: Optimizer = adam
    lr_schedule: LearningRateSchedule | None = None
    estimator: Estimator = "shared"
    kl_weight: KLWeight = 1.0
    likelihood_power: float = 1.0
    engine: EngineName = "auto"
    precision: Precision | None = None
    starts: Starts = "model"
    device: str | torch.device = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps is the number of gradient steps and must be at least 1; got {self.steps}")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(
                f"batch_size is the number of rows of a minibatch and must be at least 1; got {self.batch_size}"
            )
        _check_lr_schedule(self.lr_schedule)
        _check_kl_weight(self.kl_weight)
        if not (math.isfinite(self.likelihood_power) and self.likelihood_power > 0):
            raise ValueError(
                "likelihood_power is the power of the likelihood and must be positive and finite; "
                f"got {self.likelihood_power}"
            )
        one_of(self.engine, EngineName, "engine")
        one_of(self.estimator, Estimator, "estimator")
        one_of(self.starts, Starts, "starts")
        if self.precision is not None:
            one_of(self.precision, Precision, "precision")
        object.__setattr__(self, "device", resolve(self.device))

    @property
    def place(self) -> torch.device:
        """The device as torch's object."""
        return torch.device(self.device)

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of matrix products under autocast; None for the dtype of the parameters."""
        return None if self.precision in (None, "tf32") else getattr(torch, str(self.precision))

    def products(self) -> AbstractContextManager[None]:
        """Matrix products in TensorFloat-32 if `precision` asks for it; a ValueError on a device that is not a GPU."""
        return tf32_products(self.precision == "tf32", self.place)

    def factors(self, epochs: float) -> tuple[float, float]:
        """The power of the likelihood and the weight of the KL divergence after so many epochs."""
        return self.likelihood_power, self.kl_weight(epochs) if callable(self.kl_weight) else float(self.kl_weight)

    def lr_factor(self, steps: int) -> float:
        """The factor of the learning rate after so many steps."""
        return 1.0 if self.lr_schedule is None else self.lr_schedule(steps)


def _check_lr_schedule(value: Any) -> None:
    if isinstance(value, KLSchedule):
        raise TypeError(
            f"lr_schedule is a factor of the learning rate by step; {value} is a schedule of the KL divergence's weight by "
            "epoch: pass it as kl_weight"
        )
    if value is not None and not callable(value):
        raise TypeError(
            "lr_schedule is a function from the number of steps done to a factor of the learning rate, such as "
            f"schedules.cosine(steps); got a {type(value).__name__}"
        )


def _check_kl_weight(value: Any) -> None:
    if isinstance(value, LRSchedule):
        raise TypeError(
            f"kl_weight is a number or a function of the epochs done, such as schedules.linear(20); {value} is a schedule "
            "of the learning rate by step: pass it as lr_schedule"
        )
    if not callable(value) and (isinstance(value, bool | str) or not hasattr(value, "__float__")):
        raise TypeError(
            "kl_weight is the factor of the KL divergence: a number, or a function of the epochs done, such as "
            f"schedules.linear(20); got a {type(value).__name__}"
        )
    first = value(0.0) if callable(value) else float(value)
    if not (math.isfinite(first) and first >= 0):
        raise ValueError(f"kl_weight is the factor of the KL divergence and must be finite and at least 0; got {first}")
