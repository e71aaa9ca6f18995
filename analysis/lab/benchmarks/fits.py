"""Whole fits relative to a loop of plain PyTorch: `nn.Dropout` and fused Adam, for as many steps on the same rows.

``python -m pyrodrop.analysis.lab.benchmarks.fits [--rounds N] [FILE]``: one thread, processor time of the process and
of its child processes, such as a C++ compiler. Every timing is of the first fit in a process that has imported all modules
and has trained another network for three steps. *first* is a fit on a machine that has compiled nothing yet; for *later* an
earlier process has compiled. Both must change each parameter.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.lab.benchmarks.timing import Bench, command, elsewhere, moves_all, processor_seconds
from pyrodrop.analysis.lab.peers.networks import dense, parameters_of

RATE = 0.1
Who = Literal["plain", "ours"]


@dataclass(frozen=True)
class Case:
    """A network, its data and the number of steps.

    Attributes:
        widths: widths of the network's layers.
        rows: number of rows of the data.
        batch_size: rows per minibatch, all if None; the last minibatch of an epoch may be smaller.
        steps: number of steps.
    """

    widths: tuple[int, ...]
    rows: int
    batch_size: int | None
    steps: int

    @property
    def name(self) -> str:
        rows = "all rows" if self.batch_size is None else f"minibatches of {self.batch_size}"
        return f"{'-'.join(map(str, self.widths))}, {rows} of {self.rows}, {self.steps:,} steps"

    def data(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(self.rows, self.widths[0], generator=generator)
        return x, x.sum(1, keepdim=True).sin()


CASES = [
    Case((1, 8, 1), 200, None, 200),
    Case((1, 8, 1), 200, None, 2_000),
    Case((1, 8, 1), 200, None, 20_000),
    Case((13, 50, 1), 506, 128, 30_000),
]


def plain(case: Case) -> tuple[Callable[[], object], list[Tensor]]:
    """A usual training loop without pyrodrop, and its parameters."""
    x, y = case.data()
    net = dense(lambda: nn.Dropout(RATE), *case.widths)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    size = case.batch_size or case.rows

    def run() -> None:
        done = 0
        while done < case.steps:
            for rows in torch.randperm(case.rows).split(size)[: case.steps - done]:
                inputs, targets = (x, y) if size == case.rows else (x[rows], y[rows])
                optimizer.zero_grad()
                nn.functional.mse_loss(net(inputs), targets).backward()
                optimizer.step()
                done += 1

    return run, list(net.parameters())


def ours(case: Case) -> tuple[Callable[[], object], Callable[[], list[Tensor]]]:
    """`pyrodrop.fit` with its defaults and a mask per row, and a function that returns its parameters."""
    model = models.MLP(list(case.widths), prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(10.0))
    guide = guides.BernoulliDropout(model, RATE, mask_input=True)
    fits: list[pyrodrop.Fit] = []

    def run() -> None:
        settings: Any = {"steps": case.steps, "batch_size": case.batch_size, "lr": 1e-3, "estimator": "local"}
        fits.append(pyrodrop.fit(model, guide, case.data(), device="cpu", progress=False, **settings))

    return run, lambda: parameters_of(fits[-1]) if fits else [*model.parameters(), *guide.parameters()]


def once(case: Case, who: Who) -> float:
    """Seconds of processor time of one fit, in this process."""
    torch.set_num_threads(1)
    make: Callable[[Case], Any] = {"plain": plain, "ours": ours}[who]
    make(Case((2, 3, 1), 10, None, 3))[0]()
    run, parameters = make(case)
    seconds: list[float] = []

    moves_all(lambda: seconds.append(processor_seconds(run)), parameters, f"{case.name}, {who}")
    return seconds[0]


def fits(case: Case, rounds: int, _: str) -> dict[str, dict[str, float]]:
    """Seconds of fits in separate processes, in turn, as medians."""
    seconds: dict[str, list[float]] = {"plain PyTorch": [], "first": [], "later": []}
    for _round in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            for name, times in seconds.items():
                times.append(
                    elsewhere(once, case, "ours" if name in ("first", "later") else "plain", PYRODROP_CACHE=cache)
                )
    return {name: {"seconds": statistics.median(times)} for name, times in seconds.items()}


BENCH = Bench("fits", {case.name: case for case in CASES}, measure=fits, rounds=3)

if __name__ == "__main__":
    command(BENCH.run)
