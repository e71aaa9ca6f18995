"""Fits of replicates by ``traced``, ``compiled`` and ``auto`` on a machine that does other work, too.

``python -m pyrodrop.analysis.benchmarks.loaded_machine [--load N] [--steps N] [--rounds N] [--out FILE]``: one thread,
processor time with that of a compiler, beside N processes that compute without end. *first* is a fit on a machine that has
compiled and measured nothing yet, except that ``auto`` finds the program of ``compiled``; *later* the median of more fits.
``auto`` measures this machine beside these processes.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cyclopts
import torch

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.benchmarks.timing import interleaved, machine, moves_all, report, write
from pyrodrop.engines import Name
from pyrodrop.engines.costs import costs

ENGINES: tuple[Name, ...] = ("traced", "compiled", "auto")


def main(load: int | None = None, steps: int = 5000, rounds: int = 2, out: Path | None = None) -> None:
    """Time the fits of eight networks 2-50-50-1 on 300 rows.

    Args:
        load: number of the other processes; twice that of the cores if None.
        steps: of a fit.
        rounds: timings of every later fit; none if 0.
        out: JSON file for the results.
    """
    torch.set_num_threads(1)
    print(machine())
    load = 2 * (os.cpu_count() or 1) if load is None else load
    with tempfile.TemporaryDirectory() as cache, busy(load):
        os.environ["PYRODROP_CACHE"] = cache
        rows, found, average = measured(steps, rounds), costs(), os.getloadavg()[0]
    report(f"processor seconds of a fit of {steps} steps", rows)
    about = {"load": load, "load_average": average, "steps": steps, "rounds": rounds, "costs": found._asdict()}
    write(out, "loaded_machine", {**about, "rows": rows})


@contextmanager
def busy(load: int) -> Iterator[None]:
    """So many processes that compute without end within the block."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def measured(steps: int, rounds: int) -> dict[str, dict[str, float]]:
    """Processor seconds of fits by every engine, and whether ``auto`` compiled."""
    torch.manual_seed(0)
    x = torch.randn(300, 2)
    y = x[:, :1] + 0.1 * torch.randn(300, 1)
    model = models.MLP(
        [2, 50, 50, 2], prior=priors.Gaussian(), likelihood=likelihoods.HeteroscedasticGaussian("softplus")
    )
    guide = guides.MeanField(model)
    fits = [pyrodrop.fit(model, guide, (x, y), steps=1, engine="pyro")]

    def by(engine: Name) -> None:
        fits[:] = pyrodrop.fit_replicates(
            model, guide, (x, y), count=8, steps=steps, batch_size=128, engine=engine, device="cpu", progress=False
        )

    calls = {str(engine): functools.partial(by, engine) for engine in ENGINES}
    rows: dict[str, dict[str, float]] = {name: {} for name in calls}

    def first() -> None:
        for engine, seconds in interleaved(calls, 1, 0, _clock).items():
            rows[engine]["first"] = seconds

    moves_all(first, lambda: fits[0].guide.parameters(), "a fit")  # type: ignore[attr-defined]
    rows["auto"]["compiled"] = float(fits[0].settings["engine"] == "compiled")
    for engine, seconds in (interleaved(calls, rounds, 0, _clock) if rounds else {}).items():
        rows[engine]["later"] = seconds
    return rows


def _clock() -> float:
    """Processor time of this process and of what it has started, such as a compiler."""
    return sum(os.times()[:4])


if __name__ == "__main__":
    cyclopts.run(main)
