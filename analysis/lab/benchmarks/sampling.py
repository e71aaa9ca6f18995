"""Effective samples of f per second: `pyrodrop.sample` against NumPyro's NUTS and blackjax's ChEES, on the same posteriors.

``python -m pyrodrop.analysis.lab.benchmarks.sampling [FILE]``: 2-50-1 on the 100 points of Foong et al. (2020), at 20 points
of their slice, and 6-50-1 on the first split of yacht, at its test points. One thread, processor time, one run; it needs an
interpreter that has the peers (`analysis/lab/peers`). ChEES of blackjax has as many chains, tuning steps and draws as ours,
with an adapted metric and, its default, without. Real data are read from PYRODROP_DATA.

All have the same posterior: means and spreads of f are compared, in standard errors, with those of the first run. Runs have
the first line of their error if they fail.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from arviz_stats.base import array_stats
from torch import Tensor

import pyrodrop
from pyrodrop.analysis.lab.benchmarks.timing import Bench, Cells, command, why
from pyrodrop.analysis.lab.peers.processes import SCRIPTS, run_script
from pyrodrop.models import MLP
from pyrodrop.sampling.compiled_density import Name


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
    engine: Name = "auto"

    @property
    def name(self) -> str:
        how = self.how.removeprefix("64 ")
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


NUMPYRO, BLACKJAX = "numpyro_.py", "blackjax_.py"
ON_A_CPU = (
    Run("hmc", 64, 600, 250),
    Run("NUTS", 2, 500, 1000, NUMPYRO),
    Run("64 ChEES, masses", 64, 600, 250, BLACKJAX),
    Run("64 ChEES", 64, 600, 250, BLACKJAX),
)
Problem = tuple[Callable[[], Case], Sequence[Run]]
ROWS: dict[str, Problem] = {
    "2-50-1, origin": (origin, ON_A_CPU),
    "6-50-1, yacht": (yacht, ON_A_CPU),
}


def compare(problem: Problem, *_: Any) -> Cells:
    """The scores of every run."""
    (make, runs), first, cells = problem, None, dict[str, dict[str, Any]]()
    case = make()
    for run in runs:
        try:
            f, numbers = (theirs if run.script else ours)(case, run)
            if first is not None:
                numbers |= {f"{name}, s.e. apart": value for name, value in agreement(f, first).items()}
            first = f if first is None else first
        except Exception as error:  # such as something that is not installed
            numbers = {"error": why(error)}
        cells[run.name] = {k: v for k, v in numbers.items() if not isinstance(v, float) or math.isfinite(v)}
        print(run.name, cells[run.name], flush=True)
    return cells


def ours(case: Case, run: Run) -> tuple[Any, dict[str, Any]]:
    """f ``[chains, draws, points]`` by `pyrodrop.sample`, and its numbers."""
    begun = time.process_time()
    sampled = pyrodrop.sample(
        case.model(), (case.x, case.y), chains=run.chains, tune=run.tune, draws=run.draws,
        engine=run.engine, device="cpu", progress=False,
    )  # fmt: skip
    whole, settings = time.process_time() - begun, sampled.settings
    drawing = whole * settings["seconds_of"]["drawing"] / settings["seconds"]  # of the processor time
    f = sampled.predict(case.points, run.chains * run.draws).f.reshape(run.chains, run.draws, -1).double().numpy()
    about = {key: settings[key] for key in ("engine", "stacked", "step_size", "energy_rounding") if key in settings}
    return f, row(f, drawing, whole - drawing, int(sampled.stats["n_steps"].sum())) | about


def theirs(case: Case, run: Run) -> tuple[Any, dict[str, Any]]:
    """f ``[chains, draws, points]`` by a peer in a process of its own, and its numbers."""
    with tempfile.TemporaryDirectory() as folder:
        f, about = run_script(SCRIPTS / run.script, run.how, sys.executable, case.arrays(run), Path(folder), 3600.0)
    settings = about["settings"]
    f = f.reshape(settings["chains"], -1, len(case.points)).astype(np.float64)
    drawing = settings["drawing"]  # processor time
    return f, row(f, drawing, about["seconds"] - drawing, settings["steps"]) | {
        "versions": ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    }


def row(f: Any, drawing: float, tuning: float, steps: int) -> dict[str, float]:
    """The row of one sampler from f ``[chains, draws, points]``, its processor seconds, and leapfrog steps of one chain."""
    size = ess(f)
    return {
        "median per s": float(np.median(size)) / drawing,
        "least per s": float(size.min()) / drawing,
        "median, tuning too": float(np.median(size)) / (drawing + tuning),
        "effective": float(np.median(size)),
        "us per step": 1e6 * drawing / steps,
        "steps per effective": steps / float(np.median(size)),
        "R-hat": max(float(array_stats.rhat(f[..., i], method="rank")) for i in range(f.shape[-1])),
        "drawing": drawing,
        "tuning": tuning,
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


BENCH = Bench("sampling", ROWS, measure=compare)

if __name__ == "__main__":
    command(BENCH.run)
