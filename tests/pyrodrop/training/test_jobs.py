"""Units of work in several processes, whatever the backend, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import pytest
import torch
from joblib.parallel import ParallelBackendBase
from torch import Tensor

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.training.jobs import run_each, workers
from pyrodrop.training.replicates import Replicates

OPTIONS: dict[str, Any] = {
    "steps": 12, "batch_size": 10, "starts": "new", "engine": "traced", "device": "cpu", "progress": False
}  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def data(count: int = 45) -> list[tuple[Tensor, Tensor]]:
    """Other rows for every replicate."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 33, 3, generator=generator)
    return [(own, own.sum(1, keepdim=True).sin()) for own in x]


def made() -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = models.MLP([3, 5, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(10.0))
    return model, guides.MeanField(model)


def check(many: Replicates, sets: list[Any]) -> None:
    """All are trained, each on its own data and on its own numbers."""
    for number, (fit, (x, _)) in enumerate(zip(many, sets, strict=True)):
        assert torch.equal(fit.data.x, x)
        assert fit.settings["seed"] == number
        assert bool(fit.losses.isfinite().all())
    assert len({float(fit.losses[0]) for fit in many}) == len(sets)


@pytest.mark.more
def test_two_processes_train_a_share_each() -> None:
    """The losses are those of one process in distribution; the same call gives the same result."""
    sets, options = [data(1)[0]] * 60, {**OPTIONS, "steps": 40}
    alone, two, again = (pyrodrop.fit_replicates(*made(), sets, count=60, jobs=j, **options) for j in (None, 2, 2))
    assert {fit.settings["replicates"] for fit in two} == {30}
    assert all(torch.equal(one.history, other.history) for one, other in zip(two, again, strict=True))
    ends = [torch.stack([fit.losses[-1] for fit in many]).double() for many in (alone, two)]
    error = ((ends[0].var() + ends[1].var()) / 60).sqrt()
    assert abs(float(ends[0].mean() - ends[1].mean())) < 4.5 * float(error)
    assert len({float(fit.losses[0]) for fit in two}) == 60


def test_one_process_trains_and_says_which_failed(caplog: pytest.LogCaptureFixture) -> None:
    sets = data(5)
    sets[3] = (sets[3][0], sets[3][1] * 1e30)
    many = pyrodrop.fit_replicates(*made(), sets, count=5, jobs=1, **{**OPTIONS, "steps": 3})
    assert list(many.failed) == [3]
    assert [r.getMessage().split(" stopped")[0] for r in caplog.records if "stopped" in r.getMessage()] == [
        "replicate 3"
    ]
    with pytest.raises(FloatingPointError, match="stopped being finite"):
        pyrodrop.fit_replicates(*made(), [(x, y * 1e30) for x, y in data(4)], count=4, jobs=1, **OPTIONS)


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


def test_a_backend_without_generators_is_enough(lists: None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="does not support return_as"):
        joblib.Parallel(return_as="generator")
    sets = data(7)
    many = pyrodrop.fit_replicates(*made(), sets, count=7, **{**OPTIONS, "progress": True})
    assert Lists.units == 2
    assert [fit.settings["replicates"] for fit in many] == [4, 3, 4, 3, 4, 3, 4]
    check(many, sets)
    assert "7 replicates" in capsys.readouterr().err


def test_units_run_with_one_thread_and_on_their_own(lists: None) -> None:
    """A fit within a unit sees no backend; the number of threads is the caller's afterwards."""
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


@pytest.mark.slow
def test_on_a_cluster(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            2, threads_per_worker=1, dashboard_address=None, local_directory=str(tmp_path)
        ) as cluster,
        distributed.Client(cluster),
        joblib.parallel_config("dask"),
    ):
        check(pyrodrop.fit_replicates(*made(), data(4), count=4, **OPTIONS), data(4))
