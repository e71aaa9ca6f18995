"""A distribution of numbers, some of which are known only to lie in an interval from a lower end l to an upper end u."""

from __future__ import annotations

import math
from typing import Any

import pyro.distributions
import torch
from torch import Tensor
from torch.distributions import Independent, LogNormal, Normal


class Censored(pyro.distributions.Independent):  # type: ignore[misc]
    """Independent numbers with event shape ``[D]``, whose `log_prob` takes values ``[..., D]`` or their ends ``[..., 2 D]``.

        log p(l, u) = log p_0(l)               l = u, an exact observation
                      log(1 - F_0(l))          u = inf, right-censored
                      log F_0(u)               l = -inf, left-censored
                      log(F_0(u) - F_0(l))     otherwise                        every element separately

    F_0 is the cumulative distribution function of p_0. This assumes that the limits carry no other information about the
    value, given x. Probabilities are computed in float64, in the nearer tail, by the scaled complementary error function

        ln Phi(z) = ln erfcx(-z / sqrt 2) - z^2 / 2 - ln 2

    so that they and their gradients are accurate even where the probability underflows.

    Samples, mean, variance and support are those of the uncensored values. The first D ends are the lower ones; see
    `check_ends`. `censored` creates such a distribution.

    References:
        Kalbfleisch & Prentice (2002), The Statistical Analysis of Failure Time Data, section 3.2.
    """

    def log_prob(self, value: Tensor) -> Tensor:
        if value.shape[-1:] != ends_shape(self):
            return super().log_prob(value)  # type: ignore[no-any-return]
        lower, upper = value.chunk(2, -1)
        above, exact = upper.isinf(), lower == upper
        below = lower <= (0.0 if isinstance(self.base_dist, LogNormal) else -math.inf)
        low, high = torch.where(below, upper, lower), torch.where(above, lower, upper)  # so that all are finite
        log_density: Tensor = self.base_dist.log_prob(low)
        a, b = self._standard(low, high)
        tail = _log_below(torch.where(above, -a, b))
        within = ~(exact | above | below)
        between = _log_between(torch.where(within, a, 0.0), torch.where(within, b, 1.0))
        log_probability = torch.where(within, between, tail).to(log_density.dtype)
        return torch.where(exact, log_density, log_probability).sum(-1)

    def _standard(self, *values: Tensor) -> list[Tensor]:
        """Values on the scale of the standard normal distribution, in float64."""
        base: Any = self.base_dist
        loc, scale = base.loc.double(), base.scale.double()  # once, so that their gradients are added up in float64
        wide = [value.double().log() if isinstance(base, LogNormal) else value.double() for value in values]
        return [(value - loc) / scale for value in wide]


def _log_between(a: Tensor, b: Tensor) -> Tensor:
    """The logarithm of the standard normal probability between a < b."""
    mirrored = a + b > 0
    a, b = torch.where(mirrored, -b, a), torch.where(mirrored, -a, b)
    below_b = _log_below(b)
    return below_b + (-torch.expm1(_log_below(a) - below_b)).log()


def _log_below(z: Tensor) -> Tensor:
    """The logarithm of the standard normal probability below z.

    `torch.special.log_ndtr` cannot be mapped by `torch.vmap`, and its gradient overflows far out.
    """
    far = z < -1
    u, v = torch.where(far, z, -1.0) / -math.sqrt(2), torch.where(far, 0.0, z) / math.sqrt(2)
    return torch.where(far, torch.special.erfcx(u).log() - u.square() - math.log(2), torch.log1p(-torch.erfc(v) / 2))


def censored(distribution: Any) -> Censored:
    """`distribution` as `Censored`, whose `log_prob` also takes the ends of intervals.

    Raises:
        ValueError: `distribution` is not one of independent Gaussian or log-normal numbers with event shape ``[D]``.
    """
    base = distribution.base_dist if isinstance(distribution, Independent) else distribution
    if not isinstance(base, Normal | LogNormal) or len(distribution.event_shape) != 1:
        raise ValueError(
            "censored observations need independent numbers y [N, D] with a Gaussian or log-normal distribution, of whose "
            "cumulative distribution function both tails and all derivatives are known; got "
            f"{type(base).__name__} with event shape {list(distribution.event_shape)}"
        )
    return Censored(base, 1)


def ends_shape(distribution: Any) -> torch.Size:
    """The event shape of observations: ``[2 D]`` for the ends of `Censored` numbers, otherwise that of a sample."""
    shape: torch.Size = distribution.event_shape
    return torch.Size([2 * shape[0]]) if isinstance(distribution, Censored) else shape


def check_ends(y: Tensor) -> None:
    """Raise a ValueError unless y ``[N, 2 D]``, lower ends first, are intervals with at least one finite end each."""
    lower, upper = y.chunk(2, -1)
    one_end = lower.isfinite() & (upper > -math.inf) | upper.isfinite() & (lower < math.inf)
    wrong = ~(one_end & (lower <= upper))
    if bool(wrong.any()):
        row, column = (int(place) for place in wrong.nonzero()[0])
        raise ValueError(
            "y must be finite, or have a lower and an upper end of each observation, the lower one not above the other, "
            "equal for an exact one, and one of them at most open, -inf below or inf above; got "
            f"{float(lower[row, column]):g} and {float(upper[row, column]):g} in row {row}"
        )


def exact_values(y: Tensor, what: str) -> Tensor:
    """The values ``[N, D]`` of pairs of equal ends ``[N, 2 D]``; a ValueError if some are censored."""
    lower, upper = y.chunk(2, -1)
    rows = int((lower != upper).any(-1).sum())
    if rows:
        raise ValueError(
            f"{what} needs exact observations; got a y with {rows} censored of {len(y)} rows: leave these out, or use log "
            "densities, which are those of the intervals"
        )
    return lower


def finite_ends(y: Tensor) -> Tensor:
    """A finite end of each interval, ``[N, 2 D]`` to ``[N, D]``: the upper end, or the lower if the upper is infinite."""
    lower, upper = y.chunk(2, -1)
    return torch.where(upper.isinf(), lower, upper)


def middles(y: Tensor) -> Tensor:
    """A number for every pair of ends, ``[N, 2 D]`` to ``[N, D]``: the middle of an interval, or its only finite end."""
    lower, upper = y.chunk(2, -1)
    low, high = torch.where(lower.isinf(), upper, lower), finite_ends(y)
    return low + (high - low) / 2
