"""Trainings as units of work: who makes them, on a CPU and on a GPU."""

from __future__ import annotations

import os

import pytest
import torch

from pyrodrop.analysis.lab.experiments.parallel import train_each
from pyrodrop.analysis.reports.job_options import JobOptions


def process(name: str, *, device: torch.device, progress: bool | None) -> tuple[str, int]:
    return f"{name} on {device}", os.getpid()


@pytest.mark.parametrize("jobs", [None, 1, pytest.param(2, marks=pytest.mark.more)])
def test_trainings_share_a_gpu_where_a_number_of_processes_is_asked_for(jobs: int | None) -> None:
    made = train_each(process, ["a", "b"], JobOptions(torch.device("cuda"), jobs, 0, True))
    assert [words for words, _ in made.values()] == ["a on cuda", "b on cuda"]
    assert all((worker != os.getpid()) == (jobs == 2) for _, worker in made.values())
