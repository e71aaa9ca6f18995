"""Labels that are asked for, against random ones: MNIST, and the case of Foong et al. (2020) where asking does harm.

    labels to 90 %     the first number of labels with which a seed's test accuracy is at least 0.9
    over random        d_s = mean over numbers of labels of (accuracy - accuracy of random), of one seed s
    ink                mean pixel of the images that were asked for, over that of all images
    s.e.               sd_s / sqrt(S), of S seeds

Where a seed does not reach 90 %, its number is at least the last one, and so is the mean, which then has no s.e. On naval,
d_s is of the RMSE at the last number of labels, so that more is worse.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from pyrodrop import arguments
from pyrodrop.analysis.lab.experiments.active_learning import digits, naval
from pyrodrop.analysis.lab.experiments.active_learning.loop import RANDOM, Task, learn
from pyrodrop.analysis.lab.experiments.experiment import Experiment
from pyrodrop.analysis.lab.experiments.parallel import on_this_machine
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.analysis.reports.score_table import mean_and_error
from pyrodrop.analysis.reports.style import GREY, SERIES, styled
from pyrodrop.analysis.reports.terminal import text_table
from pyrodrop.files import Record

TARGET = 0.9
FILTERS = {digits.FROZEN: digits.Frozen, digits.EQUAL: digits.Equal, digits.TRAINED: digits.Trained}
UNITS: Mapping[str, tuple[type[Task], str, str]] = {
    **{f"mnist, {name}": (digits.Digits, name, "") for name in digits.POSTERIORS},
    **{f"mnist, {name}": (kind, name, "trained_") for name, kind in FILTERS.items()},
    **{f"naval, {name}": (naval.Naval, name, "naval_") for name in naval.POSTERIORS},
}


@with_job_options("device", "jobs")
def run(
    job: JobOptions,
    *,
    labels: int = 300,
    seeds: int = 6,
    steps: int = 200,
    trained_labels: int = 300,
    trained_seeds: int = 3,
    trained_steps: int = 200,
    naval_labels: int = 55,
    naval_seeds: int = 10,
    naval_steps: int = 1000,
    out: Path = Path("runs/active-learning"),
) -> dict[str, Any]:
    """Train with labels that are asked for and with random ones; print how many are needed, and plot the scores.

    Args:
        labels: of MNIST at the end, from 20 in batches of 10.
        seeds: of MNIST: first labelled rows, initial weights and noise.
        steps: gradient steps of a training on MNIST.
        trained_labels: of MNIST at the end, for the network whose filters are trained.
        trained_seeds: of that network, with these filters and with random ones.
        trained_steps: gradient steps of a training of that network.
        naval_labels: of naval at the end, from 5 one by one.
        naval_seeds: of naval: splits, first labelled rows, initial weights and noise.
        naval_steps: gradient steps of a training on naval.
        out: folder for results.json, filters.png and the finished rounds: an interrupted run continues there.

    Returns:
        What is written to results.json.
    """
    options = {
        "labels": arguments.count(labels, "labels", "the number of labels of MNIST", least=20),
        "seeds": arguments.count(seeds, "seeds", "the number of seeds of MNIST", least=2),
        "steps": arguments.count(steps, "steps", "the number of gradient steps on MNIST"),
        "trained_labels": arguments.count(
            trained_labels, "trained_labels", "the number of labels for trained filters", least=20
        ),
        "trained_seeds": arguments.count(
            trained_seeds, "trained_seeds", "the number of seeds of trained filters", least=2
        ),
        "trained_steps": arguments.count(trained_steps, "trained_steps", "the number of gradient steps on filters"),
        "naval_labels": arguments.count(
            naval_labels, "naval_labels", "the number of labels of naval", least=naval.START
        ),
        "naval_seeds": arguments.count(naval_seeds, "naval_seeds", "the number of seeds of naval", least=2),
        "naval_steps": arguments.count(naval_steps, "naval_steps", "the number of gradient steps on naval"),
    }
    with Experiment.begin("active-learning", out, job, options) as experiment:
        kept = experiment.cells(_checked, lambda _: {}, where="")
        options = {**options, "seed": job.seed}
        curves = experiment.measure(_curves, list(UNITS), kept, options=options, folder=experiment.folder)
        mnist, ships = (
            {name.partition(", ")[2]: curve for name, curve in curves.items() if name.startswith(data)}
            for data in ("mnist", "naval")
        )
        content: dict[str, Any] = {
            "mnist": {name: digit_rows(curve) for name, curve in mnist.items()},
            "naval": {name: naval_row(curve) for name, curve in ships.items()},
        }
        content["curves"] = curves
        return experiment.write(
            content, *tables_of(content, options), settings={"draws": digits.DRAWS, "members": digits.MEMBERS},
            figures={"filters": filters_figure(mnist)},
        )  # fmt: skip


def _checked(record: Record) -> None:
    count = len(record.numbers("labels"))
    for curves in record.record("scores").content.values():
        if len(curves) != count:
            raise record.fault(f"scores of {count} numbers of labels")


def _curves(
    name: str, *, options: Mapping[str, int], folder: Path, device: torch.device, progress: bool | None
) -> dict[str, Any]:
    kind, posterior, prefix = UNITS[name]
    first, count = options["seed"], options[f"{prefix}seeds"]
    with on_this_machine(folder) as shared:
        curve = learn(
            kind(posterior, options[f"{prefix}steps"], device), name.replace(", ", "-").replace(" ", "-"),
            labels=options[f"{prefix}labels"], seeds=range(first, first + count), folder=shared,
        )  # fmt: skip
    asked = curve.pop("asked")
    return curve if kind is naval.Naval else {**curve, "ink": {how: digits.ink(rows) for how, rows in asked.items()}}


def digit_rows(curve: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By acquisition: labels to 90 %, the accuracy at the end, and how much more it is than that of random and of BALD."""
    numbers, rows = curve["labels"], {}
    by_seed = {name: list(zip(*scores, strict=True)) for name, scores in curve["scores"].items()}
    for name, seeds in by_seed.items():
        reached = [next((n for n, a in zip(numbers, each, strict=True) if a >= TARGET), None) for each in seeds]
        labels, error = mean_and_error([numbers[-1] if n is None else n for n in reached])
        row = {"labels": labels, "labels_se": None if None in reached else error, "seeds": len(seeds)}
        row["reached"] = sum(n is not None for n in reached)
        row["accuracy"], row["accuracy_se"] = mean_and_error([each[-1] for each in seeds])
        row["ink"], row["ink_se"] = mean_and_error(
            [statistics.fmean(each) for each in zip(*curve["ink"][name], strict=True)]
        )
        for other in (RANDOM, "BALD"):
            over = [statistics.fmean(a) - statistics.fmean(b) for a, b in zip(seeds, by_seed[other], strict=True)]
            row[f"over {other}"], row[f"over {other}_se"] = mean_and_error(over)
        rows[name] = row
    return rows


def naval_row(curve: Mapping[str, Any]) -> dict[str, float | None]:
    """RMSE at the end of random rows and of those of largest variance, and the second less the first."""
    random, asked = (curve["scores"][name][-1] for name in (RANDOM, "variance"))
    more = [b - a for a, b in zip(random, asked, strict=True)]
    row: dict[str, float | None] = {}
    for name, values in {RANDOM: random, "variance": asked, "difference": more}.items():
        row[name], row[f"{name}_se"] = mean_and_error(values)
    return row


def tables_of(content: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[Table, Table, Table]:
    """MNIST, with filters that are trained or could be, and with features of random filters, and naval."""
    names = ["posterior", "rows", "labels to 90 %", "accuracy at the end, %", "over random, %", "ink"]
    trained, mnist = [names], [names[:-1]]
    for posterior, rows in content["mnist"].items():
        for name, row in rows.items():
            over = _shown(100 * row["over random"], 100 * row["over random_se"], "+.2f") if name != RANDOM else "-"
            accuracy = _shown(100 * row["accuracy"], 100 * row["accuracy_se"], ".2f")
            cells = [posterior, name, labels_shown(row), accuracy, over]
            if posterior in FILTERS:
                trained.append([*cells, _shown(row["ink"], row["ink_se"], ".2f")])
            else:
                mnist.append(cells)
    ships = [["posterior", "random rows", "rows of largest variance", "difference"]]
    for posterior, row in content["naval"].items():
        forms = {RANDOM: ".3f", "variance": ".3f", "difference": "+.3f"}
        ships.append([posterior, *(_shown(row[key], row[f"{key}_se"], form) for key, form in forms.items())])
    to, trained_to, naval_to = (
        f"{settings[f'{of}labels']} labels, {settings[f'{of}seeds']} seeds" for of in ("", "trained_", "naval_")
    )
    return (
        text_table(f"MNIST to {trained_to}, mean ± s.e.", trained, left=2),
        text_table(f"MNIST, features of random filters, to {to}, mean ± s.e.", mnist, left=2),
        text_table(f"naval, RMSE at {naval_to}, mean ± s.e.", ships),
    )


def labels_shown(row: Mapping[str, Any]) -> str:
    """The number of labels to 90 %, or that it is at least so many, with how many seeds reach it."""
    if row["labels_se"] is not None:
        return f"{row['labels']:.0f} ± {row['labels_se']:.0f}"
    return f"≥ {row['labels']:.0f} ({row['reached']} of {row['seeds']} reach it)"


def _shown(value: float, error: float, form: str) -> str:
    return f"{value:{form}} ± {error:{form.removeprefix('+')}}"


@styled()
def filters_figure(mnist: Mapping[str, Any]) -> Figure:
    """Accuracy and ink by number of labels, with MC dropout on frozen and on trained filters."""
    figure = Figure(figsize=(9.5, 5), layout="constrained")
    panels = figure.subplots(2, len(FILTERS), sharex=True, sharey="row")
    for column, name in enumerate(FILTERS):
        panels[0, column].set_title(name.removeprefix("MC dropout, "))
        for axes, what in zip(panels[:, column], ("scores", "ink"), strict=True):
            _draw(axes, mnist[name], what)
        panels[0, column].axhline(TARGET, color=GREY, linewidth=0.8)
        panels[1, column].axhline(1, color=GREY, linewidth=0.8)
        panels[1, column].set_xlabel("labels")
    panels[0, 0].set_ylabel("accuracy")
    panels[1, 0].set_ylabel("ink of the images asked for")
    panels[0, -1].legend()
    return figure


def _draw(axes: Axes, curve: Mapping[str, Any], what: str = "scores") -> None:
    for (name, scores), color in zip(curve[what].items(), SERIES, strict=False):
        means, errors = (torch.tensor(each) for each in zip(*map(mean_and_error, scores), strict=True))
        axes.plot(curve["labels"], means, color=color, linewidth=1.2, label=name)
        axes.fill_between(curve["labels"], means - errors, means + errors, color=color, alpha=0.2, linewidth=0)
