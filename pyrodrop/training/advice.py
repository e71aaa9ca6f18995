"""Warnings logged once after training: the loss rises or still falls, the fit is a constant or a point estimate.

    diverged           median nll of the last tenth of the steps > that of the first step, by more than 1 nat per row
    steep              mean nll of the last tenth of the steps < that of the tenth before, by more than 0.05 nats per row, a
                       twentieth of the whole fall and four standard errors
    a point estimate   all learned rates or alphas < 1/1000                                      alpha = rate / (1 - rate)
    a constant         sum (y - E[y|x])^2 > (1 - 1/1000) sum (y - mean y)^2                      Gaussian noise
                       mean log p(y|x) < (1 - 1/1000) mean log (frequency of the class y)        class labels

Only the nll is used, because a growing weight of the KL divergence raises the loss, whatever was learned. A constant is
looked for only where the nll of the last steps is not below that of the constant by a hundredth of a nat per row, on 500
rows by 16 draws. So most fits pay nothing.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from pyrodrop.compression.kept import Prunes
from pyrodrop.data import Dataset
from pyrodrop.guides.ensemble import Ensemble
from pyrodrop.guides.guide import Guide
from pyrodrop.likelihoods import Categorical, Gaussian
from pyrodrop.models.network import NetworkModel, mixes_examples
from pyrodrop.training.result import Fit

_log = logging.getLogger("pyrodrop")

TRIAL = 100  # steps: fewer are a trial, of which nobody expects that it has learned
_PER_ROW, _OF_FALL, _ERRORS = 0.05, 0.05, 4.0
_RISE = 1.0  # nats per row, more than a start from another training costs


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
    """Log one warning about the fits that have not converged, or have collapsed: the first reason of the first of them.

    Args:
        failed: the numbers of those whose training was interrupted by an error, which are left out.
    """
    reasons = {
        number: rises(fit) or constant(fit) or point_estimate(fit) or still_falls(fit)
        for number, fit in enumerate(fits)
        if number not in failed and len(fit.history) >= TRIAL
    }
    unfinished = [number for number, reason in reasons.items() if reason]
    if unfinished:
        first = unfinished[0]
        where = f"{len(unfinished)} of {len(fits)} replicates, of which number {first}: " if len(fits) > 1 else ""
        say(f"training may not be done: {where}{reasons[first]}")


def rises(fit: Fit) -> str:
    """Why the loss is higher at the end than at the start; empty if it is not."""
    nll, rows = fit.history[:, 0].double(), fit.settings.get("num_data", 1)
    tenth = len(nll) // 10
    if len(nll) < TRIAL or not bool(nll.isfinite().all()):
        return ""
    rise = float(nll[-tenth:].median() - nll[0]) / rows
    if rise <= _RISE * max(1.0, 4 / math.sqrt(fit.settings.get("batch_size", rows))):  # few rows may be good ones
        return ""
    unit = "nats per row" if rows > 1 else "nats"
    return (
        f"the loss has risen, by {rise:.2g} {unit} from the first step to the last {tenth}: take a "
        "smaller lr, standardise x and y, and train anew"
    )


def still_falls(fit: Fit) -> str:
    """How far the loss still falls after the last of all steps; empty if it does not."""
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
        f"the loss still falls, by {fall / rows:.2g} {unit} in the last {tenth} of {len(nll)} steps: train for more "
        "steps, or with a higher lr"
    )


_SMALL = 1e-3
_MARGIN = 0.01  # nats per row


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
        f"this fit is a point estimate: every learned {guide.rate_kind.name} is below {_SMALL:g}, the largest is "
        f"{largest:.2g}. Set the rate (guides.BernoulliDropout), or learn variances of weights (guides.MeanField)"
    )


def constant(fit: Fit) -> str:
    """How much better a constant predicts the training data; empty if it does not."""
    if not isinstance(fit.data, Dataset):
        return ""
    likelihood = type(fit.model.likelihood) if isinstance(fit.model, NetworkModel) else None
    if likelihood is Gaussian and fit.data.y.is_floating_point():
        return _mean(fit)
    return _frequencies(fit) if likelihood is Categorical else ""


def _mean(fit: Fit) -> str:
    model: Any = fit.model
    y = fit.data.y.detach().double().cpu()  # type: ignore[union-attr]
    off = (y - y.mean(0)).square()
    tau: Tensor = model.likelihood.precision.detach().double().cpu()
    if not _suspicious(fit, float((tau * off - tau.log() + math.log(2 * math.pi)).sum() / 2)):
        return ""
    few = _few(fit, 500)
    predicted = fit.predict(few.x, 16, seed=0).mean.double().cpu()
    targets = few.y.detach().double().cpu().reshape(predicted.shape)
    by_model, by_mean = ((tau * (targets - f).square()).sum() for f in (predicted, y.mean(0)))
    ratio = float(by_model / by_mean)
    if not ratio > 1 - _SMALL:
        return ""
    return (
        f"the squared error on the training data is {ratio:.3g} times that of the mean of y, so x explains nothing yet, if "
        "there is anything to learn: standardise x and y (Dataset.standardized), train for more steps, or look at the "
        "prior's scale and the drop rate"
    )


def _frequencies(fit: Fit) -> str:
    labels = fit.data.y.detach().cpu().long().flatten()  # type: ignore[union-attr]
    share = torch.bincount(labels).double() / len(labels)
    entropy = float(torch.special.entr(share).sum())
    if not _suspicious(fit, len(labels) * entropy):
        return ""
    few = _few(fit, 500)
    predicted = fit.predict(few.x, 16, seed=0).log_density(few.y).double()
    of_share = share[few.y.detach().cpu().long()].log().reshape(len(few), -1).sum(1)
    if not float(predicted.mean()) < (1 - _SMALL) * float(of_share.mean()):
        return ""
    return (
        f"the log density of the training labels is {float(predicted.mean()):.3g} per row, and {float(of_share.mean()):.3g} "
        "under the frequencies of the classes, so x explains nothing yet: take a larger scale of the prior, such as the "
        "root of 2 over the inputs of a layer, a lower drop rate or another lr, or train for more steps"
    )


def _suspicious(fit: Fit, of_constant: float) -> bool:
    """Whether the nll of the last tenth of the steps is not clearly below that of a constant; rows must not be mixed."""
    assert isinstance(fit.data, Dataset)
    nll = float(fit.history[-max(1, len(fit.history) // 10) :, 0].double().mean())
    return nll > of_constant - _MARGIN * len(fit.data) and not mixes_examples(fit.model, fit.data.x)


def _few(fit: Fit, most: int) -> Dataset:
    """At most so many rows, evenly spread."""
    assert isinstance(fit.data, Dataset)
    return fit.data.rows(torch.linspace(0, len(fit.data) - 1, min(len(fit.data), most)).long())
