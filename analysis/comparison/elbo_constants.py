"""Whether ELBOs can be compared: the same data, and the same constants left out.

    theta -> 0, points       K/2 ln(2 pi e theta^2)          for K weights, under any prior
    an improper prior        one constant per weight         or per input unit, for type A
    a user's regulariser     a constant that we do not know  the same for the same noise and regulariser

So two fits must agree in the `Convention`, which describes the constant, and in the number of times that it is left out
(`WeightDistribution.constant_left_out` of the posterior). Data are the same if their fingerprints are equal
(`pyrodrop.data.Dataset.fingerprint`): x, y and their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pyrodrop.data import Dataset, Keywords
from pyrodrop.devices import seeded
from pyrodrop.distributions.weight import ConstantLeftOut
from pyrodrop.divergences import ATOMS, EXACT, POINT
from pyrodrop.models import NetworkModel
from pyrodrop.models.network import mixes_examples
from pyrodrop.reparam.lazy import LazyDistribution
from pyrodrop.training.elbo import Factor, site_factors
from pyrodrop.training.result import Fit, rows_of
from pyrodrop.training.rows import arguments_of


class LeftOut(NamedTuple):
    """What the KL divergences of some sites leave out, or how they are approximate.

    Attributes:
        what: identifies the constant: values that must be equal for two fits, besides the number; functions by their id.
    """

    what: tuple[Any, ...]
    number: float
    unit: str
    convention: str
    site: str

    @property
    def key(self) -> tuple[tuple[Any, ...], float]:
        """A key that is equal for two fits if the constants cancel in the difference of their ELBOs."""
        return self.what, round(self.number, 6)


def why_not_comparable(fits: Mapping[str, Any], train: Dataset | None = None) -> str:
    """The reason why the ELBOs of the `Fit`s among `fits` cannot be compared.

    Args:
        fits: runs by name; those that are not a `Fit` are ignored.
        train: the training data of loaded fits, which do not contain them.

    Returns:
        The reason, with the names of fits and sites; empty if the ELBOs can be compared.
    """
    chosen = {name: fit for name, fit in fits.items() if isinstance(fit, Fit)}
    if not chosen:
        return "none of these fits has an ELBO"
    without = [name for name, fit in chosen.items() if training_data(fit, fits, train) is None]
    if without:
        return (
            "an ELBO needs the training data, which a loaded fit, a reading, and a fit that read them do not hold; pass the "
            f"data that it was trained on, as compare(train=...), for {', '.join(map(repr, without))}"
        )
    first, *others = chosen
    for other in others:
        reason = _pair(first, chosen[first], other, chosen[other], fits, train)
        if reason:
            return reason
    return ""


def different_priors(fits: Mapping[str, Any]) -> str:
    """A note if the networks of two `Fit`s have different priors, between which ELBOs do not choose; empty otherwise."""
    described = {
        name: {site: prior.describe() for site, prior in fit.model.priors.items()}
        for name, fit in fits.items()
        if isinstance(fit, Fit) and isinstance(fit.model, NetworkModel)
    }
    for name, priors in list(described.items())[1:]:
        first, of_first = next(iter(described.items()))
        site = next((site for site in {**of_first, **priors} if of_first.get(site) != priors.get(site)), None)
        if site is not None:
            one, other = of_first.get(site, "no prior"), priors.get(site, "no prior")
            return (
                f"{first!r} and {name!r} have different priors ({site}: {one}, {other}): a lower bound of the "
                "evidence does not choose between them; compare held-out log densities, compare(fits, data)"
            )
    return ""


def training_data(fit: Fit, fits: Mapping[str, Any], train: Dataset | None) -> Dataset | Keywords | None:
    """The training data of a fit.

    Args:
        fit: the fit. Its own data are returned if it has them; a loaded fit has none.
        fits: other fits, by name, whose data may be the same.

    Returns:
        For a loaded fit, the data with its fingerprint, or None if there are none; `train` if it has no fingerprint.
    """
    if isinstance(fit.data, Keywords):
        return fit.data
    rows = rows_of(fit, "compare")
    if rows is not None:
        return rows
    others = [other.data for other in fits.values() if isinstance(other, Fit)]
    known = [data for data in (train, *others) if isinstance(data, Dataset)]
    if fit.fingerprint is None:  # made by hand, or saved before fits stored fingerprints: trust the user
        return train
    return next((data for data in known if data.fingerprint == fit.fingerprint), None)


def _pair(name: str, fit: Fit, other_name: str, other: Fit, fits: Mapping[str, Any], train: Dataset | None) -> str:
    ours, theirs = training_data(fit, fits, train), training_data(other, fits, train)
    assert ours is not None
    assert theirs is not None
    if ours.fingerprint != theirs.fingerprint:
        return f"the ELBOs of {name!r} and {other_name!r} are for different data"
    mine, its = _left_out(fit, ours), _left_out(other, theirs)
    if {entry.key for entry in mine} == {entry.key for entry in its}:
        return ""
    a, b = _difference(mine, its), _difference(its, mine)
    return f"the ELBO of {name!r} is {a}, that of {other_name!r} {b}: their difference has no meaning"


def _left_out(fit: Fit, data: Dataset | Keywords) -> list[LeftOut]:
    """The constants that the factors leave out, summed over sites; the mean over the members of an ensemble."""
    few = data
    if isinstance(data, Dataset) and isinstance(fit.model, NetworkModel) and not mixes_examples(fit.model, data.x):
        few = data.first(1)
    call = arguments_of(few, fit.device)
    with seeded(0, fit.device), fit.as_trained():
        members = site_factors(fit.model, fit.guide, *call.args, **call.kwargs)
    left_out: dict[tuple[Any, ...], LeftOut] = {}
    for factors in members:
        for site, factor in factors.items():
            if factor.convention.kind == EXACT.kind:
                continue
            what, count, unit = _of_site(factor)
            before = left_out.get(what, LeftOut(what, 0.0, unit, str(factor.convention), site))
            left_out[what] = before._replace(number=before.number + count / len(members))
    return sorted(left_out.values(), key=lambda entry: entry.convention)


def _of_site(factor: Factor) -> tuple[tuple[Any, ...], int, str]:
    """What identifies the constant, the number of times that it is left out, and the unit: weights or units."""
    q = factor.q.base if isinstance(factor.q, LazyDistribution) else factor.q
    convention = factor.convention
    constant: ConstantLeftOut | None = getattr(q, "constant_left_out", None)
    number, unit, same = constant or ConstantLeftOut((q.batch_shape + q.event_shape).numel())
    if convention in (ATOMS, POINT):  # one constant
        return ("theta -> 0",), (q.batch_shape + q.event_shape).numel(), "weights"
    return (convention, unit, *same), number, unit


def _difference(ours: list[LeftOut], theirs: list[LeftOut]) -> str:
    """A description of the first entry of `ours` that is not in `theirs`, or of the first entry."""
    known = {entry.key for entry in theirs}
    for entry in [*(entry for entry in ours if entry.key not in known), *ours]:
        return f"{entry.convention}, of {entry.number:g} {entry.unit}, at {entry.site!r}"
    return str(EXACT)
