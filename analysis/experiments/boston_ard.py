"""Sparse variational dropout on Boston housing by the weight of the KL divergence: the table of pytorch_ard.

    minimise  mean (y - f)^2 + factor KL(q || log-uniform),     f = relu(W_2 tanh(W_1 x + b_1) + b_2)

150 hidden units; x and y are not standardised; all rows in every step, Adam, 100,000 steps. Up to a constant, the mean
squared error is minus the log likelihood of all rows under a precision of 2 / N. Source: the first commit with results of
https://github.com/HolyBayes/pytorch_ard. The training error is that of one draw, as there; the test error is that of the
mean weights without those of log alpha >= 3. The published numbers are of one unknown random split; here are several.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import nn

from pyrodrop import arguments, likelihoods, priors
from pyrodrop.analysis.experiments.experiment import Experiment, rows_of_numbers
from pyrodrop.analysis.experiments.published.facts import figures
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.analysis.reports.terminal import text_table
from pyrodrop.analysis.zoo.averaged import averaged
from pyrodrop.data import Dataset, uci
from pyrodrop.devices import seeded
from pyrodrop.guides import Point, SparseDropout
from pyrodrop.metrics import rmse
from pyrodrop.models import NetworkModel
from pyrodrop.training.replicates import fit_replicates
from pyrodrop.training.result import Fit

UNITS, STEPS, SHARE = 150, 100_000, 0.8
METRICS = ("MSE train", "MSE test", "dropped %")
FACTORS: Mapping[str, float | None] = {
    "nn.Linear": None, "LinearARD no reg": 0.0, "reg 1e-4": 1e-4, "reg 1e-3": 1e-3, "reg .1": 0.1, "reg 1": 1.0,
}  # fmt: skip


@with_job_options("device", "jobs")
def run(job: JobOptions, *, splits: int = 3, steps: int = STEPS, out: Path = Path("runs/boston-ard")) -> dict[str, Any]:
    """Train every column of the table on random splits, and print the errors next to the published ones.

    Args:
        splits: number of random splits; 10 minutes of a core each.
        steps: gradient steps.
        out: folder for results.json and the finished columns: an interrupted run continues there.

    Returns:
        What is written to results.json.
    """
    splits = arguments.count(splits, "splits", "the number of random splits")
    steps = arguments.count(steps, "steps", "the number of gradient steps")
    settings = {"splits": splits, "steps": steps}
    with Experiment.begin("boston-ard", out, job, settings) as experiment:
        cells = experiment.cells(rows_of_numbers(*METRICS))
        measured = experiment.measure(measure, tuple(FACTORS), cells, **settings, seed=job.seed)
        columns = {name: {metric: row[metric] for metric in METRICS} for name, row in measured.items()}
        content = {"columns": columns, "published": _published(), "command": experiment.command}
        return experiment.write(content, table_of(columns), threads=1)


def measure(
    name: str, *, splits: int, steps: int, seed: int, device: torch.device, progress: bool | None
) -> dict[str, list[float]]:
    """The numbers of a column on every split, by metric."""
    pairs, factor = [_split(seed + number) for number in range(splits)], FACTORS[name]
    built = [_build(train, factor, seed + number) for number, (train, _) in enumerate(pairs)]
    many = fit_replicates(
        [model for model, _ in built], [guide for _, guide in built], [train for train, _ in pairs],
        count=splits, steps=steps, lr=1e-3, kl_weight=factor or 0.0, estimator="local", device=device, seed=seed,
        progress=progress,
    )  # fmt: skip
    rows = [_scores(many[number], *pairs[number], seed + number) for number in range(splits)]
    return dict(zip(METRICS, map(list, zip(*rows, strict=True)), strict=True))


def _split(seed: int) -> tuple[Dataset, Dataset]:
    """A random split in raw units, with a fifth of the rows for the test."""
    table = uci("boston")
    rows = np.random.RandomState(seed).permutation(len(table.x))
    first = int(SHARE * len(rows))
    train, test = (Dataset(table.x[chosen].float(), table.y[chosen].float()) for chosen in (rows[:first], rows[first:]))
    return train, test


def _build(train: Dataset, factor: float | None, seed: int) -> tuple[NetworkModel, Point | SparseDropout]:
    """The model and its guide. Initial weights are PyTorch's without a divergence; with it N(0, .01^2), and biases are 0."""
    with seeded(seed, torch.device("cpu")):
        width = train.x.shape[1]
        network = nn.Sequential(nn.Linear(width, UNITS), nn.Tanh(), nn.Linear(UNITS, 1), nn.ReLU())
        if factor is not None:
            for layer in (network[0], network[2]):
                nn.init.normal_(layer.weight, 0, 0.01)  # type: ignore[arg-type]
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    likelihood = likelihoods.Gaussian(2 / len(train))
    prior = priors.Gaussian() if factor is None else priors.LogUniform()
    model = NetworkModel(network, prior=prior, likelihood=likelihood, bias_prior=None, in_features=width)
    return model, Point(model) if factor is None else SparseDropout(model)


def _scores(fit: Fit, train: Dataset, test: Dataset, seed: int) -> tuple[float, float, float]:
    """Mean squared error of one draw on the training rows and of the kept mean weights on the test rows; percent dropped."""
    noisy, left, dropped = rmse(fit.predict(train.x, 1, seed=seed).mean, train.y) ** 2, averaged(fit), 0.0
    if isinstance(fit.guide, SparseDropout):
        masks = fit.guide.keep_mask()
        with torch.no_grad():
            for name, mask in masks.items():
                left.guide.loc[name].mul_(mask)  # type: ignore[attr-defined]
        kept = torch.cat([mask.flatten() for mask in masks.values()])
        dropped = 100 * (1 - float(kept.double().mean()))
    return noisy, rmse(left.predict(test.x, 1).mean, test.y) ** 2, dropped


def _published() -> dict[str, dict[str, float]]:
    """The published table, by column and metric."""
    values = {(f.method, f.metric): float(f.value) for f in figures() if f.paper == "pytorch_ard"}
    return {name: {metric: values[name, metric] for metric in METRICS} for name in FACTORS}


def table_of(columns: Mapping[str, Mapping[str, list[float]]]) -> Table:
    """Our errors above the published ones."""
    rows, published = [["KL divergence", *METRICS]], _published()
    for name, row in columns.items():
        cells = (
            f"{np.mean(row[metric]):.4g} ({min(row[metric]):.4g}-{max(row[metric]):.4g})\n{value:.4g}"
            for metric, value in published[name].items()
        )
        rows.append([name, *cells])
    return text_table("Boston housing: mean (least-most of the splits), published below", rows, lines=True)
