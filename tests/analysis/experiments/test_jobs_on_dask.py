"""A job on a Dask cluster: two workers of one thread, one of which is killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyrodrop.analysis.experiments import job
from tests.cluster import losing_a_worker


def results(folder: Path) -> dict[str, Any]:
    """The files of the cells, but for times."""
    read = {path.name: json.loads(path.read_text()) for path in sorted(folder.glob("yacht-*.json"))}
    return {name: {k: v for k, v in content.items() if k != "seconds"} for name, content in read.items()}


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_uci_with_a_killed_worker(tmp_path: Path, data_folder: Path) -> None:
    """Cells are the units. Workers of another machine write nothing into the run's folder; the caller does."""
    options: dict[str, Any] = {"data": ["yacht"], "guides": ["bernoulli", "mean-field"], "splits": 2, "quiet": True}
    job("uci")(**options, jobs=1, out=tmp_path / "one process")
    with losing_a_worker(tmp_path) as killed:
        job("uci")(**options, out=tmp_path / "cluster")
    assert len(killed) == 1
    one, other = results(tmp_path / "one process"), results(tmp_path / "cluster")
    assert len(one) == 2
    assert one == other
