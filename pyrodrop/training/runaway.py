"""A warning about numbers that ran away in training, so far that what they multiply is lost in rounding.

alpha > 1 / eps^2                  the mean of a weight is below the rounding of its noise (1e14 in float32)
1 / sqrt(precision) < eps max|y|   the noise of the observations is below the rounding of y
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from pyrodrop.training.fitted import Fit
from pyrodrop.training.problem import Problem

_log = logging.getLogger("pyrodrop")


def warn_of_runaways(*problems: Problem | Fit) -> None:
    """Say once, in a warning of the log, which alpha or precision of trained problems ran away; of replicates the first."""
    found = {number: [*_alphas(p.guide), *_precisions(p)] for number, p in enumerate(problems)}
    found = {number: words for number, words in found.items() if words}
    if found:
        number, words = next(iter(found.items()))
        where = f" in {len(found)} of {len(problems)} replicates, of which number {number}" if len(problems) > 1 else ""
        _log.warning("training ran away%s: %s", where, "; ".join(words))


def _alphas(guide: Any) -> list[str]:
    """Learned alphas that are too large. A guide that prunes weights by their alphas is meant to make some large."""
    kind = getattr(guide, "rate_kind", None)
    if kind is None or kind.name != "alpha" or not kind.learned or hasattr(guide, "keep_mask"):
        return []
    worst: tuple[float, str] = (0.0, "")
    for name, rate in guide.rates().items():
        values = torch.as_tensor(rate)
        limit = torch.finfo(values.dtype).eps ** -2
        value = float(values.max())
        if value > limit:
            worst = max(worst, (value, f"alpha of {name!r} is {value:.2g}, above {limit:.1g}"))
    if not worst[1]:
        return []
    return [
        f"{worst[1]}, where the mean of the weight is lost in the rounding of its noise: bound it with max_alpha, or give "
        "the weight another prior"
    ]


def _precisions(problem: Problem | Fit) -> list[str]:
    """A learned precision of Gaussian noise that is too large."""
    likelihood = getattr(problem.model, "likelihood", None)
    precision = getattr(likelihood, "precision", None)
    if problem.data is None:
        return []
    y = problem.data.y
    if not (getattr(likelihood, "learned", False) and isinstance(precision, Tensor) and y.is_floating_point()):
        return []
    value = float(precision.detach().max())
    step = torch.finfo(y.dtype).eps * float(y.abs().max())
    if step == 0 or not value > step**-2:
        return []
    return [
        f"the learned precision of the likelihood is {value:.2g}, a noise of {value**-0.5:.2g}, below the rounding of y, "
        f"{step:.2g}: the network reproduces y exactly; fix the precision, or learn it from fewer weights"
    ]
