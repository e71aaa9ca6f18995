"""Whether ELBOs compare: the same data, one convention, and the same constant left out.

At theta -> 0 the constant is K/2 [theta^2 / sigma^2 - 1 - ln(theta^2 / sigma^2)] for K weights of prior scale sigma; under
an improper prior it is one number a weight, or a unit for type A. So what has to agree is the convention of every site that
leaves something out, its count and its prior.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pyrodrop.devices import seeded
from pyrodrop.divergences import EXACT
from pyrodrop.elbo import site_conventions
from pyrodrop.fitted import Fit
from pyrodrop.models import NetworkModel


def why_not_comparable(fits: Mapping[str, Any]) -> str:
    """Empty if the ELBOs of all `Fit`s among `fits` compare with each other; else why not, by names of fits and sites."""
    chosen = {name: fit for name, fit in fits.items() if isinstance(fit, Fit)}
    if not chosen:
        return "none of these has an ELBO"
    without = [name for name, fit in chosen.items() if fit.data is None]
    if without:
        return f"an ELBO is of training data, which a loaded fit has not: {', '.join(map(repr, without))}"
    first, *others = chosen
    for other in others:
        reason = _pair(first, chosen[first], other, chosen[other])
        if reason:
            return reason
    return ""


def _pair(name: str, one: Fit, other_name: str, other: Fit) -> str:
    assert one.data is not None
    assert other.data is not None
    if not (one.data.y.shape == other.data.y.shape and torch.equal(one.data.y, other.data.y)):
        return f"the ELBOs of {name!r} and {other_name!r} are of different data"
    ours, theirs = _left_out(one), _left_out(other)
    if ours == theirs:
        return ""
    a, b = _difference(ours, theirs), _difference(theirs, ours)
    return f"the ELBO of {name!r} is {a}, that of {other_name!r} {b}: their difference means nothing"


def _left_out(fit: Fit) -> list[tuple[str, str, str]]:
    """What every inexact site leaves out, with the site last: (convention, of what, site)."""
    assert fit.data is not None
    x, y = fit.data.x[:1].to(fit.device), fit.data.y[:1].to(fit.device)
    with seeded(0, fit.device):
        conventions = site_conventions(fit.model, fit.guide, x, y)
    inexact = {site: meaning for site, meaning in conventions.items() if meaning.kind != EXACT.kind}
    return sorted((str(meaning), _of_what(fit, site), site) for site, meaning in inexact.items())


def _of_what(fit: Fit, site: str) -> str:
    if not isinstance(fit.model, NetworkModel) or site not in fit.model.priors:
        return f"{site} of its own"
    kind = getattr(fit.guide, "kind", "B")
    weight = fit.model.weight_sites()[site]
    count = weight.shape[1] if kind == "A" and weight.dim() > 1 else weight.numel()
    return f"{count} {'units' if kind == 'A' else 'weights'} under {fit.model.priors[site].describe()}"


def _difference(ours: list[tuple[str, str, str]], theirs: list[tuple[str, str, str]]) -> str:
    """The first entry that the other has not, in words."""
    for convention, of_what, site in ours:
        if (convention, of_what, site) not in theirs:
            return f"{convention} at {site!r} ({of_what})"
    if ours:
        convention, of_what, site = ours[0]
        return f"{convention} at {site!r} ({of_what})"
    return str(EXACT)
