"""Test error by width for seven dropout methods on MNIST (Kingma, Salimans & Welling 2015, figure 1a).

A cell is a method at a width. Its networks, by default five with different seeds, are one replicated fit. Errors are those
of the averaged weights, as in the paper. Finished cells are stored: repeating the command continues with the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pyrodrop.analysis.experiments.error_by_size import Study, run_study
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.data import mnist
from pyrodrop.names import known, some
from pyrodrop.zoo.kingma import EPOCHS, METHODS, PUBLISHED_WIDTHS, READ_OFF, network, training

PRESETS: Mapping[str, tuple[tuple[int, ...], int]] = {"default": ((100, 250), 4), "paper": (PUBLISHED_WIDTHS, EPOCHS)}
STUDY = Study(
    job="kingma-fig1a",
    size="width",
    rows="digits",
    methods=METHODS,
    sizes=PUBLISHED_WIDTHS,
    load=mnist,
    network=network,
    training=training,
    header="3 x {:g}",
    title="test error %, {epochs} epochs of {digits:,} digits, mean ± s.e. of {seeds} seeds",
    axis="units of each of three hidden layers",
    published_as=READ_OFF,
)


@with_job_options("device", "jobs")
def run(
    job: JobOptions,
    *,
    widths: list[int] | None = None,
    methods: list[str] | None = None,
    preset: Literal["default", "paper"] = "default",
    epochs: int | None = None,
    seeds: int = 5,
    digits: int = 60_000,
    out: Path | None = None,
) -> dict[str, Any]:
    """Train the missing cells of the figure, print the errors next to the published ones and plot them.

    Args:
        widths: widths of the three hidden layers; those of the preset if not given.
        methods: none, binary, gaussian-a, gaussian-b, variational-a, variational-a2, variational-b; all if left out.
        preset: default is for two cores: widths 100 and 250, four epochs, too few for the published errors; paper has six
            widths and 200 epochs, for a GPU.
        epochs: passes over the digits; those of the preset if not given.
        seeds: networks per cell, trained at once.
        digits: number of training digits, the first ones.
        out: folder of the cells, results.json and figure.png; runs/kingma-fig1a-PRESET if left out.

    Returns:
        What is written to results.json.
    """
    usual, long = PRESETS[preset]
    widths, epochs = some(widths, usual, "widths"), long if epochs is None else epochs
    chosen = [known(method, METHODS, "dropout method") for method in some(methods, METHODS, "methods")]
    for name, value in {"seeds": seeds, "epochs": epochs, "widths": min(widths), "digits": digits}.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1; got {value}")
    mnist(progress=not job.quiet)  # raises for missing or broken files before training
    return run_study(
        STUDY, chosen, widths, {"epochs": epochs, "seeds": seeds, "seed": job.seed, "digits": digits}, job,
        preset=preset, out=out or Path("runs") / f"kingma-fig1a-{preset}",
    )  # fmt: skip
