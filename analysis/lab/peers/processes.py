"""The peers: the script for each method of each package, run in a separate process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pyrodrop.data import Dataset
from pyrodrop.likelihoods import Gaussian
from pyrodrop.scaling import Standardize
from pyrodrop.zoo.exact import Problem

SCRIPTS = Path(__file__).parent / "scripts"
OURS = "pyrodrop"
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "JAX_TRACEBACK_FILTERING": "off",  # so that the last line of a failure is its message
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}


@dataclass(frozen=True)
class Peer:
    """A method of a package, a row of the table.

    Attributes:
        package: name of the package in pip.
        script: name of the file in `SCRIPTS`.
        method: argument of the script.
    """

    package: str
    script: str
    method: str

    @property
    def name(self) -> str:
        return f"{self.package}, {self.method}"


PEERS = {
    peer.name: peer
    for peer in (
        *(Peer(OURS, "ours.py", method) for method in (
            "point", "MC dropout .05", "mean field", "low rank 4", "ensemble of 5 points", "exact last layer"
        )),
        Peer(OURS, "ours.py", "sample"),
        *(Peer("laplace-torch", "laplace_torch.py", method) for method in ("full", "KFAC", "last layer")),
        Peer("numpyro", "numpyro_.py", "NUTS"),
        Peer("numpyro", "numpyro_.py", "AutoNormal"),
        Peer("blackjax", "blackjax_.py", "ChEES"),
        Peer("blackjax", "blackjax_.py", "MCLMC"),
    )
}  # fmt: skip


class Fault(Exception):
    """A script failed; the message is the error that it wrote last."""


def arrays(problem: Problem, train: Dataset, points: Any, *, draws: int, steps: int, seed: int) -> dict[str, Any]:
    """The content of a problem's file, with the data as the network receives them; see ``scripts/peer.py``."""
    inputs, targets = train.inputs or Standardize(), train.targets or Standardize()
    likelihood = problem.likelihood()
    gaussian = isinstance(likelihood, Gaussian)
    precision = float(likelihood.precision * targets.scale.squeeze() ** 2) if gaussian else 0.0
    return {
        "x": inputs(train.x).float().numpy(),
        "y": (targets(train.y).float() if gaussian else train.y).numpy(),
        "points": inputs(points).float().numpy(),
        "widths": np.array(problem.widths),
        "activation": np.array(problem.activation),
        "scales": np.array(problem.scales),
        "precision": np.array(precision),
        "draws": np.array(draws),
        "steps": np.array(steps),
        "seed": np.array(seed),
    }


def releases(python: str | Path, packages: Sequence[str]) -> dict[str, str]:
    """The versions of the packages that are installed for an interpreter.

    Raises:
        ValueError: the interpreter cannot be started.
    """
    command = [str(python), str(SCRIPTS / "releases.py"), *packages]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ValueError(f"python must be the path of a Python interpreter; got {python}: {error}") from None
    return dict(json.loads(done.stdout))


def interpreters(python: Sequence[Path], packages: Sequence[str]) -> dict[str, str]:
    """The first interpreter by package that has it: those of `python`, then the running one, which is always pyrodrop's."""
    interpreter_of = {OURS: sys.executable}
    for each in (*python, Path(sys.executable)):
        for package in releases(each, packages):
            interpreter_of.setdefault(package, str(each))
    return interpreter_of


def run_script(
    script: Path,
    method: str,
    python: str,
    content: Mapping[str, Any],
    folder: Path,
    seconds: float,
) -> tuple[Any, dict[str, Any]]:
    """Draws ``[S, P, D]`` of a method that runs in a separate process on one thread, and its notes about them.

    Raises:
        Fault: the script failed, took longer than `seconds`, or did not write finite draws of this shape.
    """
    source, target = folder / "problem.npz", folder / "draws.npz"
    np.savez(source, **content)
    target.unlink(missing_ok=True)
    command = [python, str(script), method, str(source), str(target)]
    try:
        done = subprocess.run(
            command, env=os.environ | ONE_THREAD | {"PYTHONSAFEPATH": ""},  # scripts import their neighbours
            capture_output=True, text=True, timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Fault(f"took longer than {seconds:g} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
        raise Fault((named or lines or [f"exit status {done.returncode}"])[-1])
    try:
        with np.load(target, allow_pickle=False) as file:
            f, about = file["f"], dict(json.loads(str(file["about"])))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise Fault(f"wrote no draws: {error}") from None
    if f.ndim != 3 or f.shape[1] != len(content["points"]) or not np.isfinite(f).all():
        raise Fault(f"wrote draws of shape {list(f.shape)}, {int((~np.isfinite(f)).sum())} of them not finite")
    return f, about
