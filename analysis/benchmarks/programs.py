"""Whole fits of Pyro programs (`analysis.programs`) relative to a loop of `SVI.step`, and to NumPyro's `SVI.run`.

``python -m pyrodrop.analysis.benchmarks.programs [--names '[schools]'] [--steps N] [--rounds N] [--out FILE]``: one thread,
processor time, float32, validation off in both. Every program is timed in a process of its own, in turns: some steps of the
loop, a whole fit. *first* is a fit on a machine that has compiled nothing yet; *later* the median of fits for which a
program is there already. NumPyro takes part if it is installed (`analysis/peers`), and compiles, too.
"""

from __future__ import annotations

import importlib.util
import statistics
import tempfile
from pathlib import Path
from typing import Any

import pyro
import torch
from pyro.infer import SVI
from pyro.optim import PyroOptim

import pyrodrop
from pyrodrop.analysis.benchmarks.timing import (
    command,
    elsewhere,
    machine,
    moves_all,
    processor_seconds,
    report,
    write,
)
from pyrodrop.analysis.peers import numpyro_programs
from pyrodrop.analysis.programs import PROGRAMS
from pyrodrop.analysis.programs.program import set_up


def main(names: list[str] | None = None, steps: int = 20_000, rounds: int = 3, out: Path | None = None) -> None:
    """Time programs.

    Args:
        names: of the programs; all if None.
        steps: of a fit whose step in Pyro is all overhead; a tenth for the others.
        rounds: timings of every variant.
        out: JSON file for the results.
    """
    print(machine())
    results: dict[str, dict[str, Any]] = {}
    for name in names or PROGRAMS:
        count = steps if PROGRAMS[name].overhead else steps // 10
        with tempfile.TemporaryDirectory() as cache:
            results[name] = elsewhere(timed, name, count, rounds, PYRODROP_CACHE=cache)
        if importlib.util.find_spec("numpyro") and name in numpyro_programs.NAMES:
            results[name]["NumPyro us"] = elsewhere(peer, name, count, rounds)
    report("a step in microseconds, of whole fits", {n: _shown(row) for n, row in results.items()}, ".4g")
    write(out, "programs", {"rounds": rounds, "programs": results})


def _shown(row: dict[str, Any]) -> dict[str, float]:
    shown = {
        "SVI.step": row["SVI.step us"],
        "fit, first": row["first us"],
        "fit, later": row["later us"],
        "times as fast, first": row["SVI.step us"] / row["first us"],
        "times as fast, later": row["SVI.step us"] / row["later us"],
        "seconds before a step": row["before s"],
        "pays from step": row["pays from"],
    }
    return shown | ({"NumPyro": row["NumPyro us"]} if "NumPyro us" in row else {})


def timed(name: str, steps: int, rounds: int) -> dict[str, Any]:
    """Time a program in this process: microseconds of a step, and what comes before the steps."""
    torch.set_num_threads(1)
    program = PROGRAMS[name]
    model, guide, data = program.make(torch.float32)
    set_up(guide, data)
    svi = SVI(model, guide, PyroOptim(torch.optim.Adam, {"lr": program.lr}), program.loss())
    svi.step(**data)
    count = 100

    def by_pyro() -> None:
        with pyro.validation_enabled(False):
            for _ in range(count):
                svi.step(**data)

    engines: list[str] = []

    def ours(steps: int = steps) -> None:
        fit = pyrodrop.fit(
            model, guide, data, steps=steps, objective=program.loss(), lr=program.lr, device="cpu", progress=False
        )
        engines.append(fit.settings["engine"])

    moves_all(by_pyro, lambda: pyro.get_param_store()._params.values(), f"{name}, SVI.step")
    seconds: dict[str, list[float]] = {"SVI.step": [], "first": [], "later": [], "half": []}
    for turn in range(rounds):
        seconds["SVI.step"].append(processor_seconds(by_pyro) / count)
        if turn == 0:
            seconds["first"].append(processor_seconds(ours))
        seconds["later"].append(processor_seconds(ours))
        seconds["half"].append(processor_seconds(lambda: ours(steps // 2)))
    moves_all(ours, lambda: pyro.get_param_store()._params.values(), f"{name}, fit")
    median = {what: statistics.median(times) for what, times in seconds.items()}
    step = max(0.0, median["later"] - median["half"]) / (steps - steps // 2)
    before = median["first"] - steps * step
    return {
        "steps": steps,
        "engine": engines[-2],
        "SVI.step us": 1e6 * median["SVI.step"],
        "first us": 1e6 * median["first"] / steps,
        "later us": 1e6 * median["later"] / steps,
        "step us": 1e6 * step,
        "before s": before,
        "pays from": before / (median["SVI.step"] - step) if median["SVI.step"] > step else float("inf"),
    }


def peer(name: str, steps: int, rounds: int) -> float:
    """Microseconds of a step of NumPyro in this process, with its compilation."""
    data = PROGRAMS[name].make(torch.float32)[2]
    numpyro_programs.run("schools", PROGRAMS["schools"].make(torch.float32)[2], 3)  # imports
    times = [processor_seconds(lambda: numpyro_programs.run(name, data, steps)) for _ in range(rounds)]
    return 1e6 * statistics.median(times) / steps


if __name__ == "__main__":
    command(main)
