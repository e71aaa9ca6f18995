"""The cost of early stopping: the time of a fit with it, as a ratio to a fit without.

    python -m pyrodrop.analysis.lab.benchmarks.early_stopping [--rounds 9] [FILE]

A network 784-400-10 with dropout, 12,800 rows in minibatches of 128, 1,000 compiled steps; one thread, process time,
interleaved medians. 1,000 held-out rows are scored with 20 draws every 500 steps, or after every epoch of 100 steps; another
variant calls a function that does nothing after every epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.lab.benchmarks.timing import Bench, Timed, command

ROWS, HELD_OUT, WIDTHS, BATCH, STEPS = 12_800, 1_000, (784, 400, 10), 128, 1_000


def fits(steps: int, device: str) -> dict[str, Callable[[], Timed]]:
    """Fits by the function that they call while they train."""
    torch.manual_seed(0)
    x, y = torch.randn(ROWS + HELD_OUT, WIDTHS[0]), torch.randint(WIDTHS[-1], (ROWS + HELD_OUT,))
    model = models.MLP(list(WIDTHS), prior=priors.Gaussian(), likelihood=likelihoods.Categorical())
    guide = guides.BernoulliDropout(model, drop_rate=0.5, mask_input=False)

    def variant(make: Callable[[], Any]) -> Callable[[], object]:
        def run() -> pyrodrop.Fit:
            done = pyrodrop.fit(
                model, guide, (x[:ROWS], y[:ROWS]), steps=steps, batch_size=BATCH, lr=1e-3, engine="compiled",
                device=device, progress=False, after_epoch=make(),
            )  # fmt: skip
            assert len(done.losses) == steps
            assert not torch.equal(done.guide.mean()["layers.0.weight"], guide.mean()["layers.0.weight"])  # type: ignore[attr-defined]
            return done

        return run

    def stopping(every: int | None) -> Callable[[], Any]:
        return lambda: pyrodrop.EarlyStopping((x[ROWS:], y[ROWS:]), patience=steps, every=every)

    return {
        "nothing": lambda: (variant(lambda: None), None),
        "a function that does nothing, every epoch": lambda: (variant(lambda: lambda fit, epoch: None), None),
        "early stopping, every 500 steps": lambda: (variant(stopping(500)), None),
        "early stopping, every epoch of 100": lambda: (variant(stopping(None)), None),
    }


BENCH = Bench("early-stopping", {"784-400-10": STEPS}, fits, warmup=5)

if __name__ == "__main__":
    command(BENCH.run)
