"""Compare fits in one table.

    by="log_density"   held-out ln p(y_n | x_n), mean over observations      for all posteriors and processes
    by="loo"           its leave-one-out estimate from the training data     if k-hat is small enough
    by="elbo"          the evidence lower bound                              if the same constants are left out
    by="total_variation", "wasserstein", "covariance", "correlation", "agreement"
                       distance from the predictions of a reference          see `to_reference`

An ELBO leaves out a constant if q has atoms or the prior is improper. Two ELBOs can be compared only if they leave out the
same constant: for the same number of weights, and under improper priors only with each other. Held-out log density has
no such condition and is the default. An ELBO here contains the whole KL divergence, for any ``kl_scale`` of the training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from tqdm import tqdm

from pyrodrop.analysis.comparison.elbo_constants import different_priors, training_data, why_not_comparable
from pyrodrop.analysis.comparison.held_out import log_density, log_density_of
from pyrodrop.analysis.comparison.predicts import Predicts, prediction_of
from pyrodrop.analysis.comparison.to_reference import (
    COLUMNS,
    DISTANCES,
    Distances,
    distances,
    independent_of_fits,
    log_density_difference,
    two_of,
)
from pyrodrop.analysis.reports.score_table import best_first, score_table
from pyrodrop.analysis.reports.terminal import text_of
from pyrodrop.checks import Count, Flag, Progress, Seed, checked, shown
from pyrodrop.data import Data, Dataset
from pyrodrop.divergences.table import EMPIRICAL_BAYES
from pyrodrop.sampling import Sampled
from pyrodrop.threads import exclusive, outside
from pyrodrop.training.replicates import Replicates
from pyrodrop.training.result import Fit

By = Literal["log_density", "loo", "elbo", "total_variation", "agreement", "wasserstein", "covariance", "correlation"]
Bar: TypeAlias = Any  # a progress bar of tqdm
_ELBO_DRAWS = 100
_FEW = 100  # observations, below which the normal approximation of a mean is rough
_ROUNDS, _SCORE_ERROR = 5_000, 1e-4  # most iterations, and tolerance of the log score in nats, for stacking weights
_REFERENCE = "reference"  # the name of the reference's row
_FORMS = {
    "weight": ".2f",
    "k_hat": ".2f",
    "p": ".1f",
    "to_reference": ".3g",
    "to_reference_se": ".2g",
    "sign_probability": ".2f",
    "total_variation": ".3f",
    "agreement": ".3f",
    "wasserstein": ".3g",
    **dict.fromkeys(("spread", "at", "between", "away"), ".2f"),
    "covariance": ".2f",
    "correlation": ".3f",
}
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
    "to_reference": "to ref.",
    "to_reference_se": "s.e.",
    "sign_probability": "P(sign)",
    "total_variation": "TV",
    "agreement": "agree",
    "wasserstein": "W2 of f",
    "covariance": "cov.",
    "correlation": "corr.",
}
_MEANINGS = {
    "to_reference": "to ref.: log density minus the reference's, mean per observation, with its paired s.e.",
    "sign_probability": "P(sign): probability that this difference has the right sign, under its normal approximation",
    "total_variation": "TV: total variation distance of the distributions of y, mean over points, 0 to 1",
    "agreement": "agree: share of points with the same most probable class",
    "wasserstein": "W2 of f: Wasserstein-2 distance of f, in the units of y (classes: of logits), mean over points",
    "spread": "spread: standard deviation of f over the reference's, median over points; below 1, f is surer than it",
    "covariance": "cov.: relative Frobenius distance of the covariance of f between points; 1 if f does not vary",
    "correlation": "corr.: root mean square difference of the correlations of f at two points",
}


@dataclass(frozen=True, repr=False)
class Comparison:
    """A table of fits, the best first.

    Attributes:
        by: the column that the rows are sorted by.
        rows: for each fit by name, its numbers by column; None for a number that does not exist.
        notes: explanations of columns, and reasons for missing values.
        reference: the row of the reference, if there is one: its log density, and the distances between two independent sets
            of its samples, which result from Monte Carlo error alone.
    """

    by: str
    rows: dict[str, dict[str, float | None]]
    notes: list[str] = field(default_factory=list)
    reference: dict[str, float | None] | None = None

    @property
    def best(self) -> str:
        """The name of the first row."""
        return next(iter(self.rows))

    def to_dict(self) -> dict[str, dict[str, float | None]]:
        """A copy of the rows, that of the reference last."""
        return {name: dict(row) for name, row in (self.rows | self._apart).items()}

    @property
    def _apart(self) -> dict[str, dict[str, float | None]]:
        return {} if self.reference is None else {_REFERENCE: self.reference}

    def __rich__(self) -> Table:
        title, caption = f"by {_HEADERS.get(self.by, self.by)}", "\n".join(self.notes)
        rows, apart = (_without_empty(group, [*self.rows.values()]) for group in (self.rows, self._apart))
        return score_table(rows, title=title, caption=caption, headers=_HEADERS, forms=_FORMS, apart=apart)

    def __repr__(self) -> str:
        screen = Console(width=120, force_terminal=False, force_jupyter=False)  # the same text in a notebook
        return text_of(self.__rich__(), screen)


@checked
@exclusive()
@outside("compare")
def compare(
    fits: Mapping[str, Predicts],
    data: Data | None = None,
    by: By = "log_density",
    *,
    reference: Predicts | None = None,
    train: Data | None = None,
    num_samples: Annotated[int, Count("the number of draws")] = 1000,
    force: Annotated[bool, Flag("whether to show estimates that are unreliable too")] = False,
    seed: Seed = 0,
    progress: Progress = None,
) -> Comparison:
    """Compare fits with each other, or with a reference such as samples of the exact posterior.

    Args:
        fits: fits, replicates (used as ensembles) or Gaussian processes, by name.
        data: held-out observations, the same for all fits. Required for ``by="log_density"``; otherwise optional, for a
            further column.
        by: what to sort by: ``log_density`` (nats per observation), ``loo`` or ``elbo`` (nats for the whole data set), or,
            with a reference, ``total_variation``, ``agreement``, ``wasserstein``, ``covariance`` or ``correlation``.
        reference: another object with a method ``predict``, with whose predictions at the points of `data` every fit's
            predictions are compared. Rows then have the distances of `pyrodrop.analysis.comparison.to_reference` and the
            difference of log densities, and the last row is the reference.
        train: the training data of loaded fits, for their ELBOs; checked by their fingerprint.
        num_samples: draws from each posterior, and from the reference. Every draw passes all observations through the
            network; for image networks, 100 draws suffice to detect differences above their standard errors.
        force: for ``by="loo"``, also show estimates that are unreliable according to k-hat.
        seed: seed of the draws.
        progress: whether to show a progress bar; if None, only on a terminal.

    Returns:
        A `Comparison`. Standard errors are over observations, assumed independent; those of differences are over paired
        differences, and those of ELBOs over draws.

    Raises:
        ValueError: there are no fits or no data; for ``by="elbo"``, nothing has an ELBO, fits were trained on different
            data, or ELBOs leave out different constants (the message names fits and sites); a reference has no data, or
            predicts another kind of y than a fit; `by` is a distance that no fit has.
        TypeError: a fit or reference has no method ``predict``, or an argument is of the wrong kind.

    Example:
        >>> import torch, pyrodrop
        >>> _ = torch.manual_seed(0)
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> model = pyrodrop.models.MLP(
        ...     [1, 8, 1], prior=pyrodrop.priors.Gaussian(), likelihood=pyrodrop.likelihoods.Gaussian(precision=10.0)
        ... )
        >>> guides = {"mean field": pyrodrop.guides.MeanField(model), "point": pyrodrop.guides.Point(model)}
        >>> fits = {name: pyrodrop.fit(model, guide, (x, x**2), steps=5) for name, guide in guides.items()}
        >>> comparison = pyrodrop.compare(fits, (x, x**2), num_samples=20)
        >>> sorted(comparison.rows)
        ['mean field', 'point']
        >>> sorted(comparison.rows["point"])
        ['difference', 'difference_se', 'log_density', 'log_density_se']
    """
    check_fits(fits)
    if by == "log_density" and data is None:
        raise ValueError("by='log_density' needs held-out data: compare(fits, data=...); got data=None")
    if by in DISTANCES and reference is None:
        raise ValueError(f"by={by!r} is a distance from a reference: compare(fits, data, reference=...); got None")
    if reference is not None:
        _check_reference(reference, fits, data)
    hidden = None if progress is None else not progress
    with tqdm(total=0, desc="compare", leave=False, disable=hidden) as bar:
        rows: dict[str, dict[str, float | None]] = {name: {} for name in fits}
        notes: list[str] = []
        if data is not None:
            notes.append("log density: held out, mean per observation")
            if reference is None:
                _add_log_density(rows, fits, Dataset.of(data), num_samples, seed, by == "log_density", bar)
        if by == "loo":
            notes += _add_loo(rows, fits, num_samples, force, seed, bar)
        apart = None
        if reference is not None and data is not None:
            apart, why = _add_distances(rows, fits, reference, Dataset.of(data), num_samples, seed, bar)
            notes += why
            if by in DISTANCES and all(row[by] is None for row in rows.values()):
                raise ValueError(f"by={by!r} needs a fit that has this distance: {'; '.join(why)}")
            if by != "elbo":
                smallest = by in DISTANCES and by != "agreement"
                return Comparison(by, best_first(rows, "elpd" if by == "loo" else by, smallest=smallest), notes, apart)
        known_train = None if train is None else Dataset.of(train, "train")
        reason = why_not_comparable(fits, known_train)
        if by == "elbo" and reason:
            raise ValueError(f"{reason}. Use held-out log density: compare(fits, data=...)")
        if reason:
            notes.append(f"no ELBOs: {reason}")
        else:
            notes += _add_elbo(rows, fits, known_train, by == "elbo", bar)
            notes += [note] if (note := different_priors(fits)) else []
        return Comparison(by, best_first(rows, "elpd" if by == "loo" else by), notes, apart)


def _add_log_density(
    rows: dict[str, dict[str, float | None]],
    fits: Mapping[str, Predicts],
    data: Dataset,
    num_samples: int,
    seed: int,
    differences: bool,
    bar: Bar,
) -> None:
    """Add the columns of the log density."""
    values = {}
    bar.total += len(fits)
    for name, fit in fits.items():
        values[name] = log_density(fit, data, num_samples, seed=seed)
        bar.update()
    best = values[max(values, key=lambda name: float(values[name].mean()))]
    for name, value in values.items():
        rows[name] |= {"log_density": float(value.mean()), "log_density_se": _se(value)}
        if differences:
            rows[name] |= {"difference": float((value - best).mean()), "difference_se": _se(value - best)}


def check_fits(fits: Any, argument: str = "fits") -> None:
    """Raise an error unless these are fits by name."""
    if not isinstance(fits, Mapping):
        raise TypeError(
            f"{argument} must be a mapping from names to fits, such as {{'a': fit}}; got {shown(fits)}: names are those of "
            "the rows of the table"
        )
    if not fits:
        raise ValueError(f"{argument} must contain at least one fit by name; got none in a {type(fits).__name__}")
    for name, fit in fits.items():
        if not isinstance(name, str):
            raise TypeError(f"the names of {argument} must be str; got {shown(name)}")
        if not callable(getattr(fit, "predict", None)):
            raise TypeError(
                f"{argument} must have a method predict, as fits, replicates and Gaussian processes do; got "
                f"{shown(fit)} for {name!r}"
            )


def _check_reference(reference: Predicts, fits: Mapping[str, Predicts], data: Data | None) -> None:
    if not callable(getattr(reference, "predict", None)):
        raise TypeError(
            "reference must have a method predict, as fits, samples of the exact posterior and Gaussian processes do; got "
            f"{shown(reference)}"
        )
    if data is None:
        raise ValueError("reference= needs points to predict at: compare(fits, data, reference=...); got data=None")
    if _REFERENCE in fits:
        raise ValueError(f"{_REFERENCE!r} is the name of the reference's own row: give this fit another name")


def _add_distances(
    rows: dict[str, dict[str, float | None]],
    fits: Mapping[str, Predicts],
    reference: Predicts,
    data: Dataset,
    num_samples: int,
    seed: int,
    bar: Bar,
) -> tuple[dict[str, float | None], list[str]]:
    """Add distances from a reference, and log densities from the same draws; return the reference's row, and notes."""
    predicted = independent_of_fits(reference, data.x, num_samples, seed)
    own_density = log_density_of(reference, data, num_samples, seed, predicted)
    of_fits: dict[str, Distances] = {}
    bar.total += len(fits)
    for name, fit in fits.items():
        prediction = prediction_of(fit, data.x, num_samples, seed=seed, needed_by="compare")
        value = log_density_of(fit, data, num_samples, seed, prediction)
        of_fits[name] = distances(name, prediction, predicted)
        bar.update()
        rows[name] |= {"log_density": float(value.mean()), "log_density_se": _se(value)}
        rows[name] |= log_density_difference(value, own_density) | of_fits[name].values
    pair = two_of(reference, data.x, num_samples, seed, predicted)
    itself = distances(_REFERENCE, *pair)
    apart: dict[str, float | None] = {"log_density": float(own_density.mean()), "log_density_se": _se(own_density)}
    apart |= itself.values
    shown = {column for row in rows.values() for column, value in row.items() if value is not None}
    notes = [meaning for column, meaning in _MEANINGS.items() if column in shown]
    notes.append(f"{_REFERENCE}: distances between two independent sets of {len(pair[0].f)} of its samples")
    if len(pair[0].f) < num_samples:
        notes.append(
            f"these are fewer than the {num_samples} of the fits, so that its distances are larger by Monte Carlo error"
        )
    if len(data) < _FEW:
        notes.append(f"P(sign) is rough for fewer than {_FEW} observations; there are {len(data)}")
    data_of = _fingerprint(reference)
    other = [
        name for name, fit in fits.items() if None not in (data_of, _fingerprint(fit)) and data_of != _fingerprint(fit)
    ]
    if other:
        notes.append(f"trained on other data than the reference: {', '.join(other)}")
    return apart, notes + [note for compared in (*of_fits.values(), itself) for note in compared.notes]


def _fingerprint(run: Predicts) -> str | None:
    """The fingerprint of the training data of a run, if it is known."""
    fit = run[0] if isinstance(run, Replicates) else run
    value = getattr(fit, "fingerprint", None) or getattr(getattr(fit, "data", None), "fingerprint", None)
    return value if isinstance(value, str) else None


def _without_empty(
    rows: Mapping[str, Mapping[str, float | None]], fits: list[dict[str, float | None]]
) -> dict[str, dict[str, float | None]]:
    """The rows without the distances that no fit has."""
    empty = {column for column in COLUMNS if all(fit.get(column) is None for fit in fits)}
    return {name: {c: value for c, value in row.items() if c not in empty} for name, row in rows.items()}


def _add_loo(
    rows: dict[str, dict[str, float | None]],
    fits: Mapping[str, Predicts],
    num_samples: int,
    force: bool,
    seed: int,
    bar: Bar,
) -> list[str]:
    """Add LOO estimates and stacking weights; return notes on the fits that have none."""
    from pyrodrop.analysis.comparison.loo import UnreliableLoo, loo, se_of_sum

    results, notes = {}, []
    bar.total += len(fits)
    for name, fit in fits.items():
        empty = dict.fromkeys(("elpd", "elpd_se", "difference", "difference_se", "p", "k_hat", "weight"))
        rows[name] |= empty
        if not isinstance(fit, Fit | Sampled):
            notes.append(f"no LOO of {name}: a {type(fit).__name__} has no density of weights to correct draws by")
            continue
        try:
            result = loo(fit, num_samples=num_samples, force=force, seed=seed)
            bar.update()
        except UnreliableLoo as error:
            notes.append(f"no LOO of {name}: {error}")
            continue
        if result.reason:
            notes.append(f"no LOO of {name}: {result.reason}")
            continue
        results[name] = result
        rows[name] |= {"elpd": result.elpd, "elpd_se": result.se, "p": result.p, "k_hat": result.k_hat}
    first = next(iter(results), "")
    for name, result in results.items():
        if not torch.equal(result.observations, results[first].observations):
            raise ValueError(
                f"by='loo' compares fits of the same observations, in the same order; {name!r} and {first!r} have others"
            )
    if results:
        elpds = torch.stack([result.pointwise[0] for result in results.values()])
        differences = elpds - elpds[elpds.sum(1).argmax()]
        for name, difference, weight in zip(results, differences, stacking_weights(elpds), strict=True):
            se = se_of_sum(difference) if difference.any() else 0.0
            rows[name] |= {"difference": float(difference.sum()), "difference_se": se, "weight": float(weight)}
    return notes


def stacking_weights(elpds: Tensor) -> Tensor:
    """Weights ``[C]`` of the mixture with the largest log score sum_n ln sum_c w_c exp elpd_cn, for elpds ``[C, N]``.

    Computed by expectation maximisation, w_c <- w_c g_c with g_c = mean_n p_cn / sum_k w_k p_kn, with longer steps w_c g_c^a
    while they improve the score. The largest score is at most N (max g - 1) above that of w. ArviZ's weights, in contrast,
    are uniform if all elpds of an observation are below -745. Yao et al. (2018), https://arxiv.org/abs/1704.02030, sec. 3.1.
    """
    densities = (elpds - elpds.amax(0)).exp()
    weights, power = torch.full_like(densities[:, 0], 1 / len(densities)), 1.0
    for _ in range(_ROUNDS):
        mixture = weights @ densities
        gain = (densities / mixture).mean(1)
        if elpds.shape[1] * (float(gain.max()) - 1) < _SCORE_ERROR:
            break
        longer = (weights.log() + power * gain.log()).softmax(0).clamp(min=1e-12)
        better = bool((longer @ densities / mixture).log().sum() > 0)
        weights, power = (longer, 2 * power) if better else (weights * gain, 1.0)
    return weights


def _add_elbo(
    rows: dict[str, dict[str, float | None]],
    fits: Mapping[str, Predicts],
    train: Dataset | None,
    differences: bool,
    bar: Bar,
) -> list[str]:
    """Add the ELBOs; return a note on those that bound an evidence maximised over variances of the prior."""
    elbos = {}
    bar.total += len(fits)
    for name, fit in fits.items():
        if isinstance(fit, Fit):
            own_data: Any = training_data(fit, fits, train)
            elbos[name] = fit.elbo(_ELBO_DRAWS, None if own_data is fit.data else own_data)
            bar.update()
    best = max(elbos.values(), key=lambda elbo: elbo.value) if elbos else None
    for name in rows:
        elbo = elbos.get(name)
        rows[name] |= {"elbo": None if elbo is None else elbo.value, "elbo_se": None if elbo is None else elbo.se}
        if differences and elbo is not None and best is not None:
            se = 0.0 if elbo is best else math.hypot(elbo.se, best.se)
            rows[name] |= {"difference": elbo.value - best.value, "difference_se": se}
    maximised = [name for name, elbo in elbos.items() if EMPIRICAL_BAYES in elbo.convention.detail]
    if not maximised:
        return []
    return [
        f"ELBO of {', '.join(maximised)}: a bound of the evidence at its largest over the prior's variances (empirical "
        "Bayes), which grows with the number of variances whatever the data; of a fixed prior, a bound of its evidence"
    ]


def _se(values: Tensor) -> float:
    """Standard error of a mean."""
    return float(values.std() / math.sqrt(len(values))) if len(values) > 1 else math.nan
