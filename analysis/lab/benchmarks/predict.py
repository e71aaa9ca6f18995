"""Prediction by T passes of dropout, against the plain PyTorch loop: one thread, process time, interleaved medians.

``python -m pyrodrop.analysis.lab.benchmarks.predict [--rounds 11] [--device cuda] [FILE]``: for each network the loop
of T passes of ``nn.Dropout`` in training mode that collects its outputs, and the variants of ``predict``. Each must have
the mean and variance of the loop at 20 points, within Monte Carlo error. On a GPU: wall time.

The loop samples one mask per example. ``predict`` samples functions, with one mask for all examples, which has the same
distribution at every single point.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.lab.benchmarks.timing import Bench, Timed, command

RATE = 0.5
CHECK_POINTS, CHECK_DRAWS, WITHIN = 20, 2000, 5.0  # check of distributions: points, draws, and most standard errors


@dataclass(frozen=True)
class Case:
    """A network with dropout at rate 0.5 after every hidden layer, and the prediction that is timed."""

    widths: tuple[int, ...]
    points: int
    passes: int


CASES = {"784-1000-1000-10": Case((784, 1000, 1000, 10), 1_000, 100), "13-50-1": Case((13, 50, 1), 10_000, 100)}


def variants(case: Case, device: str) -> dict[str, Callable[[], Timed]]:
    """The loop, and the forms of `predict` with its distribution."""
    torch.manual_seed(0)
    fit, loop = twins(case, device)
    x = torch.randn(case.points, case.widths[0], device=device)

    def checked(name: str, form: Callable[[], object]) -> Timed:
        check_distribution(name, fit, loop, x[:CHECK_POINTS], case)
        return form, None

    of_ours = {name: functools.partial(checked, name, form) for name, form in forms(fit, x, case).items()}
    return {"loop": lambda: (functools.partial(passes, loop, x, case.passes), None), **of_ours}


def twins(case: Case, device: str = "cpu") -> tuple[pyrodrop.Fit, nn.Sequential]:
    """The same posterior in pyrodrop and in PyTorch; ``nn.Dropout`` divides by 1 - rate, so its weights are the means."""
    model = models.MLP(case.widths, prior=priors.Gaussian(), likelihood=likelihoods.Gaussian())
    guide = guides.BernoulliDropout(model, RATE, mask_input=False)
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(itertools.pairwise(case.widths)):
        layer = nn.Linear(inputs, outputs)
        with torch.no_grad():
            layer.weight.copy_(guide.posterior(f"layers.{index}.weight").mean)
            assert layer.bias is not None
            layer.bias.copy_(model.free[f"layers.{index}.bias"])
        layers += [layer, nn.ReLU(), nn.Dropout(RATE)]
    fit = pyrodrop.Fit(model.to(device), guide.to(device), None, torch.zeros(1, 3), {}, torch.device(device))
    return fit, nn.Sequential(*layers[:-2]).to(device).train()


def forms(fit: pyrodrop.Fit, x: Tensor, case: Case) -> dict[str, Callable[[], object]]:
    """The timed variants of `predict`."""
    return {"draws": functools.partial(fit.predict, x, case.passes)}


@torch.no_grad()
def passes(loop: nn.Module, x: Tensor, count: int) -> Tensor:
    """The plain loop: outputs ``[count, N, D]``."""
    return torch.stack([loop(x) for _ in range(count)])


def check_distribution(name: str, fit: pyrodrop.Fit, loop: nn.Module, x: Tensor, case: Case) -> float:
    """The largest deviation of a variant's mean or variance from the loop's, in standard errors.

    Raises:
        RuntimeError: it is large.
    """
    draws = passes(loop, x, CHECK_DRAWS)
    squares = (draws - draws.mean(0)) ** 2
    few = Case(case.widths, len(x), CHECK_DRAWS)
    got: Any = forms(fit, x, few)[name]()
    f_mean, f_variance = (got.mean, got.spread**2)
    of_mean = (f_mean - draws.mean(0)) / (2 * draws.var(0) / CHECK_DRAWS).sqrt()  # 2, as both have Monte Carlo error
    of_variance = (f_variance - squares.mean(0)) / (2 * squares.var(0) / CHECK_DRAWS).sqrt()
    worst = float(torch.maximum(of_mean.abs(), of_variance.abs()).max())
    if not worst < WITHIN:
        widths = "-".join(map(str, case.widths))
        raise RuntimeError(
            f"{name} of {widths} differs from the loop's distribution by {worst:.1f} s.e. and is not timed"
        )
    return worst


BENCH = Bench("predict", CASES, variants, rounds=11, warmup=1)

if __name__ == "__main__":
    command(BENCH.run)
