"""Whole fits of Pyro programs (`analysis.lab.programs`) relative to a loop of `SVI.step`, and to NumPyro's `SVI.run`.

``python -m pyrodrop.analysis.lab.benchmarks.programs [--names schools] [--steps N] [--rounds N] [--out FILE]``: one thread,
processor time, float32, validation off in both. Every program is timed in a separate process, alternating some steps of the
loop and whole fits. *first* is a fit on a machine that has compiled nothing yet; *later* is the median of fits for which a
compiled program exists. NumPyro is included if it is installed (`analysis/lab/peers`); its time includes compilation.

``--device cuda`` compares steps on a device instead: those of `SVI.step`, of the engines, and of NumPyro's jitted loop, with
tracing and compilation timed separately; on a GPU in wall time, after synchronising. `counts` has 5,000 cells and 2,000
genes (`LARGE`) unless ``--small`` is given. Results are written after every variant; for a failed one they have the first
line of its error. No variant is begun after ``--seconds``, nor one whose compilation would not end by then.
"""

from __future__ import annotations

import importlib.util
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pyro
import torch
from pyro.infer import SVI
from pyro.optim import PyroOptim

import pyrodrop
from pyrodrop.analysis.lab.benchmarks.timing import (
    begin,
    clock_of,
    command,
    elsewhere,
    interleaved,
    machine,
    moves_all,
    processor_seconds,
    report,
    why,
    write,
)
from pyrodrop.analysis.lab.peers import numpyro_programs
from pyrodrop.analysis.lab.programs import LARGE, PROGRAMS, Program, on
from pyrodrop.analysis.lab.programs.program import set_up
from pyrodrop.analysis.reports.console import core_seconds
from pyrodrop.constraints import EngineName

ON_A_DEVICE = ("counts", "vae", "markov")
VARIANTS = ("SVI.step", "traced", "NumPyro", "compiled")
WARM_UP = 5  # steps
SECONDS = 2.0  # duration of the timed steps of a variant
COMPILATION = {("markov", "compiled"): 240.0}  # durations in seconds of compilations that take minutes


def main(
    names: list[str] | None = None,
    steps: int = 20_000,
    rounds: int = 3,
    out: Path | None = None,
    device: str | None = None,
    small: bool = False,
    seconds: float = 70.0,
) -> None:
    """Time programs.

    Args:
        names: names of the programs; if None all, or with `device` those of `ON_A_DEVICE`.
        steps: steps of a fit if Python overhead dominates a step in Pyro; a tenth for the other programs.
        rounds: timings of every variant.
        out: JSON file for the results.
        device: cpu, cuda, cuda:1 ..., to compare steps there instead of whole fits.
        small: with `device`, whether to use the small form of programs that have a large one.
        seconds: with `device`, time after which no further variant is begun.
    """
    if device is not None:
        on_a_device(names or ON_A_DEVICE, device, rounds, seconds, out, small=small)
        return
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
    """Time a program in this process: microseconds per step, and seconds before the steps."""
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
    """Microseconds per step of NumPyro in this process, including its compilation."""
    data = PROGRAMS[name].make(torch.float32)[2]
    numpyro_programs.run("schools", PROGRAMS["schools"].make(torch.float32)[2], 3)  # imports
    times = [processor_seconds(lambda: numpyro_programs.run(name, data, steps)) for _ in range(rounds)]
    return 1e6 * statistics.median(times) / steps


def on_a_device(
    names: Sequence[str], device: str, rounds: int, seconds: float, out: Path | None, *, small: bool = False
) -> None:
    """Time the steps of programs on a device, variant by variant, the cheap ones of all programs first."""
    begin(device)
    start, results = time.perf_counter(), {name: dict[str, dict[str, Any]]() for name in names}
    for variant in VARIANTS:
        for name in names:
            if variant == "NumPyro" and name not in numpyro_programs.NAMES:
                continue
            if time.perf_counter() - start + COMPILATION.get((name, variant), 0.0) > seconds:
                results[name][variant] = {"failed": f"not begun, to end within {seconds:g} s"}
                continue
            program = PROGRAMS[name] if small else LARGE.get(name, PROGRAMS[name])
            try:
                results[name][variant] = row = _steps(variant, program, device, rounds)
                print(f"{name}, {variant}: {row['step us']:.4g} us after {row['before s']:.3g} s", flush=True)
            except Exception as error:  # such as a missing compiler or library: the next variant may work
                results[name][variant] = {"failed": why(error)}
                print(f"{name}, {variant}: {results[name][variant]['failed']}", flush=True)
            write(out, "programs", {"rounds": rounds, "small": small, "programs": results}, device)
    for what, title in (("step us", "a step in microseconds"), ("before s", "seconds before the steps")):
        shown = {name: {v: row[what] for v, row in rows.items() if what in row} for name, rows in results.items()}
        report(f"{title}, on {device}", shown, ".4g")


def _steps(variant: str, program: Program, device: str, rounds: int) -> dict[str, Any]:
    """Microseconds of a step of a variant, as a median, and the seconds of tracing and compiling before the steps."""
    clock = clock_of(device)
    pyro.clear_param_store()
    model, guide, data = on(program.make(torch.float32), device)
    seconds_before = core_seconds if device == "cpu" else clock  # including compilers in other processes
    start = seconds_before()
    if variant == "NumPyro":
        made, parameters = numpyro_programs.steps_of(program.name, data, device)
        made(1)
    elif variant == "SVI.step":
        made, parameters = _by_pyro(program, model, guide, data)
    else:
        made, parameters = _by_engine(variant, program, model, guide, data, device)
    before = seconds_before() - start
    moves_all(lambda: made(WARM_UP), parameters, f"{program.name}, {variant}")
    start = clock()
    made(WARM_UP)
    count = max(1, round(SECONDS * WARM_UP / max(1e-6, clock() - start) / rounds))
    times = interleaved({variant: lambda: made(count)}, rounds, 1, clock)
    return {"steps": count, "step us": 1e6 * times[variant] / count, "before s": before}


def _by_pyro(program: Program, model: Any, guide: Any, data: dict[str, Any]) -> numpyro_programs.Steps:
    """Steps of a loop of `SVI.step`, after the first one; a RuntimeError if parameters are not on the device of the data."""
    set_up(guide, data)
    svi = SVI(model, guide, PyroOptim(torch.optim.Adam, {"lr": program.lr}), program.loss())
    svi.step(**data)

    def steps(count: int) -> None:
        with pyro.validation_enabled(False):
            for _ in range(count):
                svi.step(**data)

    device = next(value.device for value in data.values())
    elsewhere = [name for name, p in pyro.get_param_store().named_parameters() if p.device != device]
    if elsewhere:
        raise RuntimeError(f"the parameters {elsewhere} of {program.name} are not on {device}")
    return steps, lambda: list(pyro.get_param_store()._params.values())


def _by_engine(
    engine: str, program: Program, model: Any, guide: Any, data: dict[str, Any], device: str
) -> numpyro_programs.Steps:
    """Steps of `pyrodrop.Training` by an engine, after two steps; the second of these records and compiles."""
    set_up(guide, data)
    training = pyrodrop.Training(
        model, guide, data, steps=200_000, objective=program.loss(), lr=program.lr, device=device,
        engine=cast("EngineName", engine),
    )  # fmt: skip
    training.advance(2)
    if training.engine != engine:
        raise RuntimeError(f"{program.name} is trained by {training.engine}, not {engine}")

    def steps(count: int) -> None:
        training.advance(count)

    return steps, lambda: list(pyro.get_param_store()._params.values())


if __name__ == "__main__":
    command(main)
