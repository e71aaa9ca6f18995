"""Whether the bands of a fit hold: it is trained again on data sets of functions that are known, and asked for these.

    (f_r, y_r)      functions and data sets of the best predictor (`pyrodrop.training.simulated`)      r = 1 ... R
    q_r             the posterior after the same training on (x, y_r); all are trained at once, as `pyrodrop.fit_replicates`
    coverage        mean over r and points of 1[f_r(x) in the central interval of q_r at x]

This is a parametric bootstrap of the whole procedure. In each of three regions, the factor c for which

    m + c (f_s - m),   m = mean_s f_s,   f_s ~ q_r

has bands with the nominal coverage is a quantile of |f_r - m| / |end of the band - m| over r and points. Bands of labels are
those of ln p_c - ln(1 - p_c).

It assumes that the noise is that of the likelihood, and that functions are like those of the best predictor: it cannot see
what neither the process nor the fit can follow. Beyond the data it knows what a process knows.

References:
    Efron & Tibshirani (1993), An Introduction to the Bootstrap, sections 6.5 (parametric) and 18.3 (calibration).
    Beran (1987), Prepivoting to Reduce Level Error of Confidence Sets, https://doi.org/10.1093/biomet/74.3.457.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyrodrop.checks import shown
from pyrodrop.data import Dataset
from pyrodrop.devices import seeded
from pyrodrop.likelihoods import Categorical
from pyrodrop.likelihoods.likelihood import Incomplete
from pyrodrop.models.network import NetworkModel
from pyrodrop.training.certificate import POINTS, REGIONS, Certificate, Held, Regions
from pyrodrop.training.replicates import Replicates, fit_replicates
from pyrodrop.training.result_data import rows_of
from pyrodrop.training.settings import TrainingOptions
from pyrodrop.training.simulated import best_predictor
from pyrodrop.training.worth import collected

_OPTIONS = [*TrainingOptions.__annotations__]
_DRAWS = 200  # of every refit


def of_fit(fit: Any, refits: int, level: float, seed: int) -> Certificate:
    """The certificate of a fit; `Fit.certify` describes the arguments and errors."""
    if not isinstance(fit.model, NetworkModel):
        raise TypeError(f"certify needs a network with bands of f; got a fit of {shown(fit.model)}")
    data = rows_of(fit, "certify")
    if data is None or fit.options is None:
        raise ValueError(
            "certify trains again: it needs the training data and settings, which a loaded fit does not have"
        )
    x, likelihood = data.x, fit.model.likelihood
    if isinstance(likelihood, Incomplete):
        raise ValueError(
            "certify draws all of y, and a fit of missing or censored observations knew less: leave these rows out; "
            f"got {likelihood.describe()}"
        )
    if likelihood.anew() is likelihood and next(likelihood.parameters(), None) is not None:
        raise ValueError(
            "certify trains again from the start, and cannot make this likelihood as it was before training; got "
            f"{likelihood.describe()}, of a class of your own"
        )
    table = isinstance(x, Tensor) and x.dim() == 2 and x.is_floating_point()
    rows = torch.linspace(0, len(data) - 1, min(len(data), POINTS)).long()
    points = data.rows(rows).x
    with seeded(seed, fit.device):
        predictor = best_predictor(fit, likelihood, data, seed)
        regions = Regions.of(x, predictor.length) if table else None
        if regions is not None:
            points = torch.cat([points, regions.beyond(x)])
        f, y, again = predictor.simulated(data, points, refits)
    place = torch.zeros(f.shape[1]).long() if regions is None else regions(points)
    of_labels = isinstance(likelihood, Categorical)
    found = []
    fits = _refitted(fit, [data.with_values(y=each) for each in y], seed)
    for r in sorted(set(range(refits)) - fits.failed.keys()):
        predicted = fits[r].predict(points, _DRAWS, seed=seed + r)
        bands = _bands(predicted.f.double(), f[r].double(), level, of_labels)
        found.append((*bands, None if of_labels else _of_y(predicted, again[r, rows], level)))
    each: list[Any] = [None if values[0] is None else torch.stack(values) for values in zip(*found, strict=True)]
    numbers = [number for number in range(len(REGIONS)) if bool((place == number).any())]
    held = {REGIONS[number]: _held(place == number, number, level, *each) for number in numbers}
    return Certificate(level, len(found), predictor.by, held, f.shape[-1], regions)


def _refitted(fit: Any, sets: list[Dataset], seed: int) -> Replicates:
    """The same training on every data set, from new initial weights."""
    options: Any = {name: getattr(fit.options, name) for name in _OPTIONS} | {"seed": seed + 1, "starts": "new"}
    if options["engine"] == "pyro":
        options["engine"] = "traced"
    with collected():
        return fit_replicates(fit.model, fit.guide, sets, count=len(sets), steps=len(fit.history), **options)


def _bands(draws: Tensor, truth: Tensor, level: float, of_labels: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Whether bands of draws ``[S, P, D]`` hold the truth, the factor that it takes, and the error of the mean."""
    if of_labels:
        draws, truth = _log_odds(draws), _log_odds(truth)
    low, high = torch.quantile(draws, torch.tensor([(1 - level) / 2, (1 + level) / 2]).to(draws), dim=0)
    error = truth - draws.mean(0)
    reach = torch.where(error > 0, high - draws.mean(0), draws.mean(0) - low).clamp(min=1e-300)
    return (truth >= low) & (truth <= high), error.abs() / reach, error


def _log_odds(logits: Tensor) -> Tensor:
    """ln p_c - ln (1 - p_c) of each class ``[..., C]``."""
    log_p = logits.log_softmax(-1)
    return log_p - torch.log1p(-log_p.exp().clamp(max=1 - 1e-12))


def _of_y(predicted: Any, y: Tensor, level: float) -> Tensor:
    """Whether intervals at the first points hold y ``[n, ...]``."""
    low, high = (end[: len(y)] for end in predicted.interval(level))
    return (y.reshape(low.shape) >= low) & (y.reshape(low.shape) <= high)


def _held(
    here: Tensor, number: int, level: float, inside: Tensor, reach: Tensor, error: Tensor, of_y: Tensor | None
) -> Held:
    """What was found at the points `here` of a region."""
    by_set = inside[:, here].double().flatten(1).mean(1)
    off = error[:, here]
    return Held(
        coverage=float(by_set.mean()),
        error=float(by_set.std() / math.sqrt(len(by_set))),
        of_y=float(of_y[:, here[: of_y.shape[1]]].double().mean()) if of_y is not None and number < 2 else None,
        factor=float(reach[:, here].flatten().quantile(level)),
        centre=float(off.mean(0).square().mean() / off.square().mean()),
    )
