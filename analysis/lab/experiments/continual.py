"""Digits in five lots, one after the other: the posterior as the next prior, compared with the alternatives.

    permuted    every lot has another order of the pixels; ten classes
    split       the digits 0 and 1, then 2 and 3, ...: is the digit odd?

A network with 100 ReLU units and the prior N(0, .1^2) of all weights and biases is trained on one lot after the other, 1,500
steps each with minibatches of 100, and is then tested on all of them.

    fine-tuning    a point estimate that starts from the previous weights, under the first prior
    EWC            a point estimate under a prior around the previous weights; its precisions are the first prior's plus the
                   Fisher information of all previous lots (Kirkpatrick et al. 2017, arXiv:1612.00796; from N / 10 digits)
    posterior      mean field; its posterior is the prior of the next lot (Nguyen et al. 2018, arXiv:1710.10628; no coreset)
    joint          mean field on all lots together with five times the steps, which cannot forget
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

import pyrodrop
from pyrodrop import checks, guides, likelihoods, metrics, models, priors, schedules
from pyrodrop.analysis.lab import RESULTS, generated, tidy
from pyrodrop.analysis.lab.experiments.experiment import Experiment
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.analysis.reports.score_table import mean_and_error
from pyrodrop.analysis.reports.style import GREY, SERIES, styled
from pyrodrop.data import Dataset, mnist
from pyrodrop.training.result import Fit

LOTS, UNITS, SCALE, BATCH, DRAWS = 5, 100, 0.1, 100, 20
KINDS = ("permuted", "split")
METHODS = ("fine-tuning", "EWC", "posterior", "joint")
Lot = tuple[Dataset, Dataset]


@with_job_options("device", "jobs")
def run(
    job: JobOptions,
    *,
    seeds: int = 3,
    steps: int = 1500,
    digits: int = 10_000,
    out: Path = Path("runs/continual"),
) -> dict[str, Any]:
    """Train on five lots of digits in turn, four ways, and print how much of the first lots is left.

    Args:
        seeds: repetitions, each with other pixel orders, initial weights and minibatches; two minutes of a core each.
        steps: gradient steps on every lot.
        digits: number of training digits of MNIST, the first ones, and five times as many as test digits.
        out: folder for results.json and the finished cells: an interrupted run continues there.

    Returns:
        What is written to results.json: accuracy on every lot at the end, and on the first lot after each.
    """
    seeds = checks.count(seeds, "seeds", "the number of repetitions")
    settings = {"seeds": seeds, "steps": checks.count(steps, "steps", "the number of steps"), "digits": digits}
    with Experiment.begin("continual", out, job, settings) as experiment:
        names = [f"{kind}_{method}_{job.seed + s}" for kind in KINDS for method in METHODS for s in range(seeds)]
        cells = experiment.cells(lambda record: [record.numbers(name) for name in ("accuracy", "first")])
        measured = experiment.measure(measure, names, cells, steps=steps, digits=digits)
        rows = [row_of(name, job.seed, cell) for name, cell in measured.items()]
        return experiment.write({}, rows=rows, shown=shown, threads=1, figures={"first-lot": figure(rows)})


def row_of(name: str, first_seed: int, cell: Mapping[str, Any]) -> tidy.Row:
    """The row of a cell, in percent: of all lots at the end, of the first and the last, and of the first after each."""
    kind, method, seed = name.split("_")
    after = {f"first after {n}": 100 * value for n, value in enumerate(cell["first"], 1)}
    first, *_, last = of_lots = [100 * value for value in cell["accuracy"]]
    scores = {"all": fmean(of_lots), "the first": first, "the last": last} | after
    return {"study": "continual", "problem": kind, "method": method, "seed": int(seed) - first_seed, **scores}


def lots(kind: str, digits: int, seed: int) -> list[Lot]:
    """The training and the test digits of every lot; for ``split`` the labels are y modulo 2."""
    loaded = mnist(progress=False)
    train, test = loaded.train.first(digits), loaded.test.first(digits // 5)
    if kind == "permuted":
        generator = torch.Generator().manual_seed(seed)
        orders = [torch.randperm(train.x.shape[1], generator=generator) for _ in range(LOTS)]
        return [(Dataset(train.x[:, order], train.y), Dataset(test.x[:, order], test.y)) for order in orders]
    pairs = [[part.rows(part.y // 2 == lot) for part in (train, test)] for lot in range(LOTS)]
    return [(Dataset(a.x, a.y % 2), Dataset(b.x, b.y % 2)) for a, b in pairs]


def measure(
    name: str, *, steps: int, digits: int, device: torch.device, progress: bool | None
) -> dict[str, list[float]]:
    """A cell: accuracy on every lot at the end, and on the first lot after each (only once for ``joint``)."""
    kind, method, seed = name.split("_")
    all_lots, first = lots(kind, digits, int(seed)), []
    classes = int(max(train.y.max() for train, _ in all_lots)) + 1
    model: Any = models.MLP(
        [all_lots[0][0].x.shape[1], UNITS, classes],
        prior=priors.Gaussian(SCALE),
        bias_prior=priors.Gaussian(SCALE),
        likelihood=likelihoods.Categorical(),
        seed=int(seed),
    )
    mean_field = method in ("posterior", "joint")
    guide: Any = guides.MeanField(model, 0.02) if mean_field else guides.Point(model)
    precisions = {site: torch.full_like(w, SCALE**-2) for site, w in model.weight_sites().items()}
    settings: dict[str, Any] = {"batch_size": BATCH, "lr": 1e-3, "estimator": "local", "device": device}
    settings |= {"seed": int(seed), "progress": progress}
    if method == "joint":
        steps *= LOTS
        x, y = (torch.cat([getattr(train, part) for train, _ in all_lots]) for part in ("x", "y"))
        run = pyrodrop.fit(model, guide, (x, y), steps=steps, lr_schedule=schedules.cosine(steps), **settings)
        reached = accuracies(run, all_lots)
        return {"accuracy": reached, "first": reached[:1]}
    for train, _ in all_lots:
        run = pyrodrop.fit(model, guide, train, steps=steps, lr_schedule=schedules.cosine(steps), **settings)
        first += accuracies(run, all_lots[:1])
        model, guide = run.model, run.guide
        if method == "posterior":
            model = model.with_priors(priors.from_posterior(run))
        if method == "EWC":
            now, means = fisher(run, train, int(seed)), guide.mean()
            precisions = {site: value + now[site].to(value) for site, value in precisions.items()}
            model = model.with_priors(
                {site: priors.Informative(means[site], value.rsqrt()) for site, value in precisions.items()}
            )
    return {"accuracy": accuracies(run, all_lots), "first": first}


def accuracies(run: Fit, of: Sequence[Lot]) -> list[float]:
    """The accuracy of a fit on the test digits of every lot."""
    draws = 1 if isinstance(run.guide, guides.Point) else DRAWS
    return [metrics.accuracy(run.predict(test.x, draws, seed=1), test.y) for _, test in of]


def fisher(run: Fit, data: Dataset, seed: int) -> dict[str, Tensor]:
    """The diagonal of the Fisher information of all rows at the means, from a tenth of them with labels that are drawn."""
    generator = torch.Generator().manual_seed(seed)
    x = data.x[torch.randperm(len(data), generator=generator)[: max(1, len(data) // 10)]]
    model: Any = run.model
    guide: Any = run.guide
    weights, total = guide.mean(), dict[str, Tensor]()
    for row in x.to(run.device)[:, None]:
        free = {site: value.requires_grad_() for site, value in weights.items()}
        labels = torch.distributions.Categorical(logits=model.outputs(free, row))
        drawn = torch.multinomial(labels.probs.detach().cpu(), 1, generator=generator)[:, 0].to(row.device)
        slopes = torch.autograd.grad(labels.log_prob(drawn).sum(), list(free.values()))
        for site, slope in zip(free, slopes, strict=True):
            total[site] = total.get(site, torch.zeros_like(slope)) + slope**2 * (len(data) / len(x))
    return total


@styled()
def figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Accuracy on the first lot after each lot, mean over seeds."""
    made = Figure((7.5, 2.8), layout="constrained")
    for axes, kind in zip(made.subplots(1, len(KINDS), sharey=True), KINDS, strict=True):
        for method, color in zip(METHODS, SERIES, strict=False):
            means = tidy.means([row for row in rows if (row["problem"], row["method"]) == (kind, method)])
            curve = [means[f"first after {n}"] for n in range(1, LOTS + 1) if f"first after {n}" in means]
            if method == "joint":
                axes.axhline(curve[0], color=GREY, ls=":", label=method)
            else:
                axes.plot(range(1, LOTS + 1), curve, "o-", color=color, label=method)
        axes.set(title=kind, xlabel="lots seen", xticks=range(1, LOTS + 1), ylim=(0, 103))
    made.axes[0].set_ylabel("accuracy on the first lot, %")
    made.axes[1].legend(loc="lower left")
    return made


def text() -> str:
    """The table of ``docs/data-that-keep-coming.md``, in Markdown."""
    table = [["lots", "method", "all", "the first", "the last"]]
    for kind in KINDS:
        rows = [row for row in tidy.read(RESULTS / "continual.csv") if row["problem"] == kind]
        table += [[kind, *cells[:4]] for cells in tidy.pivot(rows, shown)[1:]]
    return generated.table(table) + "\n"


def shown(values: Sequence[float]) -> str:
    """Mean and standard error of percentages."""
    mean, error = mean_and_error(values)
    return f"{mean:.1f}" if error is None else f"{mean:.1f} +- {error:.1f}"
