"""A warning about fits that have not learned yet, or not at all, by their losses and their predictions of the training data.

    steep     mean nll of the last tenth of the steps < that of the tenth before, by more than 0.05 nats per row, a twentieth
              of the whole fall and four standard errors
    no use    sum (y - E[y|x])^2 > 1.1 sum (y - mean y)^2        Gaussian noise; on at most 500 rows, with 16 draws

Only the nll is used, because a growing weight of the KL divergence raises the loss, whatever was learned. Predictions
are made only where the nll of the last steps is above that of the mean of y, so that most fits pay nothing.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from pyrodrop.likelihoods import Gaussian
from pyrodrop.networks.mixing import mixes_examples
from pyrodrop.training.fitted import Fit

_log = logging.getLogger("pyrodrop")

_STEPS = 100  # fewer are a trial, of which nobody expects that it has learned
_PER_ROW, _OF_FALL, _ERRORS = 0.05, 0.05, 4.0
_ROWS, _DRAWS, _WORSE = 500, 16, 1.1


def warn_of_unfinished(*fits: Fit, failed: Collection[int] = ()) -> None:
    """Say once, in a warning of the log, which of the fits still learned at their end or predict worse than a constant.

    Args:
        fits: one, or replicates.
        failed: the numbers of those whose training broke off; nothing is said of them.
    """
    trained = {number: fit for number, fit in enumerate(fits) if number not in failed}
    found = {number: words for number, fit in trained.items() if (words := _useless(fit) or _steep(fit))}
    if found:
        number, words = next(iter(found.items()))
        where = f"{len(found)} of {len(fits)} replicates, of which number {number}: " if len(fits) > 1 else ""
        _log.warning("training may not be done: %s%s", where, words)


def _steep(fit: Fit) -> str:
    """Whether the loss still falls at the end, in words; empty if it does not."""
    nll, rows = fit.history[:, 0].double(), fit.settings["num_data"]
    tenth = len(nll) // 10
    if len(nll) < _STEPS or not bool(nll.isfinite().all()):
        return ""
    first, before, last = nll[:tenth], nll[-2 * tenth : -tenth], nll[-tenth:]
    fall, whole = float(before.mean() - last.mean()), float(first.mean() - last.mean())
    error = math.sqrt(float(before.var() + last.var()) / tenth)
    if fall <= max(_PER_ROW * rows, _OF_FALL * whole, _ERRORS * error):
        return ""
    return (
        f"the loss still falls, by {fall / rows:.2g} nats per row in the last {tenth} of {len(nll)} steps: train for more "
        "steps, or with a higher lr"
    )


def _useless(fit: Fit) -> str:
    """Whether the mean of y predicts the training data better, in words; empty if it does not."""
    model: Any = fit.model
    likelihood, data = getattr(model, "likelihood", None), fit.data
    if data is None or type(likelihood) is not Gaussian or len(fit.history) < _STEPS or not data.y.is_floating_point():
        return ""
    y = data.y.detach().double().cpu()
    off = (y - y.mean(0)).square()
    tau: Tensor = likelihood.precision.detach().double().cpu()  # type: ignore[attr-defined]
    of_mean = float((tau * off - tau.log() + math.log(2 * math.pi)).sum() / 2)
    nll = fit.history[-max(1, len(fit.history) // 10) :, 0].double().mean()
    if not float(nll) > of_mean or mixes_examples(model, data.x):
        return ""
    few = data.rows(torch.linspace(0, len(data) - 1, min(len(data), _ROWS)).long())
    predicted = fit.predict(few.x, _DRAWS, seed=0).mean.double().cpu()
    own = y[torch.linspace(0, len(data) - 1, min(len(data), _ROWS)).long()].reshape(predicted.shape)
    ratio = float((own - predicted).square().sum() / (own - y.mean(0)).square().sum())
    if not ratio > _WORSE:
        return ""
    return (
        f"the squared error on the training data is {ratio:.3g} times that of the mean of y, so x explains nothing yet: "
        "standardise x and y (Dataset.standardized), train for more steps, or look at the prior's scale and the drop rate"
    )
