"""Fits side by side.

    by="log_density"   held-out ln p(y_n | x_n), mean over observations      for all posteriors and processes
    by="loo"           its leave-one-out estimate from the training data     if k-hat is small enough
    by="elbo"          the evidence lower bound                              if the same constants are left out

An ELBO leaves out a constant if q has atoms or the prior is improper. Two ELBOs can be compared only if they leave out the
same constant: for equally many weights, and the ones under an improper prior only with each other. Held-out log density has
no such condition and is the default. An ELBO here contains the whole KL divergence, whatever ``kl_scale`` was in training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rich.console import Console
from rich.table import Table
from torch import Tensor

from pyrodrop.analysis.comparison.elbo_constants import training_data, why_not_comparable
from pyrodrop.analysis.comparison.held_out import log_density
from pyrodrop.analysis.reports.score_table import best_first, score_table
from pyrodrop.data import Data, Dataset
from pyrodrop.names import one_of
from pyrodrop.prediction.prediction import Predicts
from pyrodrop.training.fitted import Fit

By = Literal["log_density", "loo", "elbo"]
_ELBO_DRAWS = 100
_FORMS = {"weight": ".2f", "k_hat": ".2f", "p": ".1f"}
_HEADERS = {
    "log_density": "log density",
    "log_density_se": "s.e.",
    "elbo": "ELBO (nats)",
    "elbo_se": "s.e.",
    "elpd": "LOO (nats)",
    "elpd_se": "s.e.",
    "difference": "to the best",
    "difference_se": "s.e.",
    "k_hat": "k-hat",
    "p": "parameters",
}


@dataclass(frozen=True)
class Comparison:
    """A table of fits, the best first.

    Attributes:
        by: the column that the rows are sorted by.
        rows: for each fit by name, its numbers by column; None for a number that does not exist.
        notes: what is missing in the table, and why.
    """

    by: str
    rows: dict[str, dict[str, float | None]]
    notes: list[str] = field(default_factory=list)

    @property
    def best(self) -> str:
        """The name of the first row."""
        return next(iter(self.rows))

    def to_dict(self) -> dict[str, dict[str, float | None]]:
        """A copy of the rows."""
        return {name: dict(row) for name, row in self.rows.items()}

    def __rich__(self) -> Table:
        title, caption = f"by {_HEADERS.get(self.by, self.by)}", "\n".join(self.notes)
        return score_table(self.rows, title=title, caption=caption, headers=_HEADERS, forms=_FORMS)

    def __str__(self) -> str:
        screen = Console(width=120, force_terminal=False, force_jupyter=False)  # the same text in a notebook
        with screen.capture() as shown:
            screen.print(self)
        return shown.get()


def compare(
    fits: Mapping[str, Predicts],
    data: Data | None = None,
    by: By = "log_density",
    *,
    train: Data | None = None,
    num_samples: int = 1000,
    force: bool = False,
    seed: int = 0,
) -> Comparison:
    """Compare fits with each other.

    Args:
        fits: fits, replicates (used as ensembles) or Gaussian processes, by name.
        data: held-out observations, the same for all fits. Required for ``by="log_density"``; otherwise optional, for a
            further column.
        by: what to sort by: ``log_density`` (nats per observation), ``loo`` or ``elbo`` (nats for the whole data set).
        train: the training data of loaded fits, for their ELBOs; checked by their fingerprint.
        num_samples: draws from each posterior.
        force: for ``by="loo"``, also show estimates that are unreliable according to k-hat.
        seed: of the draws.

    Returns:
        A `Comparison`. Standard errors are over observations, assumed independent, and those of differences are over paired
        differences; the standard error of an ELBO is over draws.

    Raises:
        ValueError: no fits or no data; for ``by="elbo"``, if nothing has an ELBO, fits were trained on different data, or
            ELBOs leave out different constants, with the names of fits and sites.
    """
    one_of(by, By, "by")
    if not fits:
        raise ValueError("fits must contain at least one fit by name; got none")
    if by == "log_density" and data is None:
        raise ValueError("by='log_density' needs held-out data: compare(fits, data=...); got data=None")
    rows: dict[str, dict[str, float | None]] = {name: {} for name in fits}
    notes: list[str] = []
    if data is not None:
        _add_log_density(rows, fits, Dataset.of(data), num_samples, seed, by == "log_density")
        notes.append("log density: held out, mean per observation")
    if by == "loo":
        notes += _add_loo(rows, fits, num_samples, force, seed)
    known_train = None if train is None else Dataset.of(train)
    reason = why_not_comparable(fits, known_train)
    if by == "elbo" and reason:
        raise ValueError(f"{reason}. Use held-out log density: compare(fits, data=...)")
    if reason:
        notes.append(f"no ELBOs: {reason}")
    else:
        _add_elbo(rows, fits, known_train, by == "elbo")
    return Comparison(by, best_first(rows, "elpd" if by == "loo" else by), notes)


def _add_log_density(
    rows: dict[str, dict[str, float | None]],
    fits: Mapping[str, Predicts],
    data: Dataset,
    num_samples: int,
    seed: int,
    differences: bool,
) -> None:
    values = {name: log_density(fit, data, num_samples, seed=seed) for name, fit in fits.items()}
    best = values[max(values, key=lambda name: float(values[name].mean()))]
    for name, value in values.items():
        rows[name] |= {"log_density": float(value.mean()), "log_density_se": _se(value)}
        if differences:
            rows[name] |= {"difference": float((value - best).mean()), "difference_se": _se(value - best)}


def _add_loo(
    rows: dict[str, dict[str, float | None]], fits: Mapping[str, Predicts], num_samples: int, force: bool, seed: int
) -> list[str]:
    """Add ArviZ's comparison of the fits that have a LOO estimate; return why the others have none."""
    from pyrodrop.analysis.comparison.az import az
    from pyrodrop.analysis.comparison.loo import UnreliableLoo, loo

    found, notes = {}, []
    for name, fit in fits.items():
        empty = dict.fromkeys(("elpd", "elpd_se", "difference", "difference_se", "p", "k_hat", "weight"))
        rows[name] |= empty
        if not isinstance(fit, Fit):
            notes.append(f"no LOO of {name}: a {type(fit).__name__} has no density of weights to correct draws by")
            continue
        try:
            result = loo(fit, num_samples=num_samples, force=force, seed=seed)
        except UnreliableLoo as error:
            notes.append(f"no LOO of {name}: {error}")
            continue
        if result.reason:
            notes.append(f"no LOO of {name}: {result.reason}")
            continue
        found[name] = result
        rows[name] |= {"elpd": result.elpd, "elpd_se": result.se, "p": result.p, "k_hat": result.k_hat}
    if len(found) == 1:
        rows[next(iter(found))] |= {"difference": 0.0, "difference_se": 0.0, "weight": 1.0}
    elif found:
        table = az.compare({name: result.elpd_data for name, result in found.items()})
        best = max(found, key=lambda name: found[name].elpd)
        for name in found:
            difference = found[name].pointwise[0] - found[best].pointwise[0]
            total = float(difference.sum())
            rows[name] |= {"difference": total, "difference_se": _se(difference) * len(difference)}
            rows[name]["weight"] = float(table.loc[name, "weight"])
    return notes


def _add_elbo(
    rows: dict[str, dict[str, float | None]], fits: Mapping[str, Predicts], train: Dataset | None, differences: bool
) -> None:
    elbos = {
        name: fit.elbo(_ELBO_DRAWS, training_data(fit, fits, train))
        for name, fit in fits.items()
        if isinstance(fit, Fit)
    }
    best = max(elbos.values(), key=lambda elbo: elbo.value) if elbos else None
    for name in rows:
        elbo = elbos.get(name)
        rows[name] |= {"elbo": None if elbo is None else elbo.value, "elbo_se": None if elbo is None else elbo.se}
        if differences and elbo is not None and best is not None:
            se = 0.0 if elbo is best else math.hypot(elbo.se, best.se)
            rows[name] |= {"difference": elbo.value - best.value, "difference_se": se}


def _se(values: Tensor) -> float:
    """Standard error of a mean."""
    return float(values.std() / math.sqrt(len(values))) if len(values) > 1 else math.nan
