"""The table of KL divergences KL(q || p) of a posterior q from a prior p over one weight tensor.

Values are in nats and summed over all elements of the weight. There are three cases. A pair can be registered, here with a
`Convention` that describes its accuracy, or in PyTorch. It can be refused, with the reason. For all other pairs with two
densities the value is ``log q(w) - log p(w)`` of one sample w from q, an unbiased estimate of the KL divergence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from pyro.distributions import Delta
from torch import Tensor
from torch.distributions import Distribution, Independent, kl_divergence, register_kl

from pyrodrop.distributions import PooledNormal, WeightDistribution
from pyrodrop.distributions.weight import elements
from pyrodrop.parts import Described

Kind: TypeAlias = Literal["exact", "approximate", "up_to_constant", "objective"]


@dataclass(frozen=True, repr=False)
class Convention(Described):
    """How to interpret the value of a KL divergence.

    Attributes:
        kind: ``exact``; ``approximate``, with an error of at most `error` nats per weight; ``up_to_constant``, which can
            only be compared with values that leave out the same constant; or ``objective``, a training objective that is not
            a bound on the evidence and cannot be compared with other values.
        detail: description of the constant, the approximation or the evidence that an ELBO bounds; usually empty if exact.
        error: bound on the error of an approximation, in nats per weight.
    """

    kind: Kind
    detail: str = ""
    error: float | None = None

    def describe(self) -> str:
        return f"{self.kind} ({self.detail})" if self.detail else self.kind


class NoDivergence(ValueError):
    """The KL divergence of a posterior from a prior does not exist or is not implemented."""


EXACT = Convention("exact")
EMPIRICAL_BAYES = "of the evidence at its largest over the prior's variances: empirical Bayes"
POINT = Convention("up_to_constant", "a point mass: K/2 ln(2 pi e theta^2) of K weights at theta -> 0 is left out")
_ORDER = ("exact", "approximate", "up_to_constant", "objective")

Tag = Convention | Callable[[Any, Any], Convention]
Reason = str | Callable[[Any, Any], str | None]
_ROUTES: dict[tuple[type, type], Callable[[Any, Any], Tensor]] = {}
_TAGS: dict[tuple[type, type], Tag] = {}
_REFUSALS: dict[tuple[type, type], Reason] = {}


def pair(q: type[Distribution], p: type[Distribution], tag: Tag) -> Callable[..., Any]:
    """Decorator that registers the KL divergence of `q` from a prior whose elements are `p`, and its convention.

    If `q` is a `WeightDistribution`, the decorated function is called with q itself and the base distribution of the prior,
    of the shape of the weight. Otherwise it is called with the base distributions of both.

    Args:
        q: class of the posterior.
        p: class of the elements of the prior, that is, of its base distribution without `Independent`.
        tag: the convention, or a function of (q, p) that returns it.
    """

    def register(kl: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
        _TAGS[q, p] = tag
        if issubclass(q, WeightDistribution):
            _ROUTES[q, p] = kl
        else:
            register_kl(q, p)(kl)
        return kl

    return register


def refuse(q: type[Distribution], p: type[Distribution], reason: Reason) -> None:
    """Register that `q` has no KL divergence from `p`.

    Args:
        q: class of the posterior.
        p: class of the elements of the prior.
        reason: the reason and an alternative, for the error message; or a function of (q, p) that returns this message, or
            None if the KL divergence exists for these parameters.
    """
    _REFUSALS[q, p] = reason


def divergence(q: Distribution, p: Distribution, value: Tensor | Callable[[], Tensor]) -> Tensor:
    """KL(q || p) of one weight in nats, from the table or by a Monte Carlo estimate from one sample.

    Args:
        q: posterior of a weight.
        p: prior of the same weight.
        value: a sample from `q`, or a function that draws one; used for the Monte Carlo estimate only.

    Returns:
        The KL divergence, of the batch shape of `q`.

    Raises:
        NoDivergence: the pair is refused, or it is not registered and one of the densities does not exist.
    """
    reason = _find(_REFUSALS, q, p)
    reason = reason(elements(q), elements(p)) if callable(reason) else reason
    if reason is not None:
        raise NoDivergence(f"no KL divergence of {_name(q)} from {_name(p)}: {reason}")
    try:
        return kl_divergence(q, p)
    except NotImplementedError:
        draw = value() if callable(value) else value
        try:
            return q.log_prob(draw) - p.log_prob(draw)
        except NotImplementedError as error:
            raise NoDivergence(f"no KL divergence of {_name(q)} from {_name(p)}: {error}") from error


def convention(q: Distribution, p: Distribution) -> Convention:
    """The convention of `divergence(q, p, ...)`. A Monte Carlo estimate counts as exact, because it is unbiased."""
    if isinstance(elements(q), Delta):
        return POINT
    tag = _find(_TAGS, q, p)
    if callable(tag):
        tag = tag(elements(q), elements(p))
    known = EXACT if tag is None else tag
    if isinstance(elements(p), PooledNormal):
        return replace(known, detail="; ".join(filter(None, [known.detail, EMPIRICAL_BAYES])))
    return known


def worst(conventions: Iterable[Convention]) -> Convention:
    """The convention of a sum of KL divergences: the least accurate kind, with all its details; exact if there are none."""
    each = dict.fromkeys([*conventions, EXACT])
    kind = max((c.kind for c in each), key=_ORDER.index)
    errors = [c.error for c in each if c.kind == kind and c.error is not None]
    details = "; ".join(c.detail for c in each if c.kind == kind and c.detail)
    return Convention(kind, details, max(errors, default=None))


@register_kl(WeightDistribution, Independent)
@register_kl(WeightDistribution, PooledNormal)
def _by_elements(q: WeightDistribution, p: Distribution) -> Tensor:
    kl = _find(_ROUTES, q, p)
    if kl is None or p.event_shape != q.event_shape:
        raise NotImplementedError(
            f"KL({_name(q)} || {_name(p)}) is not implemented for event shapes {q.event_shape} and {p.event_shape}"
        )
    return kl(q, elements(p))


def _find(table: dict[tuple[type, type], Any], q: Distribution, p: Distribution) -> Any:
    """The entry of the most specific classes of `q`, then of `p`; None if there is none."""
    for q_type in type(elements(q)).__mro__:
        for p_type in type(elements(p)).__mro__:
            if (q_type, p_type) in table:
                return table[q_type, p_type]
    return None


def _name(d: Distribution) -> str:
    return type(elements(d)).__name__
