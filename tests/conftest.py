"""Shared fixtures. Tests that need data on disk or a GPU skip with the reason."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyro
import pytest
import torch

torch.set_num_threads(1)  # the nets of the tests are small: a second thread would mostly wait


@pytest.fixture(autouse=True)
def _fresh_state() -> Iterator[None]:
    """Every test starts from one seed and leaves neither parameters nor a default dtype behind."""
    pyro.clear_param_store()
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)
    pyro.clear_param_store()


@pytest.fixture
def float64() -> None:
    torch.set_default_dtype(torch.float64)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    folder = os.environ.get("PYRODROP_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs the data sets: set PYRODROP_DATA to a folder that holds them")
    return Path(folder)
