"""Warnings logged once after training: diverged, not converged, collapsed, or worse than a point estimate.

    diverged           median nll of the last tenth of the steps - first nll > max(1, 4 / sqrt(batch size)) nats per row
    a constant         ln p(y | x) of the fit <= that of a constant + 1/1000 nat per value of y         see `Worth`
    a point estimate   all learned rates or alphas < 1/1000                                        alpha = rate / (1 - rate)
    steep              mean nll of the last tenth of the steps < that of the tenth before, by more than 0.05 nats per row, a
                       twentieth of the whole fall and four standard errors
    less than a point  ln p(y | x) of the fit < that of ridge regression, or of the network with a last layer that is
                       refitted in closed form, - 1/5 nat per value of y

Only the nll of the losses is used, because a growing weight of the KL divergence raises the loss, whatever was learned. To
save time, replicates are not checked for "less than a point", and are compared with a constant only if -nll of the last
steps, a lower bound on the log density, is not above that of the constant by 1/100 nat per row.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from pyrodrop.compression.kept import Prunes
from pyrodrop.data import Dataset
from pyrodrop.guides.ensemble import Ensemble
from pyrodrop.guides.guide import Guide
from pyrodrop.likelihoods import Categorical, Gaussian, Likelihood
from pyrodrop.models.network import NetworkModel
from pyrodrop.training.left_out import constant
from pyrodrop.training.result import Fit
from pyrodrop.training.worth import Worth, of_record, worth_of

_log = logging.getLogger("pyrodrop")

TRIAL = 100  # steps: a training with fewer is a trial, which is not expected to have learned
_PER_ROW, _OF_FALL, _ERRORS = 0.05, 0.05, 4.0
_RISE = 1.0  # nats per row, more than a training that starts from trained weights rises


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


def warn_of_unfinished(*fits: Fit, failed: Collection[int] = ()) -> None:
    """Log at most one warning about all fits: how many need one, and the first reason for the first of these.

    Args:
        failed: numbers of the fits to leave out, because their loss or gradient stopped being finite.
    """
    reasons = {
        number: rises(fit)
        or no_better_than_a_constant(fit)
        or point_estimate(fit)
        or still_falls(fit)
        or less_than_a_point(fit)
        for number, fit in enumerate(fits)
        if number not in failed and len(fit.history) >= TRIAL
    }
    if len(fits) == 1 and (worth := of_record(fits[0].settings)) is not None:
        _log.info("log density of the training data: %s", worth)
    unfinished = [number for number, reason in reasons.items() if reason]
    if unfinished:
        first = unfinished[0]
        beginning, _, reason = reasons[first].partition(": ")
        where = f"{len(unfinished)} of {len(fits)} replicates, of which number {first}: " if len(fits) > 1 else ""
        say(f"{beginning}: {where}{reason}")


def rises(fit: Fit) -> str:
    """A warning if the loss is higher at the end than at the start, or an empty string."""
    nll, rows = fit.history[:, 0].double(), fit.settings.get("num_data", 1)
    tenth = len(nll) // 10
    if len(nll) < TRIAL or not bool(nll.isfinite().all()):
        return ""
    rise = float(nll[-tenth:].median() - nll[0]) / rows
    if rise <= _RISE * max(1.0, 4 / math.sqrt(fit.settings.get("batch_size", rows))):  # few rows vary more
        return ""
    unit = "nats per row" if rows > 1 else "nats"
    return (
        f"training has diverged: the loss has risen, by {rise:.2g} {unit} from the first step to the last {tenth}: take a "
        "smaller lr, standardise x and y, and train anew"
    )


def still_falls(fit: Fit) -> str:
    """A warning if the loss still falls at the last of all steps, or an empty string."""
    nll, rows = fit.history[:, 0].double(), fit.settings.get("num_data", 1)
    tenth = len(nll) // 10
    if len(nll) < max(TRIAL, fit.settings.get("steps") or 0) or not bool(nll.isfinite().all()):
        return ""
    first, before, last = nll[:tenth], nll[-2 * tenth : -tenth], nll[-tenth:]
    fall, whole = float(before.mean() - last.mean()), float(first.mean() - last.mean())
    error = math.sqrt(float(before.var() + last.var()) / tenth)
    if fall <= max(_PER_ROW * rows, _OF_FALL * whole, _ERRORS * error):
        return ""
    unit = "nats per row" if rows > 1 else "nats"
    return (
        f"training may not be done: the loss still falls, by {fall / rows:.2g} {unit} in the last {tenth} of {len(nll)} "
        "steps: train for more steps, or with a higher lr"
    )


_SMALL = 1e-3  # a rate or alpha; nats per value of y
_MARGIN = 0.01  # nats per row
_LESS = 0.2  # nats per value of y
_LOUD = 0.9  # of the standard deviation of y
_OF_NUMBERS = (
    "standardise x and y (Dataset.standardized), look at the prior's scale and the drop rate, or train for more steps"
)
_OF_CLASSES = (
    "take a larger scale of the prior, such as the root of 2 over the inputs of a layer, a lower drop rate or another lr, "
    "or train for more steps"
)
_OF_NOISE = (
    "standardise x and y (Dataset.standardized), and take priors and noise that fit, as those of priors.from_gp "
    "(docs/symptoms.md, A flat band)"
)
_OF_POSTERIORS = "take a lower drop rate or another scale of the prior, let lr fall to 0, or train for more steps"


def point_estimate(fit: Fit) -> str:
    """A warning if the learned rates are so small that the posterior is a point up to rounding, or an empty string."""
    guide: Any = fit.guide
    if not isinstance(guide, Guide | Ensemble) or isinstance(guide, Prunes):
        return ""
    rates = guide.rates()
    if not rates or not guide.rate_kind.learned:
        return ""
    largest = max(float(torch.as_tensor(rate).max()) for rate in rates.values())
    if not largest < _SMALL:
        return ""
    return (
        f"the fit is a point estimate: every learned {guide.rate_kind.name} is below {_SMALL:g}, the largest is "
        f"{largest:.2g}. Set the rate (guides.BernoulliDropout), or learn variances of weights (guides.MeanField)"
    )


def no_better_than_a_constant(fit: Fit) -> str:
    """A warning if the log density of the training data is not above that of a constant, or an empty string."""
    worth = of_record(fit.settings) or (worth_of(fit) if _may_be_a_constant(fit) else None)
    if worth is None or worth.constant is None or worth.fit > worth.constant + _SMALL * worth.values:
        return ""
    of_classes = isinstance(_likelihood(fit), Categorical)
    what, advice = ("the frequencies of the classes", _OF_CLASSES) if of_classes else ("a constant", _OF_NUMBERS)
    so = _conclusion(fit, "x explains nothing yet, if there is anything to learn", advice)
    return f"the fit is no better than a constant: {_numbers(worth, worth.constant, what)}, {so}"


def less_than_a_point(fit: Fit) -> str:
    """A warning if the log density of the training data is below that of a point estimate, or an empty string."""
    worth = of_record(fit.settings)
    points = [] if worth is None else [value for value in (worth.point, worth.ridge) if value is not None]
    if worth is None or not points or max(points) <= worth.fit + _LESS * worth.values:
        return ""
    short, more = "ridge regression", ""
    if max(points) == worth.point:
        short, more = "a point estimate", " of this network with a refitted last layer"
    so = _conclusion(fit, "the data determine more than this posterior says", _OF_POSTERIORS)
    return f"the fit predicts worse than {short}: {_numbers(worth, max(points), short + more)}, {so}"


def _numbers(worth: Worth, beside: float, what: str) -> str:
    process = "" if worth.gp is None else f" ({worth.gp:.3g} under a Gaussian process)"
    return f"the log density of the training data is {worth.fit:.3g} per row, and {beside:.3g} under {what}{process}"


def _conclusion(fit: Fit, what: str, advice: str) -> str:
    """The end of a warning: what the numbers mean and what to do, which differs if Gaussian noise is about as large as y."""
    likelihood = _likelihood(fit)
    if isinstance(likelihood, Gaussian) and isinstance(fit.data, Dataset):
        sd = fit.data.y.detach().double().std(0, correction=0).cpu()
        noise = likelihood.precision.detach().double().rsqrt().cpu().expand_as(sd)
        most = int((noise / sd).argmax())
        if bool(noise.flatten()[most] > _LOUD * sd.flatten()[most]):
            where = f" in column {most}" if sd.dim() == 1 and len(sd) > 1 else ""
            loud = (
                f"the noise has a standard deviation of {float(noise.flatten()[most]):.3g} and y one of "
                f"{float(sd.flatten()[most]):.3g}{where}"
            )
            if not likelihood.learned:
                return f"since {loud}: let it be learned, likelihoods.Gaussian()"
            return f"so {what}, and {loud}: {_OF_NOISE}"
    return f"so {what}: {advice}"


def _likelihood(fit: Fit) -> Likelihood | None:
    return fit.model.likelihood if isinstance(fit.model, NetworkModel) else None


def _may_be_a_constant(fit: Fit) -> bool:
    """Whether the nll of the last tenth of the steps, a bound on -log density, is not clearly below a constant's."""
    likelihood = _likelihood(fit)
    if likelihood is None or not isinstance(fit.data, Dataset):
        return False
    y = fit.data.y.detach().cpu()
    best = constant(likelihood, y, y)
    nll = float(fit.history[-max(1, len(fit.history) // 10) :, 0].double().mean())
    return best is not None and nll > -float(best.sum()) - _MARGIN * len(fit.data)
