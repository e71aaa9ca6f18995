"""The minimax rational fits in `pyrodrop.divergences.log_uniform_kl`, in 60-digit arithmetic.

``python -m pyrodrop.analysis.divergences.log_uniform_fit`` prints VALUE and SLOPE; it takes a minute.

With u = 1/(2 alpha), s = u/(3 + u) = sigmoid(-t - ln 6) and r = 1 - s,

    VALUE:   KL - log(1 + u/3)/2   ~  s P(r)/Q(r)      (limits: 5u/6 at u = 0, (gamma + ln 12)/2 at infinity)
    SLOPE:   -dKL/dt = sqrt(u) D(sqrt(u))  ~  s P(r)/Q(r)      (limits: u and 1/2)

deg P = N - 1, deg Q = N, with Q(0) = 1, and with P(0) fixed so that alpha -> 0 is exact. The largest relative error over
0 <= s <= 1 is minimised by Sanathanan-Koerner linearisation with Lawson reweighting: Sanathanan & Koerner (1963), Transfer
Function Synthesis as a Ratio of Two Complex Polynomials, https://doi.org/10.1109/TAC.1963.1105517; Lawson (1961),
Contributions to the Theory of Linear Least Maximum Approximation.
"""

from __future__ import annotations

from typing import Any

import mpmath as mp
import numpy as np

DEGREE, DIGITS = 10, 60


@mp.workdps(DIGITS)
def kl(t: Any) -> Any:
    """KL divergence in nats at t = ln alpha: u 2F2(1, 1; 3/2, 2; -u), by its asymptotic series for large u."""
    u = mp.exp(-mp.mpf(t)) / 2
    if u < 2e3:
        return u * mp.hyp2f2(1, 1, mp.mpf(1.5), 2, -u)
    return (mp.log(4 * u) + mp.euler) / 2 - mp.fsum(mp.rf(0.5, k) / (2 * k) / u**k for k in range(1, 20))


@mp.workdps(DIGITS)
def slope(t: Any) -> Any:
    """dKL/dt = -sqrt(u) D(sqrt(u)) = -u 1F1(1; 3/2; -u)."""
    u = mp.exp(-mp.mpf(t)) / 2
    return -u * mp.hyp1f1(1, mp.mpf(1.5), -u)


def fit(s: Any, ratio: Any, degree: int, steps: int = 60) -> Any:
    """A rational function of r = 1 - s that approximates `ratio`.

    Args:
        s: points in [0, 1].
        ratio: the function at these points.
        degree: degree of Q; P has one degree less.
        steps: number of reweightings.

    Returns:
        The largest relative error, and the coefficients of P and of Q, ascending in r.
    """
    powers = (1 - s)[:, None] ** np.arange(degree + 1)
    powers[:, 0] = mp.mpf(1)  # mpmath: 0 ** 0
    pin = ratio[np.argmax(s)]
    A = np.hstack([powers[:, 1:degree] / ratio[:, None], -powers[:, 1:]])
    b = 1 - pin / ratio
    weight, q, best = np.full(len(s), mp.mpf(1)), np.full(len(s), mp.mpf(1)), None
    for _ in range(steps):
        w = weight / q**2
        x = mp.lu_solve(mp.matrix((A.T @ (w[:, None] * A)).tolist()), mp.matrix((A.T @ (w * b)).tolist()))
        P, Q = np.array([pin, *x[: degree - 1]]), np.array([mp.mpf(1), *x[degree - 1 :]])
        q = powers @ Q
        error = abs(powers[:, :degree] @ P / q / ratio - 1)
        if min(q) > 0 and (best is None or max(error) < best[0]):
            best = max(error), P, Q
        weight = weight * (error / max(error) + mp.mpf("1e-3"))
        weight = weight / sum(weight)
    return best


def coefficients(degree: int = DEGREE) -> dict[str, tuple[Any, list[Any], list[Any]]]:
    """For VALUE and SLOPE: the largest relative error, and numerator and denominator, with the highest power of r first."""
    with mp.workdps(DIGITS):
        half = mp.mpf(0.5)
        t = [mp.mpf(x) for x in np.linspace(-18, 10, 400)]
        s = np.array([1 / (1 + mp.exp(x + mp.log(6))) for x in t] + [mp.mpf(0), mp.mpf(1)])
        value = [kl(x) - mp.log1p(mp.exp(-x) / 6) / 2 for x in t]
        rest = {
            "VALUE": (value, (5 * half, (mp.euler + mp.log(12)) / 2)),
            "SLOPE": ([-slope(x) for x in t], (mp.mpf(3), half)),
        }
        fits = {}
        for name, (f, ends) in rest.items():
            ratio = np.array([y / x for x, y in zip(s, f, strict=False)] + list(ends))
            error, numerator, denominator = fit(s, ratio, degree)
            fits[name] = error, list(numerator[::-1]), list(denominator[::-1])
        return fits


if __name__ == "__main__":
    for name, (error, *rows) in coefficients().items():
        print(f"# {name}: degree {DEGREE}, relative error {mp.nstr(error, 3)}")
        for row in rows:
            print("    (" + ", ".join(mp.nstr(x, 14) for x in row) + "),")
