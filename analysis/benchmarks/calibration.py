"""Cost of simulation-based calibration: the fits to many data sets trained as one, against a fit alone.

``python -m pyrodrop.analysis.benchmarks.calibration [--count N] [--steps N] [--out FILE]``: a network 13-50-1 and 30
observations, as in ``pyrodrop run sbc``, with a mean field and shared noise; one thread, processor time, one run. It is the
time of all of `pyrodrop.analysis.sbc`: simulated data, initial weights, compilation, training, draws and ranks.
"""

from __future__ import annotations

import time
from pathlib import Path

import jsonargparse
import torch

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors, schedules
from pyrodrop.analysis import sbc
from pyrodrop.analysis.benchmarks.timing import machine, report, write

LEARNING_RATE = 1e-2
X = torch.randn(30, 13, generator=torch.Generator().manual_seed(0))


def main(count: int = 1000, steps: int = 2000, num_draws: int = 199, out: Path | None = None) -> None:
    """Time one calibration and one fit.

    Args:
        count: number of data sets.
        steps: gradient steps of every fit.
        num_draws: posterior draws per data set.
        out: JSON file for the results.
    """
    torch.set_num_threads(1)
    print(machine())
    settings = {"count": count, "steps": steps, "num_draws": num_draws}
    times = {**together(count, steps, num_draws), "one_fit_alone_cpu_seconds": alone(steps)}
    times["times_as_fast"] = count * times["one_fit_alone_cpu_seconds"] / times["cpu_seconds"]
    report(f"calibration of 13-50-1: {count} data sets x {steps} steps", {"mean field": times}, ".3g")
    write(out, "calibration", {**settings, **times})


def network() -> models.NetworkModel:
    """w, b ~ N(0, 1 / fan-in) and noise of standard deviation 0.2."""
    prior = {f"layers.{layer}.*": priors.Gaussian(scale=width**-0.5) for layer, width in enumerate((13, 50))}
    return models.MLP([13, 50, 1], "tanh", prior=prior, bias_prior=prior, likelihood=likelihoods.Gaussian(25.0))


def together(count: int, steps: int, num_draws: int) -> dict[str, float]:
    """Seconds of a calibration, of the processor and of the clock."""
    result = sbc(
        network(), guides.MeanField, X, points=X[:3], count=count, num_draws=num_draws, steps=steps, lr=LEARNING_RATE,
        lr_schedule=schedules.cosine(steps), estimator="shared", device="cpu",
    )  # fmt: skip
    if result.failed or result.count != count:
        raise SystemExit(f"{result.failed} of {count} fits failed: not a time to report")
    return {name: result.settings[name] for name in ("cpu_seconds", "seconds")}


def alone(steps: int) -> float:
    """Seconds of the processor for one fit, after another one that has it compiled."""
    model, y = network(), torch.randn(len(X), 1, generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        start = time.process_time()
        pyrodrop.fit(
            model, guides.MeanField(model), (X, y), steps=steps, lr=LEARNING_RATE, lr_schedule=schedules.cosine(steps),
            device="cpu", progress=False,
        )  # fmt: skip
        seconds = time.process_time() - start
    return seconds


if __name__ == "__main__":
    jsonargparse.auto_cli(main)
