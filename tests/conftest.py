"""Shared fixtures, which cases ``make test`` runs, and shifted seeds.

Tests that need data on disk or a GPU skip with the reason. With the environment variable PYRODROP_SEED_SHIFT, a whole
number, all seeds are other ones (``make any-processor``).
"""

from __future__ import annotations

import atexit
import gc
import getpass
import os
import shutil
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyro
import pytest
import torch
from torch.distributions import Distribution

os.environ.setdefault(
    "TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}")
)
os.environ["PYRODROP_CACHE"] = tempfile.mkdtemp(prefix="pyrodrop-tests-")  # programs of this run alone
atexit.register(shutil.rmtree, os.environ["PYRODROP_CACHE"], ignore_errors=True)
torch.set_num_threads(1)  # the nets of the tests are small: a second thread would mostly wait
SEED_SHIFT = int(os.environ.get("PYRODROP_SEED_SHIFT", "0"))


def _shift_seeds(by: int) -> None:
    """Seed s of PyTorch, and of NumPy's ``default_rng``, is seed s + `by` from here on, in the package as in its tests."""
    manual_seed, default_rng = torch.manual_seed, np.random.default_rng

    class Generator(torch.Generator):
        def manual_seed(self, seed: int) -> torch.Generator:
            return super().manual_seed(seed + by)

    torch.Generator = Generator  # type: ignore[misc]
    torch.manual_seed = torch.random.manual_seed = lambda seed: manual_seed(seed + by)
    np.random.default_rng = lambda seed=None: default_rng(seed + by if isinstance(seed, int) else seed)


if SEED_SHIFT:
    _shift_seeds(1_000_003 * SEED_SHIFT)  # further apart than the seeds of one test


@pytest.hookimpl(tryfirst=True)  # before -m is read
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks with ``more`` all but n cases of a test marked ``few(n)``: those whose names have the smallest checksums, of
    those that are not marked so by themselves."""
    cases = defaultdict(list)
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if marks & {"slow", "gpu"}:
            continue
        if (few := item.get_closest_marker("few")) and "more" not in marks:
            cases[item.nodeid.partition("[")[0], *few.args].append(item)
        if SEED_SHIFT and "unshifted" in marks:
            item.add_marker(pytest.mark.skip(reason="compares with draws of seeds that are not shifted"))
    for (_, n), of_one_test in cases.items():
        for item in sorted(of_one_test, key=lambda item: zlib.crc32(item.name.encode()))[n:]:
            item.add_marker(pytest.mark.more)


def pytest_collection_finish() -> None:
    """What is imported by now stays: the garbage collector need not look at it again, here and in tests that call it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _fresh_state() -> Iterator[None]:
    """Every test starts from one seed and leaves neither parameters nor a default dtype behind."""
    pyro.clear_param_store()
    Distribution.set_default_validate_args(True)  # torch.compile switches it off for the process
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
