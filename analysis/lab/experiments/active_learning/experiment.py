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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pyrodrop import checks
from pyrodrop.analysis.lab import RESULTS, generated, tidy
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
MNIST = ["posterior", "rows", "labels to 90 %", "accuracy at the end, %", "over random, %"]
KINDS = {
    "filters": [*MNIST, "ink"],
    "mnist": MNIST,
    "naval": ["posterior", "random rows", "rows of largest variance", "difference"],
}
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
        "labels": checks.count(labels, "labels", "the number of labels of MNIST", least=20),
        "seeds": checks.count(seeds, "seeds", "the number of seeds of MNIST", least=2),
        "steps": checks.count(steps, "steps", "the number of gradient steps on MNIST"),
        "trained_labels": checks.count(
            trained_labels, "trained_labels", "the number of labels for trained filters", least=20
        ),
        "trained_seeds": checks.count(
            trained_seeds, "trained_seeds", "the number of seeds of trained filters", least=2
        ),
        "trained_steps": checks.count(trained_steps, "trained_steps", "the number of gradient steps on filters"),
        "naval_labels": checks.count(naval_labels, "naval_labels", "the number of labels of naval", least=naval.START),
        "naval_seeds": checks.count(naval_seeds, "naval_seeds", "the number of seeds of naval", least=2),
        "naval_steps": checks.count(naval_steps, "naval_steps", "the number of gradient steps on naval"),
    }
    with Experiment.begin("active-learning", out, job, options) as experiment:
        kept = experiment.cells(_checked, lambda _: {}, where="")
        options = {**options, "seed": job.seed}
        curves = experiment.measure(_curves, list(UNITS), kept, options=options, folder=experiment.folder)
        rows = [row for name, curve in curves.items() for row in rows_of(name, curve)]
        tables = [text_table(f"{kind}, mean ± s.e.", table_of(rows, kind), left=2) for kind in KINDS]
        figures = {"filters": filters_figure({name.partition(", ")[2]: curve for name, curve in curves.items()})}
        tidy.put(experiment.folder / "active-learning.csv", rows)
        settings = {"draws": digits.DRAWS, "members": digits.MEMBERS}
        return experiment.write({"rows": rows, "curves": curves}, *tables, settings=settings, figures=figures)


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


def rows_of(name: str, curve: Mapping[str, Any]) -> list[tidy.Row]:
    """A row of means over seeds by acquisition: accuracies in percent, or the RMSE of naval at the end, see `KINDS`."""
    kind, _, posterior = name.partition(", ")
    key = {"study": "filters" if posterior in FILTERS else kind, "problem": posterior}
    numbers, scores = curve["labels"], {how: list(zip(*each, strict=True)) for how, each in curve["scores"].items()}
    ends = {how: [each[-1] for each in of_seeds] for how, of_seeds in scores.items()}
    if kind == "naval":
        ends["difference"] = [b - a for a, b in zip(ends[RANDOM], ends["variance"], strict=True)]
        return [key | {"method": how} | _mean("rmse", values) for how, values in ends.items()]
    rows = []
    for how, of_seeds in scores.items():
        reached = [next((n for n, a in zip(numbers, each, strict=True) if a >= TARGET), None) for each in of_seeds]
        pairs = zip(of_seeds, scores[RANDOM], strict=True)
        over = [100 * (statistics.fmean(a) - statistics.fmean(b)) for a, b in pairs]
        row = {"seeds": len(reached), "reached": sum(n is not None for n in reached)}
        row |= _mean("labels", [numbers[-1] if n is None else n for n in reached])
        row |= _mean("accuracy", [100 * value for value in ends[how]])
        row |= {} if how == RANDOM else _mean("over random", over)
        row |= _mean("ink", [statistics.fmean(each) for each in zip(*curve["ink"][how], strict=True)])
        rows.append(key | {"method": how} | row)
    return rows


def _mean(name: str, values: Sequence[float]) -> dict[str, Any]:
    return dict(zip((name, f"{name} se"), mean_and_error(values), strict=True))


def table_of(rows: Iterable[Mapping[str, Any]], kind: str) -> list[list[str]]:
    """The table of a kind: of filters, of features of random filters (mnist), or of naval."""
    rows = [row for row in rows if row["study"] == kind]
    if kind == "naval":
        forms = {RANDOM: ".3f", "variance": ".3f", "difference": "+.3f"}
        by_posterior: dict[str, list[str]] = {}
        for row in rows:
            by_posterior.setdefault(row["problem"], [row["problem"]]).append(_shown(row, "rmse", forms[row["method"]]))
        return [KINDS[kind], *by_posterior.values()]
    columns = {"accuracy": ".2f", "over random": "+.2f"} | ({"ink": ".2f"} if kind == "filters" else {})
    return [KINDS[kind]] + [
        [row["problem"], row["method"], labels_shown(row), *(_shown(row, *column) for column in columns.items())]
        for row in rows
    ]


def text(kind: str) -> str:
    """A table of ``docs/ask-for-a-label.md``, in Markdown."""
    return generated.table(table_of(tidy.read(RESULTS / "active-learning.csv"), kind)) + "\n"


def labels_shown(row: Mapping[str, Any]) -> str:
    """The number of labels to 90 %, or that it is at least so many, with how many seeds reach it."""
    if row["reached"] == row["seeds"]:
        return _shown(row, "labels", ".0f")
    return f"≥ {row['labels']:.0f} ({row['reached']:.0f} of {row['seeds']:.0f} reach it)"


def _shown(row: Mapping[str, Any], column: str, form: str) -> str:
    return f"{row[column]:{form}} ± {row[f'{column} se']:{form.removeprefix('+')}}" if column in row else "-"


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
