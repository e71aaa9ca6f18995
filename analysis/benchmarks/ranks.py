"""Training MNIST by several processes: accuracy, seconds per epoch, and the difference from one process.

``python -m pyrodrop.analysis.benchmarks.ranks [--processes 1,2,3] [--epochs N] [--out FILE]`` starts, for each number W of
processes, ``torchrun --nproc-per-node W`` on the function `train` of this file: one call of `pyrodrop.fit`, the same for any
W. Every process has one thread. It is called twice: every rank with noise of its own, and with the noise of one process, for
which the losses of every step are compared with those of one process.

An epoch takes as long as its slowest process. On a machine with fewer cores than processes, or where other programs run, the
seconds say little; the seconds of the processor are those of rank 0, with its share of waiting for the others.
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
from typing import Any

import jsonargparse
import torch

import pyrodrop
from pyrodrop import data, guides, likelihoods, models, priors
from pyrodrop.analysis.benchmarks.timing import machine, report, write
from pyrodrop.files import write_json
from pyrodrop.training.settings import RankNoise

WIDTHS, BATCH, RATE = (784, 400, 400, 10), 600, 0.2
NOISES: tuple[RankNoise, ...] = ("shared", "own")


def main(processes: Sequence[int] = (1, 2, 3), epochs: int = 3, out: Path | None = None) -> None:
    """Train with each number of processes.

    Args:
        processes: numbers of processes; 1 is the one that the others are compared with.
        epochs: of each training; the first, which includes tracing, is not timed.
        out: JSON file for the results.
    """
    found: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in processes:
            file = Path(folder) / f"{size}.json"
            words = ["-m", "pyrodrop.analysis.benchmarks.ranks", "--epochs", str(epochs), "--train", str(file)]
            launcher = (
                ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)] if size > 1 else []
            )
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            subprocess.run([sys.executable, *launcher, *words], env=environment, check=True)
            found[size] = json.loads(file.read_text())
    rows: dict[str, dict[str, float]] = {}
    for size, result in found.items():
        for noise in NOISES:
            own = dict(result[noise])
            losses = own.pop("losses")
            if 1 in found and noise == "shared":
                alone = found[1][noise]["losses"]
                own["largest difference of a loss, relative"] = max(
                    abs(a - b) / abs(b) for a, b in zip(losses, alone, strict=True)
                )
            rows[f"{size} process(es), {noise} noise"] = own
    report(f"MNIST, {epochs} epochs, {BATCH} rows per minibatch", rows, ".4g")
    write(out, "ranks", {"epochs": epochs, "batch_size": BATCH, "widths": WIDTHS, "rows": rows})


def train(file: Path, epochs: int) -> None:
    """Train on the ranks that torchrun has started, or alone; rank 0 writes the results."""
    torch.set_num_threads(1)
    split = data.mnist()
    steps = epochs * -(-len(split.train) // BATCH)
    found: dict[str, Any] = {}
    for noise in NOISES:
        torch.manual_seed(0)
        model = models.MLP(WIDTHS, activation="relu", prior=priors.Gaussian(0.1), likelihood=likelihoods.Categorical())
        guide = guides.BernoulliDropout(model, RATE)
        marks: list[tuple[float, float]] = []

        def mark(fit: pyrodrop.Fit, epoch: int, marks: list[tuple[float, float]] = marks) -> None:
            marks.append((time.perf_counter(), time.process_time()))

        fit = pyrodrop.fit(
            model,
            guide,
            split.train,
            steps=steps,
            batch_size=BATCH,
            estimator="local",
            engine="traced",
            device="cpu",
            rank_noise=noise,
            after_epoch=mark,
            progress=False,
        )
        mean = pyrodrop.predict(fit, split.test.x, 20, keep="moments", distributed=None).mean
        (wall, cpu), (wall_end, cpu_end) = marks[0], marks[-1]
        found[noise] = {
            "accuracy": float((mean.argmax(-1) == split.test.y).double().mean()),
            "seconds per epoch": (wall_end - wall) / (epochs - 1),
            "of the processor, rank 0": (cpu_end - cpu) / (epochs - 1),
            "losses": fit.losses.tolist(),
        }
    if int(os.environ.get("RANK", "0")) == 0:
        print(f"{fit.settings['ranks']} rank(s), {machine()}")
        write_json(file, found)


def command(words: Sequence[str] | None = None) -> None:
    """The command line of `main`; with ``--train FILE``, that of `train`."""
    parser = jsonargparse.ArgumentParser(description=__doc__)
    parser.add_function_arguments(main)
    parser.add_argument("--train", type=Path | None, default=None, help="train in this process, and write to this file")
    given = vars(parser.parse_args(words))
    file = given.pop("train")
    if file is None:
        main(**given)
    else:
        train(file, given["epochs"])


if __name__ == "__main__":
    command()
