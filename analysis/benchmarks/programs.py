"""Whole fits of Pyro programs (`analysis.programs`) relative to a loop of `SVI.step`, and to NumPyro's `SVI.run`.

``python -m pyrodrop.analysis.benchmarks.programs [NAME ...] [--steps N] [--rounds N] [--out FILE]``: one thread, processor
time, float32, validation off in both. Every program is timed in a process of its own that has imported all that it needs,
in turns: some steps of the loop, a whole fit. *first* is a fit on a machine that has compiled nothing yet; *later* the
median of fits for which a program is there already. NumPyro takes part if it is installed (`peers.txt`),
and compiles, too.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import cyclopts
import pyro
import torch
from pyro.infer import SVI
from pyro.optim import PyroOptim

import pyrodrop
from pyrodrop.analysis.benchmarks.timing import machine, moves_all, report, write
from pyrodrop.analysis.programs import PROGRAMS
from pyrodrop.analysis.programs.program import set_up


def main(
    names: list[str] | None = None, steps: int = 20_000, rounds: int = 3, out: Path | None = None, peers: bool = True
) -> None:
    """Time programs.

    Args:
        names: of the programs; all if None.
        steps: of a fit whose step in Pyro is all overhead; a tenth for the others.
        rounds: timings of every variant.
        out: JSON file for the results.
        peers: whether NumPyro takes part where it is installed.
    """
    print(machine())
    results = {
        name: apart(name, steps if PROGRAMS[name].overhead else steps // 10, rounds) for name in names or PROGRAMS
    }
    if peers and importlib.util.find_spec("numpyro"):
        from pyrodrop.analysis.benchmarks.peers import numpyro_programs

        for name in set(results) & set(numpyro_programs.NAMES):
            results[name]["NumPyro us"] = apart(name, results[name]["steps"], rounds, peer=True)["us"]
    report("a step in microseconds, of whole fits", {n: _shown(found) for n, found in results.items()}, ".4g")
    write(out, "programs", {"rounds": rounds, "programs": results})


def _shown(found: dict[str, Any]) -> dict[str, float]:
    shown = {
        "SVI.step": found["SVI.step us"],
        "fit, first": found["first us"],
        "fit, later": found["later us"],
        "times as fast, first": found["SVI.step us"] / found["first us"],
        "times as fast, later": found["SVI.step us"] / found["later us"],
        "seconds before a step": found["before s"],
        "pays from step": found["pays from"],
    }
    return shown | ({"NumPyro": found["NumPyro us"]} if "NumPyro us" in found else {})


def apart(name: str, steps: int, rounds: int, *, peer: bool = False) -> dict[str, Any]:
    """The timings of a program in a process and with compiled programs of its own."""
    with tempfile.TemporaryDirectory() as cache:
        call = [sys.executable, "-P", "-m", __spec__.name, "--one", name, str(steps), str(rounds), "peer" * peer]
        done = subprocess.run(
            call, env={**os.environ, "PYRODROP_CACHE": cache}, check=True, stdout=subprocess.PIPE, text=True
        )
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def one(name: str, steps: int, rounds: int) -> dict[str, Any]:
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
        seconds["SVI.step"].append(_seconds(by_pyro) / count)
        if turn == 0:
            seconds["first"].append(_seconds(ours))
        seconds["later"].append(_seconds(ours))
        seconds["half"].append(_seconds(lambda: ours(steps // 2)))
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


def peer(name: str, steps: int, rounds: int) -> dict[str, Any]:
    """Time NumPyro in this process, with its compilation."""
    from pyrodrop.analysis.benchmarks.peers import numpyro_programs

    data = PROGRAMS[name].make(torch.float32)[2]
    numpyro_programs.run("schools", PROGRAMS["schools"].make(torch.float32)[2], 3)  # imports
    times = [_seconds(lambda: numpyro_programs.run(name, data, steps)) for _ in range(rounds)]
    return {"us": 1e6 * statistics.median(times) / steps}


def _seconds(call: Any) -> float:
    """Processor time of this process and of what it starts, such as a compiler."""
    before = sum(os.times()[:4])
    call()
    return sum(os.times()[:4]) - before


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        _, _, chosen, count, turns, who = sys.argv
        print(json.dumps((peer if who else one)(chosen, int(count), int(turns))))
    else:
        cyclopts.run(main)
