"""The options that jobs share: in signature, docstring and call."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options


@with_job_options("jobs")
def run(job: JobOptions, *, steps: int = 3, out: Path = Path("here")) -> tuple[JobOptions, int]:
    """Nothing.

    Args:
        steps: number of steps.
        out: folder.

    Returns:
        What it was called with.
    """
    return job, steps


def test_they_are_checked_before_it_begins() -> None:
    assert run(seed=2, jobs=3, steps=4) == (JobOptions(torch.device("cpu"), 3, 2, False), 4)
    assert (run()[0].progress, run(quiet=True)[0].progress) == (None, False)
    with pytest.raises(ValueError, match="seed"):
        run(seed=-1)
    with pytest.raises(TypeError, match="device"):  # which this one does not have
        run(device="cpu")
