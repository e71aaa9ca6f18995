"""The contract that every network is held to.

A cell is one network, one posterior and one thing to check. It is

    right       what we give agrees with the oracle, within 4.5 standard errors, or to rounding where there is no noise
    fallback    right, by Pyro's engine in place of the one that was asked for, and the log says so
    other       another posterior over activations, as documented: local weight noise on several rows of an example
    refused     a ValueError or TypeError of this package that the network's file, or the list below, says
    wrong       anything else

Checks, by the name of a cell's `what`:

    joint, pointwise, moments, analytic    predictions: mean, variance and covariance between points
    elbo          -ln p(y | f) in the mean, and the divergence, in evaluation mode
    save          a loaded fit predicts the same bits
    checkpoint    a fit that was interrupted gives the same bits
    plain         a point is trained as a loop of torch trains it, running statistics and all
    loss          -ln p(y | f), the divergence and the gradient of every parameter, in the mean over an estimator's noise
    steps         an engine's parameters and buffers after some steps are Pyro's
    replicates    two replicates are two fits alone
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

import pyrodrop
from pyrodrop import guides, models
from pyrodrop.analysis.networks.case import Case, Cell, Refused
from pyrodrop.analysis.networks.checks import Checks
from pyrodrop.analysis.networks.plan import THIN, Draws
from pyrodrop.analysis.networks.result import Result
from pyrodrop.likelihoods import Categorical

# What may be refused whatever the network, by posterior. A weight that is used twice is drawn whole, which all can have.
GENERAL = (Refused("flipout needs deviations", guide="Bernoulli LowRank", estimator="flipout"),)


class Bench:
    """One network, with what its cells share.

    Args:
        case: the kind of network.
        draws: how many to take.
        seed: of all draws.
    """

    def __init__(self, case: Case, draws: Draws = THIN, seed: int = 0) -> None:
        self.case, self.draws, self.seed = case, draws.times(case.draws), seed
        self._posteriors: dict[str, Checks] = {}

    def check(self, cell: Cell) -> Result:
        """What becomes of a cell; a disagreement in standard errors must show twice, by other draws."""
        result = self._once(cell, self.seed)
        if result.kind == "wrong" and "standard errors" in result.note:
            again = Bench(self.case, self.draws.times(1 / self.case.draws), self.seed + 1)._once(cell, self.seed + 1)
            result = result if again.kind == "wrong" else again
        return result

    def _once(self, cell: Cell, seed: int) -> Result:
        own = [r.reason for r in self.case.refused if r.means(cell)]
        stated = [*own, *(r.reason for r in GENERAL if r.means(cell))]
        if cell.what == "analytic" and not has_closed_form(self.case, cell):
            stated.append("method='analytic'")
        with torch.random.fork_rng():
            torch.manual_seed(1000 + seed)
            try:
                if cell.guide not in self._posteriors:
                    self._posteriors[cell.guide] = Checks(self.case, cell.guide, self.draws, seed)
                result = getattr(self._posteriors[cell.guide], cell.what)(cell)
            except Exception as error:  # whatever a user would see
                return _judged(error, stated)
        if own and result.kind != "wrong":
            return Result("wrong", f"should be refused with {own[0]!r}, and is {result.kind}")
        return result


def has_closed_form(case: Case, cell: Cell) -> bool:
    """Whether moments are known without draws: dropout of a fully connected last layer alone, Gaussian y."""
    return cell.guide == "Bernoulli" and case.last is not None and not isinstance(case.likelihood(), Categorical)


def _judged(error: Exception, stated: Sequence[str]) -> Result:
    """A refusal that was stated, or a defect."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
    if not isinstance(error, ValueError | TypeError) or not _is_ours(error):
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return Result("wrong", f"{text} [{Path(frame.filename).name}:{frame.lineno}]")
    if not stated:
        return Result("wrong", f"refused, which its file does not say: {text}")
    if not any(reason in str(error) for reason in stated):
        return Result("wrong", f"refused for another reason than {' or '.join(map(repr, stated))}: {text}")
    return Result("refused", str(error).strip().splitlines()[0])


def _is_ours(error: Exception) -> bool:
    """Whether the error was raised in this package, and not by what it calls."""
    file = Path(traceback.extract_tb(error.__traceback__)[-1].filename).resolve()
    roots = [Path(str(package.__file__)).resolve().parent for package in (pyrodrop, models, guides)]
    return any(file.is_relative_to(root) for root in roots)
