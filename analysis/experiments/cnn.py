"""MC dropout against weight averaging over the training of a LeNet: Gal & Ghahramani (2015).

For N test digits, w_n is 1 where the mean of 50 draws is wrong and a_n where one pass with the mean weights is; otherwise 0:

    s.e. of an error = sqrt(e (1 - e) / N)        s.e. of the difference = sd(w_n - a_n) / sqrt(N)

They do not include the variation between trainings. `pyrodrop.zoo.cnn` says what differs from the paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from rich.table import Table

from pyrodrop import arguments, zoo
from pyrodrop.analysis.experiments.experiment import Experiment
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.analysis.reports.style import BLACK, BLUE, GREEN, styled
from pyrodrop.analysis.zoo.averaged import averaged
from pyrodrop.analysis.zoo.resumed import fit_resumed
from pyrodrop.data import Dataset, mnist
from pyrodrop.json_files import Record
from pyrodrop.metrics import negative_log_likelihood
from pyrodrop.metrics.classes import class_probabilities
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.training.checkpoint import Checkpoint
from pyrodrop.zoo.cnn import DRAWS
from pyrodrop.zoo.rotated_digit import STEPS

NETS = {"lenet-all": BLUE, "lenet-ip": GREEN, "lenet-none": BLACK}
POINTS = (1000, 2500, 5000)  # steps after which test errors are measured, and at the end
KEYS = ("mc", "averaged", "difference", "se", "log_density", "log_density_averaged")


@with_job_options("device")
def run(job: JobOptions, *, steps: int = STEPS, out: Path = Path("runs/cnn")) -> dict[str, Any]:
    """Train the three networks, print the test errors of 50 draws and of the mean weights, and plot them over training.

    Args:
        steps: gradient steps; the paper has 10 million.
        out: folder for results.json, figure.png and the finished points: a run that was broken off goes on there.

    Returns:
        What is written to results.json.
    """
    arguments.count(steps, "steps", "the number of gradient steps")
    split = mnist(flat=False, progress=not job.quiet)
    points = [*(point for point in POINTS if point < steps), steps]
    named = {f"{net}-{point}": (net, point) for net in NETS for point in points}
    with Experiment.begin("cnn", out, job, {}) as experiment:

        def measured(name: str) -> dict[str, Any]:
            net, point = named[name]
            fit = fit_resumed(
                zoo.entry(f"cnn/{net}"), split.train, Checkpoint(experiment.folder / f"{net}.safetensors"),
                steps=point, seed=job.seed, device=job.device, progress=job.progress,
            )  # fmt: skip
            drawn, mean = fit.predict(split.test.x, DRAWS, seed=job.seed), averaged(fit).predict(split.test.x, 1)
            return {**scores(drawn, mean, split.test), "engine": fit.settings["engine"]}

        cells = experiment.measure_in_turn(measured, tuple(named), experiment.cells(_checked))
        rows = {
            name: {"net": net, "steps": point, **{key: cells[name][key] for key in (*KEYS, "engine")}}
            for name, (net, point) in named.items()
        }
        digits = len(split.test)
        return experiment.write(
            {"errors": rows, "facts": statements({net: rows[f"{net}-{steps}"] for net in NETS})}, table_of(rows, digits),
            settings={"steps": steps, "draws": DRAWS, "test_digits": digits}, figures={"figure": _figure(rows, digits)},
        )  # fmt: skip


def _checked(record: Record) -> None:
    for key in KEYS:
        record.number(key)
    record.text("engine")


def scores(drawn: Prediction, mean: Prediction, test: Dataset) -> dict[str, float]:
    """Errors in percent of draws and of mean weights, the first less the second with its s.e., and both log densities."""
    w, a = ((class_probabilities(each).argmax(-1).cpu() != test.y.cpu()).double() for each in (drawn, mean))
    return {
        "mc": 100 * float(w.mean()),
        "averaged": 100 * float(a.mean()),
        "difference": 100 * float((w - a).mean()),
        "se": 100 * float((w - a).std()) / math.sqrt(len(w)),
        "log_density": -negative_log_likelihood(drawn, test.y),
        "log_density_averaged": -negative_log_likelihood(mean, test.y),
    }


def statements(last: Mapping[str, Mapping[str, Any]]) -> dict[str, bool]:
    """The statements of the paper's figure, each with whether it holds at the end of this training."""
    every, others = (
        last["lenet-all"],
        [last[net][by] for net in ("lenet-ip", "lenet-none") for by in ("mc", "averaged")],
    )
    return {
        "dropout after every layer: draws err less than mean weights, by two s.e.": every["difference"]
        < -2 * every["se"],
        "mean weights of this network err most of all": every["averaged"] > max(every["mc"], *others),
        "draws of this network err least of all": every["mc"] < min(every["averaged"], *others),
    }


def table_of(errors: Mapping[str, Mapping[str, Any]], digits: int) -> Table:
    """Test errors of so many digits."""
    table = Table(title=f"test error in % (s.e. over {digits:,} digits)", caption=f"MC: the mean of {DRAWS} draws")
    for header in ("network", "steps", "MC", "mean weights", "difference"):
        table.add_column(header, justify="left" if header == "network" else "right")
    for row in errors.values():
        shown = (f"{row[key]:.2f} ({_binomial(row[key], digits):.2f})" for key in ("mc", "averaged"))
        table.add_row(row["net"], f"{row['steps']:,}", *shown, f"{row['difference']:+.2f} ({row['se']:.2f})")
    return table


def _binomial(percent: float, count: int) -> float:
    """The standard error of an error in percent of `count` digits, in percent."""
    return math.sqrt(max(percent * (100 - percent), 0.0) / count)


@styled()
def _figure(errors: Mapping[str, Mapping[str, Any]], digits: int) -> Figure:
    figure = Figure(figsize=(6.5, 4.2), layout="constrained")
    axes = figure.subplots()
    for net, color in NETS.items():
        rows = [row for row in errors.values() if row["net"] == net]
        styles = {"mc": ("o-", "50 draws"), "averaged": ("s--", "mean weights")}
        for key, (style, label) in ({"averaged": ("s:", "no draws")} if net == "lenet-none" else styles).items():
            axes.errorbar(
                [row["steps"] for row in rows], [row[key] for row in rows],
                [_binomial(row[key], digits) for row in rows],
                fmt=style, color=color, markersize=4, capsize=2, label=f"{net}, {label}",
            )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    steps = sorted({row["steps"] for row in errors.values()})
    axes.set_xticks(steps, [f"{step:,}" for step in steps])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set_xlabel("gradient steps")
    axes.set_ylabel("test error, % (one s.e.)")
    axes.legend()
    return figure
