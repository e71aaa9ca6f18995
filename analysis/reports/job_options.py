"""The options that jobs share, each described once: seed and quiet, which all jobs have, device and jobs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

from pyrodrop import checks
from pyrodrop.devices import resolve

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class JobOptions:
    """How a job runs; the attributes are the arguments of `job_options`."""

    device: torch.device
    jobs: int | None
    seed: int
    quiet: bool

    @property
    def progress(self) -> bool | None:
        """The argument ``progress`` of a training."""
        return False if self.quiet else None


def job_options(*, device: str = "auto", jobs: int | None = None, seed: int = 0, quiet: bool = False) -> JobOptions:
    """The options of a job, checked.

    Args:
        device: auto, cpu, cuda, cuda:1 ...
        jobs: number of processes, one thread each; if left out, as many as there are cores, and on a GPU one.
        seed: seed of all random numbers: initial weights, minibatches, noise, prediction; the first one of several.
        quiet: show no progress.
    """
    return JobOptions(resolve(device), jobs, checks.seed(seed), quiet)


def with_job_options(*names: str) -> Callable[[Callable[Concatenate[JobOptions, P], T]], Callable[..., T]]:
    """Add options of `job_options` to the signature and docstring of a function, whose first argument is a `JobOptions`.

    Args:
        names: device and jobs, if the job has them; without device it runs on the CPU.
    """
    taken = [*names, "seed", "quiet"]
    shared = inspect.signature(job_options).parameters
    described = [
        line for line in (inspect.getdoc(job_options) or "").splitlines() if line.strip().startswith((*taken,))
    ]

    def decorated(function: Callable[Concatenate[JobOptions, P], T]) -> Callable[..., T]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> T:
            passed = {name: kwargs.pop(name) for name in taken if name in kwargs}
            return function(
                job_options(**{"device": "cpu"} | passed if "device" not in taken else passed), *args, **kwargs
            )

        signature = inspect.signature(function)
        _, *rest = signature.parameters.values()
        parameters = [*rest, *(shared[name] for name in taken)]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters} | {
            "return": signature.return_annotation
        }
        before, returns, after = (inspect.getdoc(function) or "").partition("\n\nReturns:")
        run.__doc__ = "\n".join([before, *described]) + returns + after
        return run

    return decorated
