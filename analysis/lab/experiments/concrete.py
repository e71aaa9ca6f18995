"""The synthetic experiment of concrete dropout: error, uncertainty and learned rates by the number of data.

    y = 2 x + 8 + N(0, 1),   x ~ N(0, 1)

For every N: test RMSE, epistemic and aleatoric standard deviation, and the drop rates of the three hidden layers' inputs,
beside the figures of the released PyTorch notebook of Gal, Hron & Kendall (2017), which are means of three repetitions.

Minibatches are those of that notebook. It sets ``batch_size = 20``, but takes the rows ``X[old_batch : 20 * batch]`` and
never changes ``old_batch`` from 0: step k of an epoch trains on the first 20 k rows, 510 on average at N = 1000. The rates
of the hidden layers mainly count steps: the KL divergence moves their log odds by Adam's learning rate of .001 per step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pyro import poutine

from pyrodrop import checks, zoo
from pyrodrop.analysis.lab import RESULTS, tidy
from pyrodrop.analysis.lab.experiments.experiment import Experiment, numbers
from pyrodrop.analysis.lab.experiments.published_figures import figures as published_figures
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.data import Dataset, line
from pyrodrop.devices import seeded
from pyrodrop.metrics import rmse
from pyrodrop.reparam import LocalReparam, reparameterize
from pyrodrop.training.elbo import elbo_terms

SIZES = (10, 25, 50, 100, 1000, 10_000)
TEST, DRAWS = 1000, 20
LAYERS = [f"layers.{i}.weight" for i in range(3)]
ENTRY = "concrete/synthetic"
METRICS = {
    "test RMSE": ("rmse",),
    "epistemic,aleatoric std": ("epistemic_sd", "aleatoric_sd"),
    "p layers 1-3": ("rate_1", "rate_2", "rate_3"),
}
QUANTITIES = tuple(quantity for quantities in METRICS.values() for quantity in quantities)


@with_job_options("device", "jobs")
def run(
    job: JobOptions,
    *,
    seeds: int = 5,
    sizes: list[int] | None = None,
    out: Path = Path("runs/concrete"),
) -> dict[str, Any]:
    """Train concrete dropout at every size, with several seeds, and print the table next to the published one.

    Args:
        seeds: number of seeds.
        sizes: numbers of training examples, of 10, 25, 50, 100, 1000, 10000; all if left out. One training takes a minute on
            a processor, of 1000 five minutes, of 10000 an hour.
        out: folder for results.json and what has been trained: an interrupted run continues there.

    Returns:
        What is written to results.json.

    Raises:
        ValueError: a size that the notebook does not have, or one twice.
    """
    seeds = checks.count(seeds, "seeds", "the number of repetitions")
    chosen = SIZES if sizes is None else tuple(sizes)
    if not chosen or not set(chosen) <= set(SIZES) or len(set(chosen)) < len(chosen):
        raise ValueError(f"sizes must be some of {', '.join(map(str, SIZES))}, each once; got {sizes}")
    with Experiment.begin("concrete", out, job, {"sizes": list(chosen), "seeds": seeds}) as experiment:
        repetitions = range(job.seed, job.seed + seeds)
        names = [f"{n}-{s}" for n in sorted(chosen, reverse=True) for s in repetitions]
        about = {"device": job.device.type}
        measured = experiment.measure(
            measure, names, experiment.cells(numbers(*QUANTITIES), lambda name: {"name": name, **about})
        )
        rows = [row_of(n, "ours", measured[f"{n}-{s}"]) | {"seed": s - job.seed} for n in chosen for s in repetitions]
        rows += [row_of(n, "published", dict(zip(QUANTITIES, published(n), strict=True))) for n in chosen]
        return experiment.write({}, rows=rows, settings={"draws": DRAWS, "test": TEST}, threads=1)


def row_of(n: int, method: str, values: Mapping[str, Any]) -> tidy.Row:
    """A row of a table of results."""
    return {"study": "concrete", "problem": f"N = {n}", "method": method} | {name: values[name] for name in QUANTITIES}


def measure(name: str, *, device: torch.device, progress: bool | None) -> dict[str, float]:
    """Train the cell ``N-seed`` and measure on new data, with separate masks for every test point, as in the notebook."""
    n, seed = map(int, name.split("-"))
    data, test = line(n, seed), line(TEST, seed + 10_000)
    x = test.x.to(device)
    model, guide = (module.to(device) for module in zoo.entry(ENTRY).build(data, seed))
    wrapped = reparameterize(model, guide, LocalReparam())
    with seeded(seed, device):
        train(model, guide, wrapped, data, device)
        with torch.no_grad():
            draws = [_predicted(*wrapped, x) for _ in range(DRAWS)]
    means, variances = (torch.stack(column).cpu() for column in zip(*draws, strict=True))
    rates = guide.rates()  # type: ignore[attr-defined]
    values = (
        rmse(means.mean(0), test.y),
        float(means.var(0, correction=0).mean().sqrt()),
        float(variances.log().mean(0).exp().mean().sqrt()),  # as in the notebook: the mean log variance of the draws
        *(float(rates[layer]) for layer in LAYERS),
    )
    return dict(zip(QUANTITIES, values, strict=True))


def train(model: Any, guide: Any, wrapped: tuple[Any, Any], data: Dataset, device: torch.device) -> None:
    """Adam on the first 20, 40, 60 ... rows in every epoch, the minibatches of the notebook."""
    x, y, n = data.x.to(device), data.y.to(device), len(data)
    settings = zoo.entry(ENTRY).settings(data)
    size = settings["batch_size"]
    optimizer = torch.optim.Adam([*guide.parameters(), *model.parameters()], lr=settings["lr"], fused=True)
    for step in range(settings["steps"]):
        rows = min(n, (step % -(-n // size) + 1) * size)
        optimizer.zero_grad()
        (2 / n * elbo_terms(*wrapped, x[:rows], y[:rows], num_data=n).loss).backward()
        optimizer.step()


def _predicted(model: Any, guide: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of y at x under one draw, ``[N, 1]`` each."""
    replayed = poutine.replay(model, poutine.trace(guide).get_trace(x))
    y = poutine.trace(replayed).get_trace(x).nodes["y"]["fn"]
    return y.mean, y.variance


def figure(rows: Sequence[Mapping[str, Any]], metric: str) -> float | list[float]:
    """A figure by the name of the published one: means over seeds, for the two uncertainties the root mean square."""
    columns = torch.tensor([[row[q] for q in METRICS[metric]] for row in rows], dtype=torch.float64)
    value = columns.square().mean(0).sqrt() if "epistemic_sd" in METRICS[metric] else columns.mean(0)
    return float(value) if len(value) == 1 else value.tolist()


def stored(n: int) -> list[tidy.Row]:
    """Our rows for N examples; empty if they have not been run."""
    rows = tidy.read(RESULTS / "concrete.csv")
    return [row for row in rows if (row["problem"], row["method"]) == (f"N = {n}", "ours")]


def published(n: int) -> list[float]:
    """The notebook's figures for N examples, in the order of `QUANTITIES`."""
    values = {figure.metric: figure.value for figure in published_figures() if figure.paper == "gal2017"}
    return [values[f"test RMSE N={n}"], *values[f"epistemic,aleatoric std N={n}"], *values[f"p layers 1-3 N={n}"]]
