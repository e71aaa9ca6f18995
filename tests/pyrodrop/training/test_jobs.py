"""Units of work in several processes: the bits of one process, whatever the backend, and what is refused."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import pytest
import torch
from joblib.parallel import ParallelBackendBase
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.data import Dataset
from pyrodrop.processes import Process
from pyrodrop.training.blocks import Parts, block_sizes, blocks_of
from pyrodrop.training.jobs import _alone, _watched, end_with, pickled, run_each, through_joblib, without_interrupts
from pyrodrop.training.replicates import Replicates
from pyrodrop.training.settings import Settings

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


def assert_same(some: Replicates, others: Replicates, *, but: tuple[int, ...] = ()) -> None:
    """Parameters, buffers and losses; of the replicates `but`, which failed, not the losses after that."""
    assert some.failed == others.failed
    assert len(some) == len(others)
    for number, (one, other) in enumerate(zip(some, others, strict=True)):
        for part in ("model", "guide"):
            states = (getattr(fit, part).state_dict() for fit in (one, other))
            for (name, value), same in zip(next(states).items(), next(states).values(), strict=True):
                assert torch.equal(value, same), f"{part} {name} of replicate {number}"
        assert number in but or torch.equal(one.history, other.history)
        assert one.data is not None
        assert other.data is not None
        assert one.data.fingerprint == other.data.fingerprint
        assert one.settings["seed"] == other.settings["seed"]


@pytest.mark.more
@pytest.mark.unshifted
def test_two_processes_give_the_bits_of_one_call_without_jobs() -> None:
    """36 replicates are two blocks, and one of them fails."""
    sets = data(36)
    sets[19] = (sets[19][0], sets[19][1] * 1e30)
    alone = pyrodrop.fit_replicates(*made(), sets, count=36, **OPTIONS)
    two = pyrodrop.fit_replicates(*made(), sets, count=36, jobs=2, **OPTIONS)
    assert list(two.failed) == [19]
    assert_same(alone, two)
    assert {fit.settings["replicates"] for fit in two} == {32, 4}


@pytest.mark.slow
@pytest.mark.parametrize("broken", [range(32), range(32, 40)])
def test_a_block_in_which_all_replicates_fail(broken: range) -> None:
    """In one process the others go on, and those that failed keep their last finite parameters."""
    sets = [(x, y * 1e30) if r in broken else (x, y) for r, (x, y) in enumerate(data(40))]
    alone = pyrodrop.fit_replicates(*made(), sets, count=40, **OPTIONS)
    blocks = pyrodrop.fit_replicates(*made(), sets, count=40, jobs=1, **OPTIONS)
    assert sorted(alone.failed) == [*broken]
    assert_same(alone, blocks, but=tuple(broken))
    with pytest.raises(FloatingPointError, match="stopped being finite"):
        pyrodrop.fit_replicates(*made(), [(x, y * 1e30) for x, y in data(40)], count=40, jobs=1, **OPTIONS)


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


@pytest.mark.more
def test_a_backend_without_generators_is_enough(lists: None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="does not support return_as"):
        joblib.Parallel(return_as="generator")
    model, guide = made()
    sets = data(35)
    found = pyrodrop.fit_replicates(model, guide, sets, count=35, **{**OPTIONS, "steps": 3, "progress": True})
    assert Lists.units == 2
    assert re.search(r"35 replicates: +(50|100)%", capsys.readouterr().err)  # the last may be too soon to be shown
    with joblib.parallel_config("sequential"):
        assert_same(found, pyrodrop.fit_replicates(model, guide, sets, count=35, **{**OPTIONS, "steps": 3}))


def test_units_run_with_one_thread_and_on_their_own(lists: None) -> None:
    """A fit within a unit sees no backend; the number of threads is the caller's afterwards."""
    torch.set_num_threads(2)
    arrived: list[tuple[int, Any]] = []
    found = run_each(
        _seen, [(n,) for n in range(3)], 3, jobs=None, title="units", unit="unit", done=lambda *a: arrived.append(a)
    )
    assert found == [(n, 1, False) for n in range(3)]
    assert arrived == list(enumerate(found))
    assert torch.get_num_threads() == 2
    assert through_joblib(None)


def _seen(number: int) -> tuple[int, int, bool]:
    return number, torch.get_num_threads(), through_joblib(None)


@pytest.mark.more
def test_what_is_logged_in_a_worker_is_logged_here(lists: None, caplog: pytest.LogCaptureFixture) -> None:
    """A block of replicates counts from 0; the caller's numbers are logged, once."""
    model, guide = made()
    sets = data(35)
    sets[33] = (sets[33][0], sets[33][1] * 1e30)
    found = pyrodrop.fit_replicates(model, guide, sets, count=35, **{**OPTIONS, "steps": 3})
    assert list(found.failed) == [33]
    stopped = [record.getMessage() for record in caplog.records if "stopped at step" in record.getMessage()]
    assert [words.split(" stopped")[0] for words in stopped] == ["replicate 33"]


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


def test_a_worker_that_lacks_a_module_says_so() -> None:
    payload = pickled({"a unit": (_Gone, ())}).replace(b"_Gone", b"_Lost")
    with pytest.raises(RuntimeError, match=r"worker process .* cannot import what a unit of work is made of.*_Lost"):
        _alone(payload, 0, str(Process.this()))


class _Gone:
    pass


def test_a_worker_of_a_cluster_that_lacks_data_says_where() -> None:
    def reads() -> None:
        raise FileNotFoundError("/nowhere/uci/boston/data.txt")

    elsewhere = "0123456789-1-1"
    with pytest.raises(ValueError, match=r"worker process \d+ on .* failed: /nowhere.*PYRODROP_DATA"):
        _alone(pickled({"a unit": (reads, ())}), 0, elsewhere)
    with pytest.raises(FileNotFoundError):
        _alone(pickled({"a unit": (reads, ())}), 0, str(Process.this()))


def test_ctrl_c_does_not_reach_processes_that_are_started_for_units() -> None:
    """A terminal sends it to all processes; each would show a traceback. Their parent gets it afterwards."""
    program = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    command = [sys.executable, "-S", "-c", program]

    def blocked() -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def interrupted() -> None:
        with without_interrupts():
            os.kill(os.getpid(), signal.SIGINT)  # which another thread may get
            inside.append(blocked())

    inside: list[str] = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell ignores in the background
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert (inside, blocked()) == (["True"], "False")
    finally:
        signal.signal(signal.SIGINT, before)


def test_only_children_end_with_their_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the worker of a cluster, whose parent may have the caller's number on another machine."""
    started: list[Any] = []
    monkeypatch.setattr(threading.Thread, "start", lambda self: started.append(self))
    end_with(Process("elsewhere", os.getppid(), 0))
    end_with(Process(Process.this().place, os.getpid(), 0))
    assert not started
    end_with(Process(Process.this().place, os.getppid(), 0))
    assert len(started) == 1
    _watched.discard(os.getppid())


@pytest.mark.parametrize("count", [1, 2, 20, 31, 32, 33, 40, 63, 64, 65, 100, 127, 129, 240, 1000])
def test_blocks_divide_at_multiples_of_32(count: int) -> None:
    sizes = block_sizes(count, heavy=False, program=None)
    assert sum(sizes) == count
    assert all(size % 32 == 0 for size in sizes[:-1])
    assert len(sizes) == 1 or min(sizes) > 1
    assert max(sizes) < 96
    assert (len(sizes) == 1) == (count < 34)
    assert block_sizes(count, heavy=True, program=None) == [1] * count
    assert block_sizes(240, heavy=False, program=60) == [60] * 4


@pytest.mark.few(5)
@pytest.mark.parametrize("operation", [torch.sigmoid, nn.functional.softplus, lambda v: v**3.3, torch.exp, torch.tanh])
@pytest.mark.parametrize("count", [34, 40, 63, 64, 97, 240])
def test_an_operation_on_numbers_of_replicates_has_the_same_bits_in_blocks(operation: Any, count: int) -> None:
    """PyTorch computes two vectors at a time, 32 numbers with AVX-512, and the rest by functions that round differently."""
    for dtype in (torch.float32, torch.float64):
        values = 3 * torch.rand(200, count, dtype=dtype, generator=torch.Generator().manual_seed(0)) + 0.1
        for own in values.unbind(0):
            cut = own.split(block_sizes(count, heavy=False, program=None))
            assert torch.equal(operation(own), torch.cat([operation(block) for block in cut]))


@pytest.mark.parametrize("what", ["prior", "dtype"])
def test_replicates_that_train_together_in_one_process_are_cut_by_themselves(what: str) -> None:
    """24 of one kind among 46 of another: other priors, or another dtype."""
    sets, pairs = [], []
    for r, (x, y) in enumerate(data(70)):
        other = r % 3 == 0
        prior = priors.Laplace() if other and what == "prior" else priors.Gaussian()
        dtype = torch.float64 if other and what == "dtype" else torch.float32
        model = models.MLP([3, 5, 1], prior=prior, likelihood=likelihoods.Gaussian(10.0)).to(dtype)
        pairs.append((model, guides.MeanField(model)))
        sets.append(Dataset.of((x.to(dtype), y.to(dtype))))
    found = blocks_of(Parts(pairs, sets, range(70)), Settings(steps=3, batch_size=10, engine="traced", device="cpu"))
    assert [[r % 3 == 0 for r in block.numbers] for block in found] == [[True] * 24, [False] * 32, [False] * 14]


@pytest.mark.parametrize("draws", [False, True])
def test_other_threads_may_use_pythons_generator(draws: bool) -> None:
    """The event loop of a Dask worker does; a network that draws itself is refused nevertheless."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            time.sleep(0.01)
            return self.layer(x) * (1 + 1e-9 * random.gauss(0, 1) if draws else 1)

    stop = threading.Event()

    def busy() -> None:
        while not stop.wait(1e-4):
            random.random()

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        model = models.from_module(Net(), prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))
        if draws:
            with pytest.raises(ValueError, match="draws random numbers itself"):
                pyrodrop.fit(model, guides.MeanField(model), data(1)[0], steps=2, engine="traced", device="cpu")
        else:
            pyrodrop.fit(model, guides.MeanField(model), data(1)[0], steps=2, engine="traced", device="cpu")
    finally:
        stop.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_dask_worker_that_is_killed_in_the_middle_of_its_block(tmp_path: Path) -> None:
    """Two workers of one thread; the block is done again, and the results are those of one process."""
    distributed = pytest.importorskip("distributed")
    model, guide = made()
    options = {**OPTIONS, "steps": 1500}
    alone = pyrodrop.fit_replicates(model, guide, data(40), count=40, **options)
    killed: list[int] = []
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, local_directory=str(tmp_path)
        ) as cluster,
        distributed.Client(cluster) as client,
        joblib.parallel_config("dask"),
    ):

        def kill_one() -> None:
            while True:
                busy = [address for address, tasks in client.processing().items() if tasks]
                if len(busy) == 2:
                    time.sleep(3.0)
                    (worker,) = [own for own in cluster.workers.values() if own.worker_address == busy[0]]
                    if client.processing()[busy[0]]:
                        killed.append(worker.pid)
                        os.kill(worker.pid, signal.SIGKILL)
                    return
                time.sleep(0.05)

        thread = threading.Thread(target=kill_one, daemon=True)
        thread.start()
        in_jobs = pyrodrop.fit_replicates(model, guide, data(40), count=40, **options)
        thread.join(60)
    assert len(killed) == 1
    assert_same(alone, in_jobs)
