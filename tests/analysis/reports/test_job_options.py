"""The options that jobs share: in signature, docstring and call."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import get_type_hints

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


def test_a_function_has_its_own_options_and_those_it_shares() -> None:
    assert list(inspect.signature(run).parameters) == ["steps", "out", "jobs", "seed", "quiet"]
    hints = get_type_hints(run)
    assert hints.pop("return") == tuple[JobOptions, int]
    assert hints == {"steps": int, "out": Path, "jobs": int | None, "seed": int, "quiet": bool}
    assert "\n    out: folder.\n    jobs: number of processes" in (run.__doc__ or "")
    assert (run.__doc__ or "").rstrip().endswith("What it was called with.")


def test_they_are_checked_before_it_begins() -> None:
    assert run(seed=2, jobs=3, steps=4) == (JobOptions(torch.device("cpu"), 3, 2, False), 4)
    assert (run()[0].progress, run(quiet=True)[0].progress) == (None, False)
    with pytest.raises(ValueError, match="seed"):
        run(seed=-1)
    with pytest.raises(TypeError, match="device"):  # which this one does not have
        run(device="cpu")
