"""The table of divergences KL(q || p) between a posterior and a prior over one weight.

Every number is in nats, summed over all weights. A pair is registered, and says how far its number can be trusted; or it
is refused, with the reason; or, where both densities exist, it is one draw's ``log q(w) - log p(w)``, whose mean is the
divergence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from pyro.distributions import Delta
from torch import Tensor
from torch.distributions import Distribution, Independent, kl_divergence, register_kl

from pyrodrop.distributions import PooledNormal, WeightDistribution


@dataclass(frozen=True)
class Convention:
    """What a divergence's number means.

    Attributes:
        kind: ``exact``; ``approximate``, off by at most `error` nats per weight; ``up_to_constant``, so that it can
            be compared only with divergences that leave out the same constant; or ``objective``, what training minimised,
            which is no bound and is compared with nothing.
        detail: the constant or the approximation, in words; empty if exact.
        error: bound on an approximation's error, in nats per weight.
    """

    kind: Literal["exact", "approximate", "up_to_constant", "objective"]
    detail: str = ""
    error: float | None = None

    def __str__(self) -> str:
        return f"{self.kind} ({self.detail})" if self.detail else self.kind


class NoDivergence(ValueError):
    """A posterior and a prior between which there is no divergence to minimise."""


EXACT = Convention("exact")
POINT = Convention("up_to_constant", "a point mass: K/2 ln(2 pi e theta^2) of K weights at theta -> 0 is left out")
_ORDER = ("exact", "approximate", "up_to_constant", "objective")

Tag = Convention | Callable[[Any, Any], Convention]
Reason = str | Callable[[Any, Any], str | None]
_ROUTES: dict[tuple[type, type], Callable[[Any, Any], Tensor]] = {}
_TAGS: dict[tuple[type, type], Tag] = {}
_REFUSALS: dict[tuple[type, type], Reason] = {}


def pair(q: type[Distribution], p: type[Distribution], tag: Tag) -> Callable[..., Any]:
    """Register the divergence of `q` from a prior whose elements are `p`, and how far it can be trusted.

    A `WeightDistribution` is handed the prior's elements with the weight's shape; any other `q` its own elements.
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
    """Register that there is no divergence of `q` from `p`, and what to do instead (None from a function: there is)."""
    _REFUSALS[q, p] = reason


def divergence(q: Distribution, p: Distribution, value: Tensor | Callable[[], Tensor]) -> Tensor:
    """KL(q || p) of a weight, by the table or by Monte Carlo.

    Args:
        q: posterior of a weight.
        p: prior of the same weight.
        value: a draw from `q`, or a function that makes one; used by the Monte Carlo form only.

    Raises:
        NoDivergence: the pair is refused, or has neither a registered form nor two densities.
    """
    reason = _find(_REFUSALS, q, p)
    reason = reason(_elements(q), _elements(p)) if callable(reason) else reason
    if reason is not None:
        raise NoDivergence(f"no divergence of {_name(q)} from {_name(p)}: {reason}")
    try:
        return kl_divergence(q, p)
    except NotImplementedError:
        draw = value() if callable(value) else value
        try:
            return q.log_prob(draw) - p.log_prob(draw)
        except NotImplementedError as error:
            raise NoDivergence(f"no divergence of {_name(q)} from {_name(p)}: {error}") from error


def convention(q: Distribution, p: Distribution) -> Convention:
    """How far `divergence(q, p, ...)` can be trusted. A Monte Carlo divergence counts as exact: its mean is."""
    if isinstance(_elements(q), Delta):
        return POINT
    tag = _find(_TAGS, q, p)
    if callable(tag):
        return tag(_elements(q), _elements(p))
    return EXACT if tag is None else tag


def worst(conventions: Iterable[Convention]) -> Convention:
    """The least trustworthy of several: what their sum can be trusted for. Exact for none."""
    ranked = sorted(dict.fromkeys(conventions), key=lambda c: -_ORDER.index(c.kind))
    if not ranked:
        return EXACT
    same = [c for c in ranked if c.kind == ranked[0].kind]
    if len(same) == 1:
        return same[0]
    errors = [c.error for c in same if c.error is not None]
    return Convention(same[0].kind, "; ".join(c.detail for c in same), max(errors) if errors else None)


@register_kl(WeightDistribution, Independent)
@register_kl(WeightDistribution, PooledNormal)
def _by_elements(q: WeightDistribution, p: Distribution) -> Tensor:
    kl = _find(_ROUTES, q, p)
    if kl is None or p.event_shape != q.event_shape:
        raise NotImplementedError(f"no KL({_name(q)} || {_name(p)}) of shapes {q.event_shape}, {p.event_shape}")
    return kl(q, _elements(p))


def _find(table: dict[tuple[type, type], Any], q: Distribution, p: Distribution) -> Any:
    """The entry of the nearest classes of `q`, then of `p`; None if there is none."""
    for q_type in type(_elements(q)).__mro__:
        for p_type in type(_elements(p)).__mro__:
            if (q_type, p_type) in table:
                return table[q_type, p_type]
    return None


def _elements(d: Distribution) -> Distribution:
    return d.base_dist if isinstance(d, Independent) else d


def _name(d: Distribution) -> str:
    return type(_elements(d)).__name__
