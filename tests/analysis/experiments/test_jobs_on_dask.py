"""A job on a Dask cluster: two workers of one thread, one of which is killed."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import joblib
import pytest

from pyrodrop.analysis.experiments import job

distributed = pytest.importorskip("distributed")


def results(folder: Path) -> dict[str, Any]:
    """The files of the cells, but for times."""
    read = {path.name: json.loads(path.read_text()) for path in sorted(folder.glob("yacht-*.json"))}
    return {name: {k: v for k, v in content.items() if k != "seconds"} for name, content in read.items()}


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_uci_with_a_killed_worker(tmp_path: Path, data_folder: Path) -> None:
    """Cells are the units. Workers of another machine write nothing into the run's folder; the caller does."""
    options: dict[str, Any] = {"data": ["yacht"], "guides": ["bernoulli", "mean-field"], "splits": 2, "quiet": True}
    job("uci").function(**options, jobs=1, out=tmp_path / "one process")
    killed: list[int] = []
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, local_directory=str(tmp_path)
        ) as cluster,
        distributed.Client(cluster) as client,
        joblib.parallel_config("dask"),
    ):

        def kill_one() -> None:
            while not killed:
                busy = [address for address, tasks in client.processing().items() if tasks]
                if len(busy) == 2:
                    time.sleep(3.0)
                    (worker,) = [own for own in cluster.workers.values() if own.worker_address == busy[0]]
                    killed.append(worker.pid)
                    os.kill(worker.pid, signal.SIGKILL)
                time.sleep(0.05)

        threading.Thread(target=kill_one, daemon=True).start()
        start = time.perf_counter()
        job("uci").function(**options, out=tmp_path / "cluster")
        print(f"worker {killed} was killed; {time.perf_counter() - start:.0f} s")
    assert len(killed) == 1
    one, other = results(tmp_path / "one process"), results(tmp_path / "cluster")
    assert len(one) == 2
    assert one == other
