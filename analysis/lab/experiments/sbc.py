"""Simulation-based calibration of a known posterior and of four guides (Talts et al. 2018; Yao et al. 2018).

    exact, halved     Bayesian linear regression of 13 inputs in closed form, with the posterior's covariance and half
                      of it
    mean-field ...    a network 13-50-1 with tanh units, w ~ N(0, 1 / fan-in), b ~ N(0, 1 / fan-in), trained on each
                      data set from new initial weights

f is ranked at an input of the training data (f[0]), at another one from the same distribution (f[1]) and at three times
this input (f[2]). For the linear f this would be three times f[1], so its f[2] is at three times a third input. The exact
posterior must pass and the halved one must fail; for the guides the result shows in which direction they are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

from pyrodrop import checks, guides, likelihoods, models, priors, schedules
from pyrodrop.analysis.calibration.figure import plot_sbc
from pyrodrop.analysis.calibration.result import SBC
from pyrodrop.analysis.calibration.sbc import sbc, sbc_of_draws
from pyrodrop.analysis.lab.experiments.experiment import Experiment
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.analysis.reports.terminal import text_table
from pyrodrop.checks import known, some
from pyrodrop.files import Record
from pyrodrop.training.settings import Estimator

INPUTS, HIDDEN, NUM_DATA, PRECISION = 13, 50, 30, 25.0
LEARNING_RATE = 1e-2
_BINS = 20


@dataclass(frozen=True)
class Posterior:
    """A guide of the figure and its estimator."""

    guide: Callable[[Any], Any]
    estimator: Estimator


GUIDES: Mapping[str, Posterior] = {
    "mean-field": Posterior(guides.MeanField, "local"),
    "mc-dropout": Posterior(lambda model: guides.BernoulliDropout(model, drop_rate=0.1, mask_input=True), "local"),
    "variational-dropout": Posterior(lambda model: guides.VariationalDropout(model, "B", "weight"), "local"),
    "low-rank": Posterior(guides.LowRank, "shared"),
}
CLOSED_FORM = {"exact": 1.0, "halved": 0.5}  # factor of the posterior's covariance


@with_job_options("device", "jobs")
def run(
    job: JobOptions,
    *,
    posteriors: list[str] | None = None,
    count: int = 1000,
    steps: int = 2000,
    num_draws: int = 199,
    out: Path | None = None,
) -> dict[str, Any]:
    """Calibrate each posterior, print the verdicts and plot the ranks.

    Args:
        posteriors: exact, halved, mean-field, mc-dropout, variational-dropout, low-rank; all if left out.
        count: number of data sets, simulated from the prior.
        steps: gradient steps of every fit.
        num_draws: posterior draws per data set.
        out: folder of results.json, figure.png and the ranks of every posterior; runs/sbc if left out. An interrupted run
            continues with the posteriors that are not there.

    Returns:
        What is written to results.json: the posteriors of the folder, also those of earlier runs.
    """
    names = [
        known(name, [*CLOSED_FORM, *GUIDES], "posterior")
        for name in some(posteriors, [*CLOSED_FORM, *GUIDES], "posteriors")
    ]
    count = checks.count(count, "count", "the number of data sets")
    num_draws = checks.count(num_draws, "num_draws", "the number of posterior draws per data set")
    settings = {"count": count, "steps": steps, "num_draws": num_draws}
    with Experiment.begin("sbc", out or Path("runs") / "sbc", job, settings) as experiment:
        cells = experiment.cells(SBC.from_record, lambda name: {}, where="")
        every = [name for name in [*CLOSED_FORM, *GUIDES] if name in names or cells.file(name).exists()]
        ranks = experiment.measure(_ranks, every, cells, **settings, seed=job.seed)
        results = {name: SBC.from_record(Record(cells.file(name), content)) for name, content in ranks.items()}
        return experiment.write(
            {"posteriors": {name: _summary(result) for name, result in results.items()}}, table_of(results),
            settings={"lr": LEARNING_RATE}, figures={"figure": plot_sbc(results)},
        )  # fmt: skip


def _ranks(name: str, **options: Any) -> dict[str, Any]:
    return calibrated(name, **options).to_dict()


def calibrated(
    name: str, *, count: int, steps: int, num_draws: int, seed: int, device: torch.device, progress: bool | None
) -> SBC:
    """The calibration of one posterior."""
    x, points = inputs(linear=name in CLOSED_FORM)
    about: dict[str, Any] = {"points": points, "count": count, "num_draws": num_draws, "seed": seed}
    if name in CLOSED_FORM:
        return sbc_of_draws(regression(), in_closed_form(CLOSED_FORM[name]), x, **about)
    posterior = GUIDES[name]
    return sbc(
        network(seed), posterior.guide, x, estimator=posterior.estimator, steps=steps, lr=LEARNING_RATE,
        lr_schedule=schedules.cosine(steps), device=device, progress=progress, **about,
    )  # fmt: skip


def inputs(*, linear: bool) -> tuple[Tensor, Tensor]:
    """x of every data set, ``[30, 13]``, and the points, ``[3, 13]``; if linear, none is a multiple of another one."""
    generator = torch.Generator().manual_seed(0)
    x, third = torch.randn(NUM_DATA + 1, INPUTS, generator=generator), torch.randn(INPUTS, generator=generator)
    return x[:-1], torch.stack([x[0], x[-1], 3 * (third if linear else x[-1])])


def network(seed: int) -> models.NetworkModel:
    """The network, with initial weights of this seed."""
    first, second = (priors.Gaussian(scale=1 / math.sqrt(width)) for width in (INPUTS, HIDDEN))
    prior = {"layers.0.*": first, "layers.1.*": second}
    return models.MLP(
        [INPUTS, HIDDEN, 1],
        "tanh",
        prior=prior,
        bias_prior=prior,
        likelihood=likelihoods.Gaussian(PRECISION),
        seed=seed,
    )


def regression() -> models.NetworkModel:
    """Linear regression with w ~ N(0, 1 / 13)."""
    return models.from_module(
        nn.Linear(INPUTS, 1, bias=False),
        prior=priors.Gaussian(scale=1 / math.sqrt(INPUTS)),
        likelihood=likelihoods.Gaussian(PRECISION),
    )


def in_closed_form(scale: float) -> Callable[[Any, Tensor, int, int], dict[str, Tensor]]:
    """Draws from N(m, scale C), where N(m, C) is the exact posterior of `regression`."""

    def draw(x: Any, y: Tensor, num_draws: int, seed: int) -> dict[str, Tensor]:
        wide = x.double()
        covariance = torch.linalg.inv(PRECISION * wide.T @ wide + INPUTS * torch.eye(INPUTS).double())
        mean = covariance @ (PRECISION * wide.T @ y[:, 0].double())
        noise = torch.randn(num_draws, INPUTS, generator=torch.Generator().manual_seed(seed)).double()
        return {"weight": (mean + noise @ torch.linalg.cholesky(scale * covariance).T)[:, None]}

    return draw


def _summary(result: SBC) -> dict[str, Any]:
    """The entry of one posterior in results.json: without ranks, but with counts of PIT values in 20 equal bins."""
    content = result.to_dict()
    del content["ranks"]
    counts = {name: torch.histc(pit, _BINS, 0.0, 1.0).long().tolist() for name, pit in result.pit.items()}
    return {**content, "histogram": counts}


def table_of(results: Mapping[str, SBC]) -> Table:
    """The verdicts and processor times by posterior."""
    rows = [["posterior", "verdict", "CPU seconds"]]
    for name, result in results.items():
        seconds = result.settings.get("cpu_seconds")
        rows.append([name, result.verdict, "-" if seconds is None else f"{seconds:.0f}"])
    return text_table("simulation-based calibration", rows, left=2)
