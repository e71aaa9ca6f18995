"""Effective samples of f per second: `pyrodrop.sample` against NumPyro's NUTS and blackjax's ChEES, on the same posteriors.

``python -m pyrodrop.analysis.lab.benchmarks.sampling [FILE]``: 2-50-1 on the 100 points of Foong et al. (2020), at 20 points
of their slice, and 6-50-1 on the first split of yacht, at its test points. One thread, processor time, one run; it needs an
interpreter that has the peers (`analysis/lab/peers`). ChEES of blackjax has as many chains, tuning steps and draws as ours,
with an adapted metric and, its default, without. Real data are read from PYRODROP_DATA.

The rows *many chains*, for ``--device cuda``: 64 to 8,000 chains at once on the first problem and on airfoil, 5-50-1 in the
split of bde (https://github.com/scikit-learn-contrib/bde) with noise 0.25 of standardised y, in float32 and wall times
without compilation, which is reported separately; for the peers, in separate processes, it is measured by events of JAX.
These are stopped after `AT_ONCE` seconds.
R-hat of many short chains is larger than that of few long ones: sqrt(1 + 1 / n) for n effective draws in half a chain.

All have the same posterior: means and spreads of f are compared, in standard errors, with those of the first run. Runs have
the first line of their error if they fail.
"""

from __future__ import annotations

import gc
import math
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arviz_stats.base import array_stats
from torch import Tensor

import pyrodrop
from pyrodrop.analysis.lab.benchmarks.tables.whole import table
from pyrodrop.analysis.lab.benchmarks.timing import Bench, Cells, command, why
from pyrodrop.analysis.lab.peers.processes import ON_THE_GPU, ONE_THREAD, SCRIPTS, run_script
from pyrodrop.checks import EngineName
from pyrodrop.models import MLP

AT_ONCE = 60.0  # seconds of a peer on a GPU


@dataclass(frozen=True)
class Case:
    """A posterior, and points at which f is compared; x, y and points are not standardised further."""

    widths: tuple[int, ...]
    scales: tuple[float, ...]
    precision: float
    x: Tensor
    y: Tensor
    points: Tensor

    def model(self) -> MLP:
        """The model."""
        gaussian = pyrodrop.priors.Gaussian
        return MLP(
            self.widths,
            prior={f"layers.{layer}.weight": gaussian(scale) for layer, scale in enumerate(self.scales)},
            bias_prior=gaussian(1.0),
            likelihood=pyrodrop.likelihoods.Gaussian(self.precision),
        )

    def arrays(self, run: Run) -> dict[str, Any]:
        """The content of the file for the scripts of the peers."""
        data = {name: getattr(self, name).numpy() for name in ("x", "y", "points")}
        sizes = {"widths": self.widths, "activation": "relu", "scales": self.scales, "precision": self.precision}
        steps = (6 if "NUTS" in run.how else 12) * run.tune  # of which the scripts tune for this share
        numbers = {"draws": run.chains * run.draws, "steps": steps, "seed": 0}
        return data | {name: np.array(value) for name, value in (sizes | numbers).items()}


@dataclass(frozen=True)
class Run:
    """A sampler with its numbers of transitions; `how` is hmc, ours, or, with a `script`, a method of a peer."""

    how: str
    chains: int
    tune: int
    draws: int
    script: str = ""
    engine: EngineName = "auto"

    @property
    def name(self) -> str:
        how = self.how.removeprefix("64 ").removesuffix(", at once")
        return f"{self.chains:,} {how}" + (f", {self.engine}" if self.engine != "auto" else "")


def origin() -> Case:
    """w ~ N(0, 4^2 / fan-in), noise 0.1 (Foong et al. 2020)."""
    split = pyrodrop.data.foong2020()
    return Case((2, 50, 1), (4 / 2**0.5, 4 / 50**0.5), 100.0, split.train.x, split.train.y, split.test.x[::25])


def yacht() -> Case:
    """w ~ N(0, 1 / fan-in), noise 0.1, on standardised data."""
    split = pyrodrop.data.uci("yacht")[0]
    train, points = split.train, split.test.x
    mean, sd = train.x.mean(0), train.x.std(0)
    y = (train.y - train.y.mean()) / train.y.std()
    return Case((6, 50, 1), (6**-0.5, 50**-0.5), 100.0, (train.x - mean) / sd, y, (points - mean) / sd)


def airfoil() -> Case:
    """w ~ N(0, 1 / fan-in), noise 0.25, on standardised data."""
    from sklearn.model_selection import train_test_split

    columns, targets = table("airfoil")
    x, points, y, _ = train_test_split(columns, targets[:, None], test_size=0.2, random_state=0)
    x, points, y = (torch.tensor((part - of.mean(0)) / of.std(0)).float() for part, of in ((x, x), (points, x), (y, y)))
    return Case((5, 50, 1), (5**-0.5, 50**-0.5), 16.0, x, y, points[::16][:20])


NUMPYRO, BLACKJAX = "numpyro_.py", "blackjax_.py"
ON_A_CPU = (
    Run("hmc", 64, 600, 250),
    Run("NUTS", 2, 500, 1000, NUMPYRO),
    Run("64 ChEES, masses", 64, 600, 250, BLACKJAX),
    Run("64 ChEES", 64, 600, 250, BLACKJAX),
)
ON_A_GPU = {
    "origin": (
        Run("hmc", 64, 300, 100), Run("NUTS, at once", 64, 150, 20, NUMPYRO),
        Run("ChEES, masses, at once", 64, 300, 100, BLACKJAX), Run("hmc", 1000, 200, 20),
        Run("ChEES, masses, at once", 1000, 200, 20, BLACKJAX),
        Run("NUTS, at once", 1000, 150, 8, NUMPYRO), Run("hmc", 64, 300, 100, engine="traced"), Run("hmc", 8000, 200, 8),
    ),
    "airfoil": (
        Run("hmc", 64, 300, 50), Run("NUTS, at once", 64, 150, 10, NUMPYRO),
        Run("ChEES, masses, at once", 64, 300, 50, BLACKJAX), Run("hmc", 1000, 200, 8),
    ),
}  # fmt: skip
Problem = tuple[Callable[[], Case], Sequence[Run]]
ROWS: dict[str, Problem] = {
    "2-50-1, origin": (origin, ON_A_CPU),
    "6-50-1, yacht": (yacht, ON_A_CPU),
    "2-50-1, origin, many chains": (origin, ON_A_GPU["origin"]),
    "5-50-1, airfoil, many chains": (airfoil, ON_A_GPU["airfoil"]),
}


def compare(problem: Problem, _: int, device: str) -> Cells:
    """The scores of every run."""
    (make, runs), first, cells = problem, None, dict[str, dict[str, Any]]()
    case = make()
    for run in runs:
        try:
            f, numbers = (theirs if run.script else ours)(case, run, device)
            if first is not None:
                numbers |= {f"{name}, s.e. apart": value for name, value in agreement(f, first).items()}
            first = f if first is None else first
        except Exception as error:  # out of memory, or something that is not installed
            numbers = {"error": why(error)}
        cells[run.name] = {k: v for k, v in numbers.items() if not isinstance(v, float) or math.isfinite(v)}
        print(run.name, cells[run.name], flush=True)
    return cells


def ours(case: Case, run: Run, device: str) -> tuple[Any, dict[str, Any]]:
    """f ``[chains, draws, points]`` by `pyrodrop.sample`, and its numbers."""
    on_gpu = device.startswith("cuda")
    gc.collect()
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    options: dict[str, Any] = {"dtype": torch.float32} if on_gpu else {}
    begun = time.process_time()
    sampled = pyrodrop.sample(
        case.model(), (case.x, case.y), chains=run.chains, tune=run.tune, draws=run.draws,
        engine=run.engine, device=device, progress=False, **options,
    )  # fmt: skip
    whole, settings = time.process_time() - begun, sampled.settings
    if on_gpu:
        took = dict(settings["seconds_of"])
    else:
        drawing = whole * settings["seconds_of"]["drawing"] / settings["seconds"]  # of the processor time
        took = {"drawing": drawing, "tuning": whole - drawing}
    memory = torch.cuda.max_memory_allocated(device) / 2**30 if on_gpu else math.nan
    f = sampled.predict(case.points, run.chains * run.draws).f.cpu().reshape(run.chains, run.draws, -1).double().numpy()
    about = {key: settings[key] for key in ("engine", "stacked", "step_size", "energy_rounding") if key in settings}
    return f, row(f, took, int(sampled.stats["n_steps"].sum()), memory) | about


def theirs(case: Case, run: Run, device: str) -> tuple[Any, dict[str, Any]]:
    """f ``[chains, draws, points]`` by a peer in a process of its own, and its numbers."""
    on_gpu = device.startswith("cuda")
    content = case.arrays(run) | ({"chains": np.array(run.chains)} if run.how.endswith("at once") else {})
    with tempfile.TemporaryDirectory() as folder:
        f, about = run_script(
            SCRIPTS / run.script, run.how, sys.executable, content, Path(folder), AT_ONCE if on_gpu else 3600.0,
            ON_THE_GPU if on_gpu else ONE_THREAD,
        )  # fmt: skip
    settings = about["settings"]
    f = f.reshape(settings["chains"], -1, len(case.points)).astype(np.float64)
    drawing = settings["drawing"]  # processor time
    took = settings["seconds_of"] if on_gpu else {"drawing": drawing, "tuning": about["seconds"] - drawing}
    return f, row(f, took, settings["steps"], settings.get("bytes", 0) / 2**30 or math.nan) | {
        "versions": ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    }


def row(f: Any, took: dict[str, float], steps: int, memory: float = math.nan) -> dict[str, float]:
    """The row of one sampler from f ``[chains, draws, points]``, seconds of its parts, leapfrog steps of one chain, GiB."""
    size, drawing = ess(f), took["drawing"]
    return {
        "median per s": float(np.median(size)) / drawing,
        "least per s": float(size.min()) / drawing,
        "median, tuning too": float(np.median(size)) / (drawing + took["tuning"]),
        "effective": float(np.median(size)),
        "us per step": 1e6 * drawing / steps,
        "steps per effective": steps / float(np.median(size)),
        "R-hat": max(float(array_stats.rhat(f[..., i], method="rank")) for i in range(f.shape[-1])),
        "GiB": memory,
        **{part: float(seconds) for part, seconds in took.items()},
    }


def ess(f: Any) -> Any:
    """Bulk effective sample size at every point."""
    return np.array([float(array_stats.ess(f[..., i], method="bulk")) for i in range(f.shape[-1])])


def agreement(f: Any, other: Any) -> dict[str, float]:
    """The largest difference over points of the means of f, and of the logarithms of its sd, in standard errors."""

    def mean(f: Any) -> tuple[Any, Any]:
        return f.mean((0, 1)), f.var((0, 1)) / ess(f)

    def spread(f: Any) -> tuple[Any, Any]:
        centred = (f - f.mean((0, 1))) ** 2
        variance, error = mean(centred)
        return 0.5 * np.log(variance), 0.25 * error / variance**2

    largest = {}
    for name, of in (("mean", mean), ("sd", spread)):
        (a, va), (b, vb) = of(f), of(other)
        largest[name] = float(np.abs((a - b) / np.sqrt(va + vb)).max())
    return largest


BENCH = Bench("sampling", ROWS, measure=compare, usual=["2-50-1, origin", "6-50-1, yacht"])

if __name__ == "__main__":
    command(BENCH.run)
