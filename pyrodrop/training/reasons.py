"""What is wrong with a fit, in one sentence with the first cause.

A fit is compared with the best of its record: a constant, ridge regression, a Gaussian process and a point estimate. It is
behind if its log density of the training data is more than .3 nats per value of y below the best, or if it gains less than a
tenth of what the best gains over a constant. The causes are in the order of what is cheapest to mend: units, steps, rates,
noise, priors. Values of y that are far out come before them, and rows that say nothing and noise that varies after them.

Whether training has diverged or is not done follows from the nll alone, because a growing weight of the KL divergence raises
the loss, whatever was learned.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from pyrodrop.data import Dataset
from pyrodrop.guides.ensemble import Ensemble
from pyrodrop.guides.exact_last_layer import ExactLastLayer
from pyrodrop.guides.guide import Guide
from pyrodrop.likelihoods import Gaussian
from pyrodrop.training.settings import adam
from pyrodrop.training.worth import Worth, evenly, of_record, worth_of

_log = logging.getLogger("pyrodrop")

TRIAL = 100  # steps: a training with fewer is a trial, which is not expected to have learned
_SMALL = 1e-3  # a rate or alpha; nats per value of y
_BEHIND, _SHARE = 0.3, 0.1  # nats per value of y; of the gain over a constant
_FAR = 30.0  # standard deviations of a value of y
_FEW = 8  # rows
_OVER = 0.6  # nats per value of y, in sample above all that leave rows out
_HIGH = 0.2  # a rate of dropout
_ROWS = 1000  # whose units are looked at
_ODD, _SHOWN = 6.0, 5  # nats of a row below the median, of a Gaussian an error of 3.5 standard deviations; odd rows
_REPEATED = 10  # rows for each value of y
_UNITS = (0.2, 5.0)  # of the largest root mean square of a column in a table that needs no standardisation

_collecting: ContextVar[list[str] | None] = ContextVar("_collecting", default=None)


@contextmanager
def collected() -> Iterator[list[str]]:
    """Collect the messages about fits that are trained in this block instead of logging them."""
    messages: list[str] = []
    outer = _collecting.set(messages)
    try:
        yield messages
    finally:
        _collecting.reset(outer)


def say(message: str) -> None:
    """Log a warning about a fit, unless messages are collected."""
    messages = _collecting.get()
    if messages is None:
        _log.warning("%s", message)
    else:
        messages.append(message)


def judge(*fits: Any, failed: Collection[int] = ()) -> None:
    """Put the worth of the first fit into its settings, which are saved, and log at most one warning about all fits.

    It says how many need one, and the reason for the first of these.

    Args:
        failed: numbers of the fits to leave out, because their loss or gradient stopped being finite.
    """
    trained = {number: fit for number, fit in enumerate(fits) if number not in failed and len(fit.history) >= TRIAL}
    for fit in [*trained.values()][:1]:
        if (worth := worth_of(fit)) is not None:
            fit.settings["worth"] = asdict(worth)
            _log.info("log density of the training data: %s", worth)
    reasons = {number: reason(fit)[0] for number, fit in trained.items()}
    unfinished = {number: sentence for number, sentence in reasons.items() if sentence}
    for number, sentence in [*unfinished.items()][:1]:
        title, _, text = sentence.partition(": ")
        where = f"{len(unfinished)} of {len(fits)} replicates, of which number {number}: " if len(fits) > 1 else ""
        say(f"{title}: {where}{text}")


def reason(fit: Any) -> tuple[str, str]:
    """What is wrong with a fit, and the heading of docs/symptoms.md that says more; or two empty strings. It compares with
    the worth in the settings."""
    worth, size = of_record(fit.settings), fit.settings.get("num_data", 1)
    unit, fall = "nats per row" if size > 1 else "nats", still_falls(fit)
    nll, tenth = _nll(fit)
    far_below = worth is None or worth.constant is None or worth.fit < worth.constant - worth.values
    if far_below and (rise := _rise(fit)) > 0:
        return (
            f"training has diverged: the loss has risen, by {rise:.2g} {unit} from the first step to the last {tenth}: take "
            "a smaller lr, standardise x and y, and train anew",
            "the-loss-is-nan-or-infinite",
        )
    if worth is not None and (sentence := _of_rows(worth, size)):
        return sentence, "a-constant-predicts-as-well"
    guide: Any = fit.guide
    if isinstance(guide, Guide | Ensemble) and not hasattr(guide, "keep_mask") and guide.rate_kind.learned:
        largest = max((float(torch.as_tensor(rate).max()) for rate in guide.rates().values()), default=1.0)
        if largest < _SMALL:
            return (
                f"the fit is a point estimate: every learned {guide.rate_kind.name} is below {_SMALL:g}, the largest is "
                f"{largest:.2g}. Set the rate (guides.BernoulliDropout), or learn variances of weights (guides.MeanField)",
                "learned-rates-go-to-0-or-alphas-grow",
            )
    if worth is not None and _is_behind(worth):
        no_better = worth.constant is not None and worth.fit <= worth.constant + _SMALL * worth.values
        name, best = _best(worth)
        title = "the fit is no better than a constant" if no_better else f"the fit predicts worse than {name}"
        numbers = f"the log density of the training data is {worth.fit:.3g} per row, and {best:.3g} under {name}"
        page = "a-constant-predicts-as-well" if no_better else "a-flat-band-noise-as-large-as-y"
        return f"{title}: {_cause(fit, name, fall)} ({numbers})", page
    if fall:
        return (
            f"training may not be done: the loss still falls, by {fall:.2g} {unit} in the last {tenth} of {len(nll)} steps: "
            "train for more steps, or with a higher lr",
            "a-constant-predicts-as-well",
        )
    sentence = "" if worth is None else _unmended(worth, size)
    return sentence, "a-constant-predicts-as-well" if sentence else ""


def odd_rows(densities: Tensor) -> str:
    """The rows whose log density is far below the median, the lowest first; NaN is not known. Empty if there are none."""
    below = (densities.nanmedian() - densities).nan_to_num()
    rows = below.argsort(descending=True, stable=True)[: int((below > _ODD).sum())].tolist()
    more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    shown = ", ".join(map(str, rows[:_SHOWN]))
    return f"{shown}{more}, up to {float(below.max()):.1f} nats less probable than the median row" if rows else ""


def shape_of(y: Tensor) -> str:
    """What is unusual about the values of columns of y: counts, values that repeat, and a long tail; empty if nothing is."""
    found = list[str]()
    for column in y.detach().double().cpu().reshape(len(y), -1).T:
        values, rows = column.unique(return_counts=True)
        most, share = float(values[rows.argmax()]), float(rows.max()) / len(column)
        if bool((column >= 0).all()) and torch.equal(column, column.round()):
            found.append(f"whole numbers from {float(values[0]):g} to {float(values[-1]):g}, as counts are")
        if len(values) * _REPEATED <= len(column) or share * _REPEATED >= 1:
            found.append(f"{len(values)} values, of which {most:g} in {share:.0%} of the rows")
        skewness = float(((column - column.mean()) / column.std(correction=0).clamp(min=1e-300)).pow(3).mean())
        found += [f"a long tail of {'large' if skewness > 0 else 'small'} values"] if abs(skewness) > 1 else []
    return "; ".join(found)


def _of_rows(worth: Worth, size: int) -> str:
    """What is wrong with the rows, whatever was trained on them."""
    if 1 < size * worth.values < _FEW:
        return f"the rows are few: {size} rows do not say what a fit is worth, whose density of them is in sample"
    if worth.extreme is not None and worth.extreme > _FAR:
        return (
            f"a value of y is far out: by {worth.extreme:.0f} standard deviations of the others, so it sets the scale and "
            "the noise: correct it, take likelihoods.StudentT(), or the logarithm of y"
        )
    return ""


def _best(worth: Worth) -> tuple[str, float]:
    """The best of the record besides the fit."""
    beside = worth.left_out | ({} if worth.constant is None else {"a constant": worth.constant})
    return max(beside.items(), key=lambda item: item[1], default=("", -math.inf))


def _is_behind(worth: Worth) -> bool:
    best, values = _best(worth)[1], worth.values
    if worth.constant is None:
        return best > worth.fit + _BEHIND * values
    gain = best - worth.constant
    if not worth.left_out:
        return worth.fit < worth.constant + _SMALL * values
    return best > worth.fit + _BEHIND * values or (gain > 0.1 * values and worth.fit - worth.constant < _SHARE * gain)


def _unmended(worth: Worth, size: int) -> str:
    """What further training does not mend, of a fit that is not behind: empty if nothing looks wrong."""
    left_out, values, chance = max(worth.left_out.values(), default=math.inf), worth.values, 3 / min(size, 300)
    if worth.constant is not None and left_out < worth.constant + chance * values:
        return (
            f"nothing beats a constant: x may say nothing about y, since of predictors that leave rows out the best has "
            f"{left_out:.3g} per row, and a constant {worth.constant:.3g}; the fit's {worth.fit:.3g} is in sample"
        )
    if worth.varies is not None and worth.varies > 0.06 + chance:
        return (
            "the noise varies with x: x predicts the size of the errors of y, and one noise is too large at some x and too "
            "small at others: take likelihoods.HeteroscedasticGaussian() or recipes.regressor"
        )
    if worth.fit > left_out + _OVER * values:
        return (
            f"the fit may follow single rows: its density of the training data, {worth.fit:.3g} per row, is in sample, and "
            f"rows that are left out have at most {left_out:.3g}: judge it by held-out rows"
        )
    return ""


def _cause(fit: Any, name: str, fall: float) -> str:
    """The first cause of a fit that is behind, and what to do."""
    steps, options = len(fit.history), fit.options
    rates: Any = isinstance(fit.guide, Guide | Ensemble | ExactLastLayer) and fit.guide.rates()
    rate = max((float(torch.as_tensor(value).max()) for value in rates.values()), default=0.0) if rates else 0.0
    if _raw(fit.data):
        return "x or y are far from mean 0 and standard deviation 1: standardise x and y (Dataset.standardized)"
    if fall:
        return f"the loss still falls, by {fall:.2g} in the last tenth of the steps: train for more steps"
    if options is not None and options.optimizer is adam and isinstance(options.lr, float) and steps * options.lr < 1:
        return f"no weight moves by more than {steps * options.lr:.2g} in {steps} steps of Adam: train for more steps"
    if rate >= _HIGH:
        return f"the largest rate or alpha is {rate:.2g}: take a lower drop rate or alpha"
    if (noise := _large_noise(fit)) and not fit.model.likelihood.learned:
        return f"since {noise}: let it be learned, likelihoods.Gaussian()"
    if isinstance(fit.guide, ExactLastLayer):
        return "try more units, or the process itself, analysis.gp.GaussianProcess, or another scale of the prior"
    lower = "a lower drop rate, or " if rate else ""
    return f"{noise and f'{noise}: '}take {lower}priors and noise that fit, as fit(model, data) without a guide does"


def _raw(data: Any) -> bool:
    """Whether data are in units that no prior of scale 1 suits."""
    if not isinstance(data, Dataset):
        return False
    pairs = ((data.x, data.inputs), (data.y, data.targets))
    tables = [
        t for t, scale in pairs if scale is None and isinstance(t, Tensor) and t.is_floating_point() and t.dim() == 2
    ]
    rows = evenly(len(data), _ROWS)
    sizes = [float(table[rows].detach().double().square().mean(0).max().sqrt()) for table in tables if table.numel()]
    return any(size > 0 and not _UNITS[0] <= size <= _UNITS[1] for size in sizes)


def _large_noise(fit: Any) -> str:
    """That Gaussian noise is about as large as a column of y, or empty."""
    likelihood = getattr(fit.model, "likelihood", None)
    if not isinstance(likelihood, Gaussian) or not isinstance(fit.data, Dataset):
        return ""
    sd = fit.data.y.detach().double().std(0, correction=0).cpu()
    large = likelihood.precision.detach().double().rsqrt().cpu() > 0.9 * sd
    return "the noise is as large as y" if bool(large.any()) else ""


def _nll(fit: Any) -> tuple[Tensor, int]:
    """The nll of all steps per row, and a tenth of their number, which is 0 if they say nothing."""
    nll = fit.history[:, 0].double() / fit.settings.get("num_data", 1)
    return nll, len(nll) // 10 if len(nll) >= TRIAL and bool(nll.isfinite().all()) else 0


def _rise(fit: Any) -> float:
    """By how much the median nll of the last tenth of the steps is above the first; 0 unless by more than 1 nat per row,
    more than after a start from trained weights, or by 4 / sqrt(batch size), since few rows vary more."""
    nll, tenth = _nll(fit)
    rise = float(nll[-tenth:].median() - nll[0]) if tenth else 0.0
    size = fit.settings.get("batch_size", fit.settings.get("num_data", 1))
    loss = fit.history[:, :2].double().sum(1)
    if tenth and float(loss[-tenth:].median()) < float(loss[0]):  # the KL divergence has fallen by more
        return 0.0
    return rise if rise > max(1.0, 4 / math.sqrt(size)) else 0.0


def still_falls(fit: Any) -> float:
    """By how much the mean nll of the last tenth of the steps is below that of the tenth before; 0 unless by more than 0.05
    nats per row, a twentieth of the whole fall and four standard errors, or if training was ended before all steps."""
    nll, tenth = _nll(fit)
    if not tenth or len(nll) < (fit.settings.get("steps") or 0):
        return 0.0
    first, before, last = nll[:tenth], nll[-2 * tenth : -tenth], nll[-tenth:]
    fall, whole = float(before.mean() - last.mean()), float(first.mean() - last.mean())
    return fall if fall > max(0.05, 0.05 * whole, 4 * math.sqrt(float(before.var() + last.var()) / tenth)) else 0.0
