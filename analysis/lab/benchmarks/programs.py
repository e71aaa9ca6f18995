"""Whole fits of Pyro programs (`analysis.lab.programs`) relative to a loop of `SVI.step`, and to NumPyro's `SVI.run`.

``python -m pyrodrop.analysis.lab.benchmarks.programs [--names schools] [--rounds N] [FILE]``: one thread, processor time,
float32, validation off in both. Every program is timed in a separate process, alternating some steps of the loop and whole
fits of `STEPS` steps. *first* is a fit on a machine that has compiled nothing yet; *later* is the median of fits for which a
compiled program exists. NumPyro is included if it is installed (`analysis/lab/peers`); its time includes compilation.
"""

from __future__ import annotations

import importlib.util
import statistics
import tempfile
from typing import Any

import pyro
import torch
from pyro.infer import SVI
from pyro.optim import PyroOptim

import pyrodrop
from pyrodrop.analysis.lab.benchmarks.timing import (
    Bench,
    Cells,
    command,
    elsewhere,
    moves_all,
    processor_seconds,
)
from pyrodrop.analysis.lab.peers import numpyro_programs
from pyrodrop.analysis.lab.peers.networks import Steps
from pyrodrop.analysis.lab.programs import PROGRAMS, Program
from pyrodrop.analysis.lab.programs.program import set_up

STEPS = 20_000  # of a fit if Python overhead dominates a step in Pyro; a tenth for the other programs
CALL = 50  # steps of a call


def measured(name: str, rounds: int, _: str) -> Cells:
    """Scores of whole fits in a new process."""
    steps = STEPS if PROGRAMS[name].overhead else STEPS // 10
    with tempfile.TemporaryDirectory() as cache:
        cells = elsewhere(fits, name, steps, rounds, PYRODROP_CACHE=cache)
    if importlib.util.find_spec("numpyro") and name in numpyro_programs.NAMES:
        cells["NumPyro"] = {"seconds": elsewhere(by_numpyro, name, steps, rounds)}
    return cells


def fits(name: str, steps: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Seconds of a step in this process, of the loop and of fits, and the number of steps from which the first one pays."""
    torch.set_num_threads(1)
    program, engines = PROGRAMS[name], list[str]()
    model, guide, data = program.make(torch.float32)
    by_pyro, parameters = loop(program, model, guide, data)

    def ours(steps: int = steps) -> None:
        fit = pyrodrop.fit(
            model, guide, data, steps=steps, objective=program.loss(), lr=program.lr, device="cpu", progress=False
        )
        engines.append(fit.settings["engine"])

    moves_all(by_pyro, parameters, f"{name}, SVI.step")
    seconds: dict[str, list[float]] = {"SVI.step": [], "first": [], "later": [], "half": []}
    for turn in range(rounds):
        seconds["SVI.step"].append(processor_seconds(by_pyro) / CALL)
        if turn == 0:
            seconds["first"].append(processor_seconds(ours))
        seconds["later"].append(processor_seconds(ours))
        seconds["half"].append(processor_seconds(lambda: ours(steps // 2)))
    moves_all(ours, parameters, f"{name}, fit")
    median = {what: statistics.median(times) for what, times in seconds.items()}
    step = max(0.0, median["later"] - median["half"]) / (steps - steps // 2)
    before = median["first"] - steps * step
    slower = median["SVI.step"] - step
    about = {"steps": steps, "engine": engines[-1], "step, s": step, "before, s": before}
    return {
        "SVI.step": {"seconds": median["SVI.step"]},
        "first": {"seconds": median["first"] / steps, **({"pays from": before / slower} if slower > 0 else {})},
        "later": {"seconds": median["later"] / steps, **about},
    }


def by_numpyro(name: str, steps: int, rounds: int) -> float:
    """Seconds of a step of NumPyro's whole fits in this process, with their compilation."""
    data = PROGRAMS[name].make(torch.float32)[2]
    numpyro_programs.run("schools", PROGRAMS["schools"].make(torch.float32)[2], 3)  # imports
    return statistics.median(
        processor_seconds(lambda: numpyro_programs.run(name, data, steps)) / steps for _ in range(rounds)
    )


def loop(program: Program, model: Any, guide: Any, data: dict[str, Any]) -> Steps:
    """A loop of `SVI.step` after the first one."""
    set_up(guide, data)
    svi = SVI(model, guide, PyroOptim(torch.optim.Adam, {"lr": program.lr}), program.loss())
    svi.step(**data)

    def steps() -> None:
        with pyro.validation_enabled(False):
            for _ in range(CALL):
                svi.step(**data)

    return steps, lambda: list(pyro.get_param_store()._params.values())


BENCH = Bench("programs", {name: name for name in PROGRAMS}, measure=measured, rounds=3)

if __name__ == "__main__":
    command(BENCH.run)
