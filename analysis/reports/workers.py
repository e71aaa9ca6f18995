"""Units of work by joblib: in `jobs` processes of this machine, or on the workers of joblib's active backend.

A unit is a call of a function of a module. It runs alone in its process, with one thread of PyTorch; units in threads of one
process wait for each other (`pyrodrop.threads`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import joblib
import torch
from joblib.parallel import get_active_backend
from tqdm import tqdm

from pyrodrop.checks import count
from pyrodrop.threads import exclusive


def workers(jobs: int | None) -> int:
    """The number of processes that units run in: `jobs`, or if it is None the workers of the active backend, or 1."""
    return int(joblib.effective_n_jobs(None)) if jobs is None else count(jobs, "jobs", "the number of processes")


def run_each(
    function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], *, jobs: int | None, title: str, unit: str,
    progress: bool | None = None, done: Callable[[int, Any], object] = lambda number, result: None,
) -> list[Any]:  # fmt: skip
    """``[function(*values) for values in arguments]``; `done` is called with every number and result when it arrives."""
    calls = [joblib.delayed(_alone)(number, function, values) for number, values in enumerate(arguments)]
    early = "generator_unordered" if get_active_backend()[0].supports_return_generator else "list"  # such as Ray's
    arriving = joblib.Parallel(n_jobs=jobs, batch_size=1, return_as=early)(calls)
    results: dict[int, Any] = {}
    hidden = None if progress is None else not progress
    for number, result in tqdm(arriving, total=len(calls), unit=unit, desc=title, leave=False, disable=hidden):
        results[number] = result
        done(number, result)
    return [results[number] for number in range(len(calls))]


def _alone(number: int, function: Callable[..., Any], values: tuple[Any, ...]) -> tuple[int, Any]:
    """Run a unit, which sees no backend."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with exclusive(), joblib.parallel_config("sequential", n_jobs=1):
            return number, function(*values)
    finally:
        torch.set_num_threads(threads)
