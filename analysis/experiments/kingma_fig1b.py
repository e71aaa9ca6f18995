"""Test error by size for seven dropout methods on CIFAR-10 (Kingma, Salimans & Welling 2015, figure 1b).

conv 32k, conv 64k (5 x 5, stride 2) - dense 128k, dense 128k - 10, softplus;   the methods of `pyrodrop.zoo.kingma`

https://arxiv.org/abs/1506.02557. The paper states the sizes, stride and softplus. Kernels, padding, length of the training
and the preparation of the images are not stated and are choices made here: every channel is standardised, and the learning
rate falls to 0 over the second half of the epochs. "Inputs" of a convolution are channels: types A and binary dropout have
one noise per image and channel, so that the first layer drops a colour with probability 0.2.

A cell is a method at a k, the factor of the widths of the convolutional network. Its networks, which differ in their seeds,
are one replicated fit. Errors are those of the averaged weights, as in the paper, whose curves are not known as numbers.
Finished cells are stored: repeating the command continues with the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pyrodrop import arguments, likelihoods
from pyrodrop.analysis.experiments.error_by_size import Study, run_study
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.data import Dataset, cifar10
from pyrodrop.models import ConvNet, NetworkModel
from pyrodrop.names import known, some
from pyrodrop.zoo.kingma import EPOCHS, Method, methods, training

PUBLISHED_SCALES = (0.25, 0.5, 1.0)  # k
SHORT = 3  # epochs of the default preset
METHODS: Mapping[str, Method] = methods("conv1.*")


def network(data: Dataset, *, method: str, scale: float) -> NetworkModel:
    """The network at the factor `scale` (k in the paper) with the prior of a method."""
    return ConvNet(scale=scale, prior=METHODS[method].prior(), likelihood=likelihoods.Categorical(), seed=None)


PRESETS: Mapping[str, tuple[tuple[float, ...], int]] = {
    "default": (PUBLISHED_SCALES[:1], SHORT),
    "paper": (PUBLISHED_SCALES, EPOCHS),
}
STUDY = Study(
    job="kingma-fig1b",
    size="scale",
    rows="train",
    methods=METHODS,
    sizes=PUBLISHED_SCALES,
    load=cifar10,
    network=network,
    training=training,
    header="k = {:g}",
    title="CIFAR-10: test error %, {epochs} epochs, mean ± s.e. of {seeds} seeds",
    axis="k, factor of the widths of two convolutional and two dense layers",
)


@with_job_options("device", "jobs")
def run(
    job: JobOptions,
    *,
    scales: list[float] | None = None,
    methods: list[str] | None = None,
    preset: Literal["default", "paper"] = "default",
    epochs: int | None = None,
    seeds: int = 5,
    train: int | None = None,
    out: Path | None = None,
) -> dict[str, Any]:
    """Train the missing cells of the figure, print the errors and plot them.

    Args:
        scales: factors k of the widths 32, 64, 128 and 128; those of the preset if not given.
        methods: none, binary, gaussian-a, gaussian-b, variational-a, variational-a2, variational-b; all if left out.
        preset: default is a try on two cores: k = 0.25 for three epochs, far too few to compare with the paper; paper has
            k = 0.25, 0.5 and 1 for 200 epochs, days on a CPU: it is for a GPU.
        epochs: passes over the images; those of the preset if not given.
        seeds: networks per cell, trained at once.
        train: number of training images, the first ones; all if not given.
        out: folder of the cells, results.json and figure.png; runs/kingma-fig1b-PRESET if left out.

    Returns:
        What is written to results.json.
    """
    usual, long = PRESETS[preset]
    scales, epochs = some(scales, usual, "scales"), long if epochs is None else epochs
    chosen = [known(method, METHODS, "dropout method") for method in some(methods, METHODS, "methods")]
    for value in scales:
        arguments.real(value, "scales", "the factors of the widths", least=1 / 32)
    for name, number in {"seeds": seeds, "epochs": epochs, "train": 1 if train is None else train}.items():
        if number < 1:
            raise ValueError(f"{name} must be at least 1; got {number}")
    split = cifar10(progress=not job.quiet)  # raises for missing or broken files before training
    data = split.train if train is None else split.train.first(train)
    study = replace(STUDY, caption=f"CIFAR-10, {len(data):,} images, {epochs} epochs")
    settings = {"epochs": epochs, "seeds": seeds, "seed": job.seed, "train": train}
    out = out or Path("runs") / f"kingma-fig1b-{preset}"
    return run_study(study, chosen, scales, settings, job, preset=preset, out=out)
