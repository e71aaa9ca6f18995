"""Trainings and jobs that are killed at random moments continue to the same bits.

Every job runs in forked processes, which share the imports. Most kills come some time after a new save, so that they hit
steps and saves alike; the others come at any time from the start.
"""

from __future__ import annotations

import functools
import os
import random
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.files import read_tensors, write_tensors

pytestmark = pytest.mark.slow

X = torch.linspace(-1, 1, 60)[:, None]
Y = torch.sin(3 * X)
STEPS = 240
GUIDES: dict[str, Callable[[Any], Any]] = {
    "bernoulli": lambda model: guides.BernoulliDropout(model, 0.2),
    "mean field": guides.MeanField,
    "variational": guides.VariationalDropout,
    "concrete": guides.ConcreteDropout,
    "low rank": guides.LowRank,
    "ensemble": lambda model: guides.Ensemble(model, guides.MeanField, members=2),
}


def pair(name: str) -> tuple[Any, Any]:
    torch.manual_seed(2)
    model = models.MLP([1, 16, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(10.0, learned=True))
    return model, GUIDES[name](model)


def forked(job: Callable[[], None]) -> int:
    """A process that runs the job and ends with status 0, or 1 after an error; its id."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            job()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def ended(pid: int) -> int | None:
    """The status of a process as `os.waitpid` gives it; None if it runs."""
    done, status = os.waitpid(pid, os.WNOHANG)
    return status if done else None


def finish(job: Callable[[], None]) -> None:
    _, status = os.waitpid(forked(job), 0)
    assert status == 0


def kill(job: Callable[[], None], file: Path, moment: random.Random, *, most: float) -> bool:
    """Start the job and kill it; False if it ended before."""
    pid, before, start = forked(job), stamp(file), time.monotonic()
    delay = moment.uniform(0, most)
    if moment.random() < 0.75:
        while stamp(file) == before and ended_or_waits(pid, start):
            time.sleep(0.001)
        delay = moment.uniform(0, 0.2)
    time.sleep(delay)
    try:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):  # it was waited for already
        return False
    return os.WIFSIGNALED(status)


def ended_or_waits(pid: int, start: float) -> bool:
    """Whether to wait for a save still; an error of the job is an error of the test."""
    status = ended(pid)
    assert status in (None, 0), "the job failed"
    return status is None and time.monotonic() - start < 120


def stamp(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def equal(first: Path, second: Path) -> bool:
    a, b = read_tensors(first)[0], read_tensors(second)[0]
    return a.keys() == b.keys() and all(torch.equal(value, b[name]) for name, value in a.items())


def survives(
    job: Callable[[Path], None], folder: Path, kills: int, seed: str, counted: Counter[str], what: str, *, most: float
) -> None:
    """Run the job without interruption and with kills, and compare result files and what is left."""
    whole, interrupted = folder / "whole", folder / "part"
    for place in (whole, interrupted):
        place.mkdir()
    finish(functools.partial(job, whole))
    moment, done, tries = random.Random(seed), 0, 0
    while done < kills:
        tries += 1
        assert tries < 20 * kills, "it always ends before it is killed"
        if kill(functools.partial(job, interrupted), interrupted / "state", moment, most=most):
            done += 1
            counted[f"kills of {what}"] += 1
        else:  # it was done: from the start
            shutil.rmtree(interrupted)
            interrupted.mkdir()
    finish(functools.partial(job, interrupted))
    assert equal(whole / "result", interrupted / "result")
    names = sorted(path.name for path in interrupted.iterdir() if not path.name.startswith(".pyrodrop-"))
    assert names == ["result", "state"]
    counted[f"results of killed {what} equal to the last bit"] += 1


def train(folder: Path, *, guide: str, engine: Any) -> None:
    fit = pyrodrop.fit(
        *pair(guide), (X, Y), steps=STEPS, batch_size=20, lr=0.01, engine=engine, progress=False,
        checkpoint=pyrodrop.Checkpoint(folder / "state", every=5),
    )  # fmt: skip
    fit.settings = {}  # the seconds differ
    fit.save(folder / "result")


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("engine", ["pyro", "traced"])
def test_fits(guide: str, engine: str, tmp_path: Path, counted: Counter[str]) -> None:
    job = functools.partial(train, guide=guide, engine=engine)
    survives(job, tmp_path, 3, f"{guide} {engine}", counted, "fits", most=2.0)


def test_compiled_fits(tmp_path: Path, counted: Counter[str]) -> None:
    job = functools.partial(train, guide="mean field", engine="compiled")
    survives(job, tmp_path, 2, "compiled", counted, "compiled fits", most=20.0)


def stepwise(folder: Path, *, guide: str) -> None:
    """A loop of a user that saves the state of a Training itself."""
    training = pyrodrop.Training(*pair(guide), (X, Y), batch_size=20, lr=0.01, engine="traced")
    if (folder / "state").exists():
        training.load_state(read_tensors(folder / "state")[0])
    while training.steps_done < STEPS:
        training.advance(5)
        write_tensors(folder / "state", training.state(), {})
    fit = training.fit
    fit.settings = {}
    fit.save(folder / "result")


@pytest.mark.parametrize("guide", ["bernoulli", "ensemble"])
def test_trainings(guide: str, tmp_path: Path, counted: Counter[str]) -> None:
    survives(functools.partial(stepwise, guide=guide), tmp_path, 3, guide, counted, "trainings", most=2.0)


def test_a_job(tmp_path: Path, counted: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every network of the job continues from its own checkpoint: the table is that of a run without interruption."""
    from pyrodrop.analysis.lab.experiments.co2 import experiment as co2

    for constant in ("DRAWS", "ELBO_DRAWS", "CURVE_DRAWS"):
        monkeypatch.setattr(co2, constant, 2)

    def job(folder: Path) -> None:
        content = co2.run(preset="paper", steps=3, out=folder / "run", quiet=True)
        rows = {name: {k: v for k, v in row.items() if k != "seconds"} for name, row in content["models"].items()}
        numbers = [
            0.0 if v is None else float(f"{v:.12g}")  # sums are rounded as memory happens to be aligned
            for row in rows.values()
            for v in row.values()
            if not isinstance(v, str)
        ]
        write_tensors(folder / "result", {"models": torch.tensor(numbers, dtype=torch.float64)}, {})

    whole, interrupted = tmp_path / "whole", tmp_path / "part"
    for place in (whole, interrupted):
        place.mkdir()
    finish(functools.partial(job, whole))
    moment, done = random.Random("job"), 0
    while done < 4:
        saved = interrupted / "run" / "checkpoints"
        if kill(functools.partial(job, interrupted), saved, moment, most=5.0):
            done += 1
            counted["kills of a job"] += 1
        else:
            shutil.rmtree(interrupted)
            interrupted.mkdir()
    finish(functools.partial(job, interrupted))
    assert equal(whole / "result", interrupted / "result")
    assert [path.name for path in (interrupted / "run").rglob(".pyrodrop*")] == []
    counted["results of killed jobs equal to twelve digits"] += 1
