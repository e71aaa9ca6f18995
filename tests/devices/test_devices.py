"""The package on a device other than the CPU, without one: see `pretended.py`. One test is one process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILE = "tests/devices/on_the_device.py"
GPU_TESTS = "tests/pyrodrop/training/test_on_a_gpu.py"


def runs(file: str, *options: str) -> int:
    """The number of tests of a file that pass there; all must."""
    command = [
        sys.executable,
        *["-P", "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-p", "tests.devices.pretended"],
    ]
    surroundings = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, file, *options], cwd=ROOT, env=surroundings, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    counted = re.search(r"(\d+) passed", done.stdout)
    return int(counted[1]) if counted else 0


@pytest.mark.more
def test_a_few_posteriors_and_a_mistake() -> None:
    assert runs(FILE, "-k", "elsewhere or every_posterior or every_estimator") >= 5


@pytest.mark.slow
@pytest.mark.parametrize("name", re.findall(r"def (test_\w+)", (ROOT / FILE).read_text(encoding="utf-8")))
def test_all(name: str) -> None:
    runs(FILE, "-k", name, "-m", "more or not more")


@pytest.mark.slow
@pytest.mark.parametrize("engines", ["not compiled and not traced", "traced"])
def test_the_tests_for_a_gpu_can_pass(engines: str) -> None:
    """Those without a compiler and without products in TensorFloat-32."""
    assert runs(GPU_TESTS, "-m", "gpu", "-k", f"({engines}) and not short_products") > 5
