"""Effective samples of f per second with 64 to 8,000 chains on one device, beside NumPyro's NUTS and blackjax's ChEES.

``python -m pyrodrop.analysis.lab.benchmarks.sampling_chains [--device cuda] [--seconds 80] [--out FILE]``: 2-50-1 on the 100
points of Foong et al. (2020), as in `sampling`, and 5-50-1 on airfoil in the split of `deep_networks`, with noise 0.25 of
standardised y, at 20 points. All have the same posterior, in float32. Times are wall times without compilation, which is
reported separately; for the peers, which run in separate processes, it is measured by events of JAX. FILE is written after
every run. No run begins after ``--seconds``, and runs of peers are stopped then, but not before 10 seconds.

R-hat of many short chains is larger than that of few long ones: sqrt(1 + 1 / n) for n effective draws in half a chain.
Means and spreads of f are therefore compared, in standard errors, with those of the case's first successful run.
"""

from __future__ import annotations

import gc
import math
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

import pyrodrop
from pyrodrop.analysis.lab.benchmarks import deep_networks
from pyrodrop.analysis.lab.benchmarks.sampling import Case, agreement, origin, row
from pyrodrop.analysis.lab.benchmarks.timing import begin, command, report, why, write
from pyrodrop.analysis.lab.peers.processes import ON_THE_GPU, ONE_THREAD, SCRIPTS, run_script

PEERS = {"NUTS": "numpyro_.py", "ChEES, masses": "blackjax_.py"}


def airfoil() -> Case:
    """w ~ N(0, 1 / fan-in), noise 0.25, on standardised data."""
    x, y, points, _ = deep_networks.split("airfoil")
    return Case("5-50-1, airfoil", (5, 50, 1), (5**-0.5, 50**-0.5), 16.0, x, y, points[::16][:20])


CASES: dict[str, Callable[[], Case]] = {"origin": origin, "airfoil": airfoil}


@dataclass(frozen=True)
class Run:
    """A sampler with its numbers of transitions; `how` is a kernel of ours, or a method of `PEERS`."""

    case: str
    how: str
    chains: int
    tune: int
    draws: int
    engine: Literal["auto", "traced"] = "auto"

    @property
    def name(self) -> str:
        """Name in the tables."""
        return f"{self.chains:,} {self.how}" + (f", {self.engine}" if self.engine != "auto" else "")


RUNS = (  # the most informative runs first
    Run("origin", "hmc", 64, 300, 100),
    Run("origin", "NUTS", 64, 150, 20),
    Run("origin", "ChEES, masses", 64, 300, 100),
    Run("origin", "hmc", 1000, 200, 20),
    Run("origin", "ChEES, masses", 1000, 200, 20),
    Run("origin", "mclmc", 64, 600, 250),
    Run("origin", "mclmc", 1000, 400, 50),
    Run("airfoil", "hmc", 64, 300, 50),
    Run("airfoil", "NUTS", 64, 150, 10),
    Run("airfoil", "ChEES, masses", 64, 300, 50),
    Run("airfoil", "mclmc", 64, 400, 100),
    Run("origin", "NUTS", 1000, 150, 8),
    Run("origin", "mclmc", 8000, 300, 10),
    Run("airfoil", "mclmc", 1000, 300, 30),
    Run("origin", "hmc", 64, 300, 100, "traced"),
    Run("origin", "hmc", 8000, 200, 8),
    Run("airfoil", "mclmc", 8000, 200, 8),
    Run("airfoil", "hmc", 1000, 200, 8),
)


def main(device: str = "cpu", seconds: float = 80.0, shorter: int = 1, only: str = "", out: Path | None = None) -> None:
    """Sample by all methods and compare.

    Args:
        device: cpu, cuda, cuda:1 ...
        seconds: time after which no run begins.
        shorter: divisor of the numbers of chains, transitions and draws, to try the script.
        only: cases and methods of the runs to make, such as ``origin hmc NUTS``; empty for all.
        out: JSON file for the results.

    Raises:
        ValueError: no run has these names.
    """
    begin(device)
    words = set(only.split())
    chosen = [run for run in RUNS if not words or {run.case, run.how.split(",")[0]} <= words]
    if not chosen:
        raise ValueError(f"only must name a case and a method, such as 'origin NUTS ChEES'; got {only!r}")
    begun, done, first = time.perf_counter(), list[dict[str, Any]](), dict[str, Any]()
    for run in chosen:
        left = seconds - (time.perf_counter() - begun)
        chains, draws = max(4, run.chains // shorter), max(4, run.draws // shorter)
        run = Run(run.case, run.how, chains, max(100, run.tune // shorter), draws, run.engine)
        result: dict[str, Any] = {"error": "no time was left"}
        if left > 0:
            try:
                case = CASES[run.case]()
                f, result = theirs(case, run, device, left) if run.how in PEERS else ours(case, run, device)
                if run.case in first:
                    apart = agreement(f, first[run.case])
                    result |= {"mean, s.e. apart": apart["mean"], "sd, s.e. apart": apart["sd"]}
                first.setdefault(run.case, f)
            except Exception as error:  # out of memory, or something that is not installed
                result = {"error": why(error)}
        result = {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in result.items()}
        done.append({**asdict(run), "name": run.name, **result})
        write(out, "sampling_chains", {"seconds": seconds, "runs": done}, device)
        print(run.case, run.name, result, flush=True)
    for name in CASES:
        rows = {
            each["name"]: {key: value for key, value in each.items() if isinstance(value, float)}
            for each in done
            if each["case"] == name and "error" not in each
        }
        if rows:
            report(f"{name}: effective samples of f", rows, ".3g")


def ours(case: Case, run: Run, device: str) -> tuple[Any, dict[str, Any]]:
    """f ``[chains, draws, points]`` by `pyrodrop.sample`, and its numbers."""
    on_gpu, kernel = device.startswith("cuda"), run.how
    gc.collect()
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    sampled = pyrodrop.sample(
        case.model(), (case.x, case.y), kernel=kernel, chains=run.chains, tune=run.tune, draws=run.draws,  # type: ignore[arg-type]
        engine=run.engine, dtype=torch.float32, device=device, progress=False,
    )  # fmt: skip
    memory = torch.cuda.max_memory_allocated(device) / 2**30 if on_gpu else math.nan
    f = sampled.predict(case.points, run.chains * run.draws).f.cpu().reshape(run.chains, run.draws, -1)
    took, learned = sampled.settings["seconds_of"], sampled.settings
    numbers = numbers_of(f.double().numpy(), run, took, int(sampled.stats["n_steps"].sum()), memory)
    words = {key: learned[key] for key in ("engine", "stacked", "step_size", "energy_rounding")}
    return f.double().numpy(), numbers | words | {"whole call": learned["seconds"]}


def theirs(case: Case, run: Run, device: str, seconds: float) -> tuple[Any, dict[str, Any]]:
    """f ``[chains, draws, points]`` by a peer, and its numbers; stopped after `seconds`, which are at least 10."""
    share = 6 if run.how == "NUTS" else 12  # of the steps, see the scripts
    content = case.arrays(run.chains * run.draws, share * run.tune)
    content |= {"chains": np.array(run.chains)}
    with tempfile.TemporaryDirectory() as folder:
        surroundings = ON_THE_GPU if device.startswith("cuda") else ONE_THREAD
        script, method = SCRIPTS / PEERS[run.how], f"{run.how}, at once"
        f, about = run_script(script, method, sys.executable, content, Path(folder), max(10.0, seconds), surroundings)
    took = about["settings"]["seconds_of"]
    f = f.reshape(about["settings"]["chains"], -1, len(case.points)).astype(np.float64)
    memory = about["settings"]["bytes"] / 2**30 or math.nan
    return f, numbers_of(f, run, took, about["settings"]["steps"], memory) | {"versions": about["versions"]}


def numbers_of(f: Any, run: Run, took: dict[str, float], steps: int, memory: float) -> dict[str, Any]:
    """The numbers of `sampling.row`, with steps of single chains per second, seconds of compilation, and memory."""
    numbers = row(f, took["drawing"], took["tuning"], steps)
    per_call = 1e6 * took["drawing"] * run.chains / steps
    return numbers | {
        "chain steps per s": steps / took["drawing"],
        "us per step of all": per_call,
        "compiling": took["compiling"],
        "GiB": memory,
    }


if __name__ == "__main__":
    command(main)
