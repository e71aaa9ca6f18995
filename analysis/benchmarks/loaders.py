"""The cost of reading data while training: the time of a step by source of minibatches, and the memory of a mapped file.

    python -m pyrodrop.analysis.benchmarks.loaders [--rounds 15] [--gigabytes 20] [--out FILE]

A network 784-400-10 with dropout, minibatches of 128, a compiled step; one thread, process time, interleaved medians, as
ratios to tensors in memory. The sources are rows of a ``torch.utils.data.Dataset``, rows of a mapped file, a list of the
minibatches, and a ``DataLoader`` of the data set in the same process. Iterating the ``DataLoader`` alone is timed as well.

Then a separate process trains on a sparse file of the given number of gigabytes. Its largest resident memory is compared
with that after the imports.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.benchmarks.timing import (
    begin,
    clock_of,
    command,
    elsewhere,
    interleaved,
    moves_all,
    report,
    write,
)

ROWS, WIDTHS, BATCH = 12_800, (784, 400, 10), 128
STEPS = 20  # steps per timed call


class Items(TorchDataset[tuple[Tensor, Tensor]]):
    """A data set whose rows are read by their indices, one or several at a time."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x: Tensor = x
        self.y: Tensor = y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.x[row], self.y[row]


def main(rounds: int = 15, gigabytes: float = 20.0, out: Path | None = None) -> None:
    """Time steps by source, and measure the memory of a large file.

    Args:
        rounds: timings of every variant.
        gigabytes: size of the file.
        out: JSON file for the results.
    """
    begin()
    with tempfile.TemporaryDirectory() as folder:
        ratios = steps(Path(folder), rounds)
        report("a step, as a ratio to tensors in memory", {name: {"ratio": value} for name, value in ratios.items()})
        resident = of_file(Path(folder), gigabytes)
    print(f"a file of {gigabytes:g} GB: {resident:.0f} MiB of resident memory beyond the imports")
    write(out, "loaders", {"ratios": ratios, "gigabytes": gigabytes, "resident_mib": round(resident, 1)})


def steps(folder: Path, rounds: int) -> dict[str, float]:
    """Durations of a step by the source of its minibatches, and of iterating the DataLoader alone, as ratios to tensors."""
    torch.manual_seed(0)
    x, y = torch.randn(ROWS, WIDTHS[0]), torch.randint(WIDTHS[-1], (ROWS,))
    mapped: Any = np.memmap(folder / "x.npy", dtype=np.float32, mode="w+", shape=(ROWS, WIDTHS[0]))
    mapped[:] = x.numpy()
    minibatches = [(x[first : first + BATCH], y[first : first + BATCH]) for first in range(0, ROWS, BATCH)]
    loader = DataLoader(Items(x, y), BATCH, shuffle=True)
    sources: dict[str, tuple[Any, Mapping[str, int]]] = {
        "tensors": ((x, y), {"batch_size": BATCH}),
        "a list of minibatches": (minibatches, {"num_data": ROWS}),
        "a mapped file": ((mapped, y), {"batch_size": BATCH}),
        "a data set, by rows": (Items(x, y), {"batch_size": BATCH}),
        "a DataLoader": (loader, {}),
    }
    variants: dict[str, Callable[[], object]] = {}
    for name, (source, options) in sources.items():
        training = training_on(source, options)
        variants[name] = functools.partial(training.advance, STEPS)
        moves_all(variants[name], training.fit.guide.parameters, name)  # type: ignore[attr-defined]
    epoch: Iterator[Any] = iter(())

    def alone() -> None:
        nonlocal epoch
        for _ in range(STEPS):
            try:
                next(epoch)
            except StopIteration:
                epoch = iter(loader)
                next(epoch)

    variants["the DataLoader alone"] = alone
    medians = interleaved(variants, rounds, clock=clock_of("cpu"))
    return {name: round(value / medians["tensors"], 3) for name, value in medians.items()}


def training_on(source: Any, options: Mapping[str, int]) -> pyrodrop.Training:
    """A training of the network on this source."""
    torch.manual_seed(0)
    model = models.MLP(list(WIDTHS), prior=priors.Gaussian(), likelihood=likelihoods.Categorical())
    guide = guides.BernoulliDropout(model, drop_rate=0.5, mask_input=False)
    return pyrodrop.Training(model, guide, source, engine="compiled", device="cpu", **options)  # type: ignore[arg-type]


def of_file(folder: Path, gigabytes: float) -> float:
    """MiB of resident memory, beyond that of the imports, for training on a sparse file of this size in a new process."""
    path = folder / "large.npy"
    rows = int(gigabytes * 1e9 / (4 * WIDTHS[0]))
    with path.open("wb") as file:
        file.truncate(rows * 4 * WIDTHS[0])
    return elsewhere(memory, path)


def memory(path: Path) -> float:
    """MiB of the largest resident memory while training on a file, beyond that after the imports."""
    torch.set_num_threads(1)
    before = psutil.Process().memory_info().rss
    x: Any = np.memmap(path, dtype=np.float32, mode="r").reshape(-1, WIDTHS[0])
    y = np.broadcast_to(np.zeros(1, dtype=np.int64), len(x))
    training = training_on((x, y), {"batch_size": BATCH})
    largest = before
    for _ in range(100):
        training.advance(STEPS)
        largest = max(largest, psutil.Process().memory_info().rss)
    return (largest - before) / 2**20


if __name__ == "__main__":
    command(main)
