"""Cost by width: a compiled step of 784-w-w-10 relative to plain PyTorch, and a whole `fit` relative to its steps.

``python -m pyrodrop.analysis.benchmarks.width [--rounds N] [--steps K] [--out FILE]``: one thread, process time, medians.
A whole `fit` consists of set-up, first step, tracing, compilation with a warm cache, and the training loop; it is timed
once, after a run that filled the cache.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import jsonargparse
import torch
from torch import nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.benchmarks.networks import BATCH, RATE, Network, dense, networks, ours, plain, prepared
from pyrodrop.analysis.benchmarks.timing import interleaved, machine, moves_all, report, write

WIDTHS = (250, 500, 1000, 2000)


def main(rounds: int = 9, steps: int = 2000, out: Path | None = None) -> None:
    """Time the widths, and a whole fit.

    Args:
        rounds: timings of every variant.
        steps: number of steps of the whole fit; 0 skips it.
        out: JSON file for the results.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(machine())
    ratios: dict[str, dict[str, float]] = {}
    for width in WIDTHS:
        network = _mlp(width)
        variants = {"plain": plain(network)}
        variants |= {posterior: ours(network, posterior, "compiled") for posterior in ("Bernoulli", "variational B")}
        for name, (call, parameters) in variants.items():
            moves_all(call, parameters, f"width {width}, {name}")
        seconds = interleaved({name: call for name, (call, _) in variants.items()}, rounds, 2, time.process_time)
        for name in ("Bernoulli", "variational B"):
            ratios.setdefault(name, {})[str(width)] = seconds[name] / seconds["plain"]
    report("one compiled step by width, ratio to plain PyTorch", ratios)
    whole = whole_fit(steps) if steps else {}
    write(out, "width", {"rounds": rounds, "ratios": ratios, "whole fit": whole})


def whole_fit(steps: int) -> dict[str, float]:
    """A whole `fit` of the MLP relative to its steps alone."""
    network = networks()["MLP"]
    training = prepared(network, "Bernoulli", "compiled")
    start = time.process_time()
    training.advance(training.done + steps)
    bare = time.process_time() - start
    model = models.from_module(network.build(nn.Identity), priors.Gaussian(), network.likelihood)
    start = time.process_time()
    pyrodrop.fit(
        model, guides.BernoulliDropout(model, RATE), (network.x, network.y), steps=steps, batch_size=BATCH,
        engine="compiled", estimator="local",
    )  # fmt: skip
    whole = time.process_time() - start
    row = {"bare, s": bare, "fit, s": whole, "ratio": whole / bare}
    report(f"fit as a whole, {steps} steps of the MLP", {"Bernoulli, compiled": row})
    return row


def _mlp(width: int) -> Network:
    full = networks()["MLP"]
    return Network(
        f"784-{width}-{width}-10", lambda d: dense(d, 784, width, width, 10), full.x, full.y, full.loss,
        likelihoods.Categorical(), max(2, 5000 // width),
    )  # fmt: skip


if __name__ == "__main__":
    jsonargparse.auto_cli(main)
