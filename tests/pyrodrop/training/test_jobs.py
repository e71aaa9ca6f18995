"""Units of work in several processes, whatever the backend, and what is refused."""

from __future__ import annotations

import threading
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
from pyrodrop.training.jobs import run_each, through_joblib
from pyrodrop.training.replicates import Replicates
from tests.cluster import losing_a_worker

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
    assert found == [(n, 1, False) for n in range(3)]
    assert arrived == list(enumerate(found))
    assert torch.get_num_threads() == 2
    assert through_joblib(None)


def _seen(number: int) -> tuple[int, int, bool]:
    return number, torch.get_num_threads(), through_joblib(None)


@pytest.mark.parametrize("config", [{"backend": "threading"}, {"prefer": "threads"}, {"require": "sharedmem"}], ids=str)
@pytest.mark.parametrize("jobs", [None, 2])
def test_threads_are_refused(config: dict[str, str], jobs: int | None) -> None:
    with joblib.parallel_config(**config), pytest.raises(ValueError, match=r"threads.*share Pyro's handlers"):
        pyrodrop.fit_replicates(*made(), data(2), count=2, jobs=jobs, **OPTIONS)


def test_workers_of_joblib_train_alone() -> None:
    """In a worker, joblib's active backend has threads and one job."""
    from joblib._parallel_backends import ThreadingBackend

    with joblib.parallel_config(ThreadingBackend(nesting_level=1)):
        assert not through_joblib(None)
        with (
            joblib.parallel_config(ThreadingBackend(nesting_level=1), n_jobs=2),
            pytest.raises(ValueError, match="threads"),
        ):
            through_joblib(None)


def test_a_cluster_and_jobs_are_refused_together(lists: None) -> None:
    with pytest.raises(ValueError, match="jobs must be None; got 2"):
        pyrodrop.fit_replicates(*made(), data(2), count=2, jobs=2, **OPTIONS)


def test_a_cluster_whose_workers_have_threads_is_refused(lists: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        def nthreads(self) -> dict[str, int]:
            return {"tcp://a": 1, "tcp://b": 4}

    monkeypatch.setattr(Lists, "client", Client(), raising=False)
    with pytest.raises(ValueError, match=r"up to 4 threads.*--nthreads 1"):
        pyrodrop.fit_replicates(*made(), data(2), count=2, **OPTIONS)


def test_what_cannot_be_sent_is_named_before_any_training(lists: None) -> None:
    model, guide = made()
    guide.lock = threading.Lock()
    with pytest.raises(TypeError, match=r"a guide cannot be pickled.*lock"):
        pyrodrop.fit_replicates(model, guide, data(2), count=2, **OPTIONS)
    lock = threading.Lock()
    model, guide = made()
    with pytest.raises(TypeError, match=r"the lr of the call cannot be pickled"):
        pyrodrop.fit_replicates(model, guide, data(2), count=2, lr=lambda name: lock and 0.1, **OPTIONS)
    assert Lists.units == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_dask_worker_that_is_killed_in_the_middle_of_its_share(tmp_path: Path) -> None:
    """Two workers of one thread; the share is done again."""
    model, guide = made()
    with losing_a_worker(tmp_path) as killed:
        in_jobs = pyrodrop.fit_replicates(model, guide, data(40), count=40, **{**OPTIONS, "steps": 1500})
    assert len(killed) == 1
    check(in_jobs, data(40))
