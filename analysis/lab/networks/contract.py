"""The contract that every network must satisfy.

A cell is one network, one posterior and one check. Its result is

    right       agrees with the oracle within 4.5 standard errors, or up to rounding if there is no noise
    fallback    right, but with Pyro's engine instead of the requested one, as stated in the log
    other       another distribution of the activations, as documented: local weight noise on several rows of an example
    refused     a ValueError or TypeError of this package that is listed in the network's file
    wrong       anything else

Checks, by the cell's `what`:

    joint, moments    predictions: mean, variance and covariance between points
    module        functions of `Fit.module` and `Fit.ensemble`: the network at the weights that they hold
    compress      networks of `Fit.compress`: the network at the weights that are kept
    elbo          expectation of -ln p(y | f), and the KL divergence, in evaluation mode
    save          a loaded fit predicts bitwise the same
    checkpoint    an interrupted fit gives bitwise the same result
    plain         a point estimate is the same as from a plain PyTorch loop, including running statistics
    loss          -ln p(y | f), the KL divergence and the gradient of every parameter, averaged over the estimator's noise
    steps         losses, and parameters and buffers after some steps, are those of Pyro's engine
    replicates    two replicates equal two separate fits
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

import pyrodrop
from pyrodrop import guides, models
from pyrodrop.analysis.lab.networks.agreement import Result
from pyrodrop.analysis.lab.networks.case import Case, Cell
from pyrodrop.analysis.lab.networks.checks import Checks
from pyrodrop.analysis.lab.networks.plan import THIN, Draws


class Bench:
    """Runs the cells of one network; cells of the same posterior share fits.

    Args:
        case: the kind of network.
        draws: numbers of samples, before multiplication by the case's `draws`.
        seed: seed of all samples.
    """

    def __init__(self, case: Case, draws: Draws = THIN, seed: int = 0) -> None:
        self.case: Case = case
        self.draws: Draws = draws.times(case.draws)
        self.seed: int = seed
        self._posteriors: dict[str, Checks] = {}

    def check(self, cell: Cell) -> Result:
        """The result of a cell; a statistical disagreement counts only if it recurs with another seed."""
        result = self._once(cell, self.seed)
        if result.kind == "wrong" and "standard errors" in result.note:
            again = Bench(self.case, self.draws.times(1 / self.case.draws), self.seed + 1)._once(cell, self.seed + 1)
            result = result if again.kind == "wrong" else again
        return result

    def _once(self, cell: Cell, seed: int) -> Result:
        listed = [r.reason for r in self.case.refused if r.means(cell)]
        with torch.random.fork_rng():
            torch.manual_seed(1000 + seed)
            try:
                if cell.guide not in self._posteriors:
                    self._posteriors[cell.guide] = Checks(self.case, cell.guide, self.draws, seed)
                result = getattr(self._posteriors[cell.guide], cell.what)(cell)
            except Exception as error:  # of any type, as a user would see it
                return _judged(error, listed)
        if listed and result.kind != "wrong":
            return Result("wrong", f"should be refused with {listed[0]!r}, and is {result.kind}")
        return result


def _judged(error: Exception, stated: Sequence[str]) -> Result:
    """Whether an error is an expected refusal; anything else is a defect."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
    if not isinstance(error, ValueError | TypeError) or not _is_ours(error):
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return Result("wrong", f"{text} [{Path(frame.filename).name}:{frame.lineno}]")
    if not stated:
        return Result("wrong", f"refused, which its file does not list: {text}")
    if not any(reason in str(error) for reason in stated):
        return Result("wrong", f"refused for another reason than {' or '.join(map(repr, stated))}: {text}")
    return Result("refused", str(error).strip().splitlines()[0])


def _is_ours(error: Exception) -> bool:
    """Whether the error was raised in this package, not in a library that it calls."""
    file = Path(traceback.extract_tb(error.__traceback__)[-1].filename).resolve()
    roots = [Path(str(package.__file__)).resolve().parent for package in (pyrodrop, models, guides)]
    return any(file.is_relative_to(root) for root in roots)
