"""Units of work by joblib, also by a backend that returns lists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import joblib
import pytest
import torch
from joblib.parallel import ParallelBackendBase

from pyrodrop.analysis.reports.workers import run_each, workers


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Lists(ParallelBackendBase):
    """A backend that returns lists and no generators, such as Ray's; it makes the calls in this process."""

    supports_retrieve_callback = False
    units = 0

    def effective_n_jobs(self, n_jobs: int) -> int:
        return 2

    def get_nested_backend(self) -> tuple[Lists, int]:
        return Lists(nesting_level=1), 2  # itself within its units, as Dask's

    def submit(self, func: Any, callback: Any = None) -> Any:
        Lists.units += 1
        result = func()
        callback(result)

        class Future:
            def get(self) -> Any:
                return result

        return Future()


@pytest.fixture
def lists() -> Iterator[None]:
    joblib.register_parallel_backend("lists", Lists)
    Lists.units = 0
    with joblib.parallel_config("lists", n_jobs=2):
        yield
    del joblib.parallel.BACKENDS["lists"]


def test_units_run_with_one_thread_and_on_their_own(lists: None) -> None:
    """A unit sees no backend; the number of threads is the caller's afterwards."""
    torch.set_num_threads(2)
    arrived: list[tuple[int, Any]] = []
    found = run_each(
        _seen, [(n,) for n in range(3)], jobs=None, title="units", unit="unit", done=lambda *a: arrived.append(a)
    )
    assert found == [(n, 1, 1) for n in range(3)]
    assert arrived == list(enumerate(found))
    assert torch.get_num_threads() == 2
    assert workers(None) == 2


def _seen(number: int) -> tuple[int, int, int]:
    return number, torch.get_num_threads(), workers(None)
