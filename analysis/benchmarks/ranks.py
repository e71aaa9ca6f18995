"""Training MNIST by several processes: accuracy and seconds per epoch.

``python -m pyrodrop.analysis.benchmarks.ranks [--net mlp|lenet-5] [--epochs N] [--out FILE]`` starts, for each number W of
processes, ``torchrun --nproc-per-node W`` on the function `train` of this file: one call of `pyrodrop.fit`, the same for any
W. Every process has one thread and separate noise.

An epoch takes as long as its slowest process. On a machine with fewer cores than processes, or with other running programs,
wall times are not meaningful. Processor times are those of rank 0 and include its waiting for the others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

import pyrodrop
from pyrodrop import data, guides, likelihoods, models, priors
from pyrodrop.analysis.benchmarks.timing import command, machine, report, write
from pyrodrop.files import write_json

WIDTHS, BATCH, RATE = (784, 400, 400, 10), 600, 0.2
Net = Literal["mlp", "lenet-5"]


def main(
    processes: Sequence[int] = (1, 2, 3),
    net: Net = "mlp",
    epochs: int = 3,
    digits: int = 60_000,
    out: Path | None = None,
    row: Path | None = None,
) -> None:
    """Train with each number of processes.

    Args:
        processes: numbers of processes; if 1 is among them, the others are compared with it.
        net: mlp, of widths 784-400-400-10, or lenet-5, which computes less besides the rows.
        epochs: epochs of each training; the first, which includes tracing, is not timed.
        digits: number of training digits, the first ones.
        out: JSON file for the results.
        row: JSON file for the result of this process, which torchrun has started; None to start the processes.
    """
    if row is not None:
        train(row, net, epochs, digits)
        return
    by_size: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in processes:
            file = Path(folder) / f"{size}.json"
            options = {"--net": net, "--epochs": epochs, "--digits": digits, "--row": file}
            options_as_text = [str(word) for option in options.items() for word in option]
            arguments = ["-m", "pyrodrop.analysis.benchmarks.ranks", *options_as_text]
            launcher = (
                ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)] if size > 1 else []
            )
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            subprocess.run([sys.executable, *launcher, *arguments], env=environment, check=True)
            by_size[size] = json.loads(file.read_text())
    rows: dict[str, dict[str, float]] = {}
    for size, result in by_size.items():
        rows[f"{size} process(es), own noise"] = dict(result)
        if 1 in by_size:
            rows[f"{size} process(es), own noise"]["times as fast as 1"] = (
                by_size[1]["seconds per epoch"] / result["seconds per epoch"]
            )
    report(f"MNIST, {net}, {epochs} epochs, {BATCH} rows per minibatch", rows, ".4g")
    write(out, "ranks", {"net": net, "epochs": epochs, "digits": digits, "batch_size": BATCH, "rows": rows})


def train(file: Path, net: Net, epochs: int, digits: int) -> None:
    """Train on the ranks that torchrun has started, or in one process; rank 0 writes the results."""
    torch.set_num_threads(1)
    split = data.mnist(flat=net == "mlp")
    digits_seen = split.train.first(digits)
    steps = epochs * -(-len(digits_seen) // BATCH)
    torch.manual_seed(0)
    model = _model(net)
    marks: list[tuple[float, float]] = []

    def mark(fit: pyrodrop.Fit, epoch: int) -> None:
        marks.append((time.perf_counter(), time.process_time()))

    fit = pyrodrop.fit(
        model, guides.BernoulliDropout(model, RATE), digits_seen, steps=steps, batch_size=BATCH, estimator="local",
        engine="traced", device="cpu", after_epoch=mark, progress=False,
    )  # fmt: skip
    mean = pyrodrop.predict(fit, split.test.x, 20, keep="moments").mean
    (wall, cpu), (wall_end, cpu_end) = marks[0], marks[-1]
    row = {
        "accuracy": float((mean.argmax(-1) == split.test.y).double().mean()),
        "seconds per epoch": (wall_end - wall) / (epochs - 1),
        "of the processor, rank 0": (cpu_end - cpu) / (epochs - 1),
    }
    if int(os.environ.get("RANK", "0")) == 0:
        print(f"{fit.settings['ranks']} rank(s), {machine()}")
        write_json(file, row)


def _model(net: Net) -> models.NetworkModel:
    prior, likelihood = priors.Gaussian(0.1), likelihoods.Categorical()
    if net == "lenet-5":
        return models.LeNet5(prior=prior, likelihood=likelihood)
    return models.MLP(WIDTHS, activation="relu", prior=prior, likelihood=likelihood)


if __name__ == "__main__":
    command(main)
