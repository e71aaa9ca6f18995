"""A full disk, folders that may not be written to, and two processes at one checkpoint."""

from __future__ import annotations

import functools
import os
import resource
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.files import read_tensors

pytestmark = pytest.mark.slow

X = torch.linspace(-1, 1, 60)[:, None]
Y = torch.sin(3 * X)


def fit(steps: int, engine: Any = "traced", **options: Any) -> pyrodrop.Fit:
    torch.manual_seed(2)
    model = models.MLP([1, 16, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(10.0))
    return pyrodrop.fit(
        model, guides.MeanField(model), (X, Y), steps=steps, batch_size=20, lr=0.01, engine=engine, progress=False,
        **options,
    )  # fmt: skip


def in_a_process(job: functools.partial[Any], most: int | None = None, user: int | None = None) -> str:
    """Run a job with a limit of the size of files or as a user; what it raises, in words."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        message = ""
        try:
            if most is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
            if user is not None:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            job()
        except BaseException as error:
            message = f"{type(error).__name__}: {error}"
        os.write(write, message.encode()[:4000])
        os._exit(0)
    os.close(write)
    message = b""
    while piece := os.read(read, 4096):
        message += piece
    os.close(read)
    os.waitpid(pid, 0)
    return message.decode()


def same(first: pyrodrop.Fit, second: pyrodrop.Fit) -> bool:
    mine, other = (fit.guide.state_dict() for fit in (first, second))  # type: ignore[attr-defined]
    return torch.equal(first.history, second.history) and all(torch.equal(v, other[n]) for n, v in mine.items())


@pytest.mark.parametrize("engine", ["pyro", "traced"])
def test_a_full_disk_stops_a_fit_and_leaves_the_last_state(engine: str, tmp_path: Path, counted: Counter[str]) -> None:
    """The history grows until the file does not fit; with more room the same call continues."""
    whole, state = fit(600, engine), tmp_path / "state"
    options = {"engine": engine, "checkpoint": pyrodrop.Checkpoint(state, every=50)}
    fit(100, **options)
    limit = state.stat().st_size + 2000
    message = in_a_process(functools.partial(fit, 600, **options), most=limit)
    assert message == f"OSError: [Errno 27] cannot write the file: File too large: '{state}'"
    done = len(read_tensors(state)[0]["history"])
    assert 100 < done < 600
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    assert same(fit(600, **options), whole)
    counted["fits stopped by a full disk that continued to the same bits"] += 1


@pytest.mark.skipif(not os.path.ismount("/dev/shm") or os.geteuid() != 0, reason="needs to mount a small file system")
def test_a_disk_that_is_really_full(tmp_path: Path, counted: Counter[str]) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.system(f"mount -t tmpfs -o size=512k tmpfs {disk} 2>/dev/null") != 0:
        pytest.skip("may not mount a file system")
    try:
        state = disk / "state"
        options: dict[str, Any] = {"checkpoint": pyrodrop.Checkpoint(state, every=50)}
        fit(50, **options)
        free = os.statvfs(disk)
        (disk / "other").write_bytes(bytes(free.f_bavail * free.f_frsize - 2 * state.stat().st_size))
        with pytest.raises(OSError, match="cannot write the file: No space left on device") as caught:
            fit(3000, **options)
        assert caught.value.filename == str(state)
        assert len(read_tensors(state)[0]["history"]) >= 50
        assert sorted(path.name for path in disk.iterdir()) == ["other", "state"]
        (disk / "other").unlink()
        assert same(fit(400, **options), fit(400))
        counted["fits stopped by a full disk that continued to the same bits"] += 1
    finally:
        os.system(f"umount -l {disk}")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_a_folder_that_may_not_be_written_to_is_refused_before_the_first_step(
    tmp_path: Path, counted: Counter[str]
) -> None:
    for path in (tmp_path, *list(tmp_path.parents)[:2]):  # pytest's folders are its user's alone
        path.chmod(0o755)
    state = tmp_path / "state"
    fit(10, checkpoint=state)
    mode = state.stat().st_mode
    seen: list[int] = []
    job = functools.partial(fit, 20, checkpoint=state, after_epoch=lambda fit, epoch: seen.append(epoch))
    message = in_a_process(job, user=65534)
    assert message == f"PermissionError: [Errno 13] cannot write the file: Permission denied: '{state}'"
    tmp_path.chmod(0o777)  # the folder may be written to, the file not
    assert in_a_process(job, user=65534) == message
    state.chmod(0o000)
    assert "cannot write the file: Permission denied" in in_a_process(job, user=65534)
    state.chmod(mode)
    assert same(fit(20, checkpoint=state), fit(20))
    counted["read-only folders and files refused before the first step"] += 3


def test_two_processes_at_one_checkpoint(tmp_path: Path, counted: Counter[str]) -> None:
    """Both end with the right result, and the file is whole at every moment."""
    state = tmp_path / "state"
    options: dict[str, Any] = {"checkpoint": pyrodrop.Checkpoint(state, every=2)}

    def save(name: str) -> None:
        run = fit(200, **options)
        run.settings = {}
        run.save(tmp_path / name)

    pids = []
    for name in ("one", "two"):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                save(name)
                status = 0
            finally:
                os._exit(status)
        pids.append(pid)
    reads = 0
    while pids:
        for pid in list(pids):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                assert status == 0
                pids.remove(pid)
        if state.exists():
            assert "history" in read_tensors(state)[0]
            reads += 1
    want = fit(200)
    for name in ("one", "two"):
        assert torch.equal(read_tensors(tmp_path / name)[0]["history"], want.history)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "state", "two"]
    counted["whole files read while two processes wrote them"] += reads
    counted["pairs of processes at one checkpoint with the right results"] += 1


def test_two_runs_at_one_checkpoint_do_not_mix(tmp_path: Path, counted: Counter[str]) -> None:
    """The second of two different runs is refused when it starts, and a file of the other is never continued."""
    state = tmp_path / "state"
    fit(10, checkpoint=pyrodrop.Checkpoint(state, every=2))
    message = in_a_process(functools.partial(fit, 20, checkpoint=state, seed=1))
    assert message.startswith(f"ValueError: the checkpoint {state} is of another run: seed is 0 there and 1 here")
    counted["other runs at a checkpoint refused"] += 1
