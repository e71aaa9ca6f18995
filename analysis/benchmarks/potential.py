"""Cost of the gradient of a potential energy: `pyrodrop.potential` against Pyro's handlers and Pyro's jitted potential.

``python -m pyrodrop.analysis.benchmarks.potential [--rounds N] [--calls N] [--out FILE]``: a 2-50-1 network with priors on
weights and biases and 100 points, in float64; one thread, process time, interleaved medians. All variants must first give
the same energy and gradient.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jsonargparse
import torch
from pyro.infer.mcmc.util import initialize_model
from pyro.ops.integrator import potential_grad
from torch import Tensor

import pyrodrop
from pyrodrop.analysis.benchmarks.timing import interleaved, machine, report, write
from pyrodrop.engines import NAMES, Name

Values = dict[str, Tensor]
Variant = Callable[[Values], tuple[Values, Tensor]]  # from values to gradient and energy

ENGINES: tuple[Name, ...] = tuple(name for name in NAMES if name != "auto")
THEIRS = {"Pyro": False, "Pyro, jitted": True}


def main(rounds: int = 31, calls: int = 50, out: Path | None = None) -> None:
    """Time every variant.

    Args:
        rounds: timings of every variant.
        calls: gradients in one timing.
        out: JSON file for the results.
    """
    torch.set_num_threads(1)
    print(machine())
    timed(*variants(), rounds, calls, out)


def timed(variants: dict[str, Variant], start: Values, rounds: int, calls: int, out: Path | None) -> None:
    """Check and time these variants, print the table and write the results."""
    check(variants, start)
    repeated = {name: partial(_repeat, variant, start, calls) for name, variant in variants.items()}
    seconds = interleaved(repeated, rounds, 3, time.process_time)
    microseconds = {name: 1e6 * value / calls for name, value in seconds.items()}
    ratios = {name: seconds["Pyro"] / value for name, value in seconds.items()}
    table = {name: {"us": microseconds[name], "times as fast as Pyro": ratios[name]} for name in variants}
    report("one gradient, 2-50-1, 100 points, float64", table, ".1f")
    write(out, "potential", {"rounds": rounds, "calls": calls, "microseconds": microseconds, "times as fast": ratios})


def variants(width: int = 50, engines: Sequence[Name] = ENGINES) -> tuple[dict[str, Variant], Values]:
    """The variants by name, and values to call them at."""
    torch.manual_seed(0)
    x = torch.randn(100, 2, dtype=torch.float64)
    given = (x, torch.sin(x[:, :1]))
    model = pyrodrop.models.MLP(
        [2, width, 1],
        prior=pyrodrop.priors.Gaussian(),
        bias_prior=pyrodrop.priors.Gaussian(),
        likelihood=pyrodrop.likelihoods.Gaussian(100.0),
    ).double()
    potentials = {engine: pyrodrop.potential(model, given, engine=engine) for engine in engines}
    for engine, p in potentials.items():
        if p.engine != engine:
            raise SystemExit(f"engine {engine!r} is not possible here: not a variant to time")
    start = next(iter(potentials.values())).initial_params(0)
    variants: dict[str, Variant] = {}
    for name, jit in THEIRS.items():
        made: Any = initialize_model(model.eval(), given, initial_params=start, jit_compile=jit, skip_jit_warnings=True)
        variants[name] = partial(potential_grad, made[1])
    for engine, p in potentials.items():
        variants[f"ours, {engine}"] = partial(potential_grad, p)
    for engine, p in potentials.items():
        variants[f"ours, {engine}, without autograd"] = partial(_without_autograd, p)
    return variants, start


def check(variants: dict[str, Variant], start: Values) -> None:
    """Raise a SystemExit unless all variants have the same energy and gradient."""
    wanted, want = variants["Pyro"](start)
    for name, variant in variants.items():
        gradient, energy = variant(start)
        pairs = [(energy, want), *((gradient[site], wanted[site]) for site in start)]
        if not all(torch.allclose(a, b, rtol=1e-8, atol=1e-8 * float(b.abs().max())) for a, b in pairs):
            raise SystemExit(f"{name} differs from Pyro in energy or gradient: not a variant to time")


def _without_autograd(p: pyrodrop.Potential, values: Values) -> tuple[Values, Tensor]:
    energy, gradient = p.value_and_gradient(values)
    return gradient, energy


def _repeat(variant: Variant, start: Values, calls: int) -> None:
    for _ in range(calls):
        variant(start)


if __name__ == "__main__":
    jsonargparse.auto_cli(main)
