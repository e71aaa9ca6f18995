"""A Dask cluster of two workers with one thread each, one of which is killed while both work."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import joblib
import pytest


@contextmanager
def losing_a_worker(folder: Path) -> Iterator[list[int]]:
    """joblib's backend within the block; the number of the process that was killed."""
    distributed = pytest.importorskip("distributed")
    killed: list[int] = []
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, local_directory=str(folder)
        ) as cluster,
        distributed.Client(cluster) as client,
        joblib.parallel_config("dask"),
    ):

        def kill_one() -> None:
            while not killed:
                busy = [address for address, tasks in client.processing().items() if tasks]
                if len(busy) == 2:
                    time.sleep(3.0)
                    (worker,) = [process for process in cluster.workers.values() if process.worker_address == busy[0]]
                    if client.processing()[busy[0]]:
                        killed.append(worker.pid)
                        os.kill(worker.pid, signal.SIGKILL)
                time.sleep(0.05)

        threading.Thread(target=kill_one, daemon=True).start()
        yield killed
