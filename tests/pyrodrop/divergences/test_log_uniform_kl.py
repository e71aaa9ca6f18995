"""The log-uniform divergence and its gradient within their stated errors, against mpmath and against Dawson's function."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath as mp
import pytest
import torch
from torch import Tensor

from pyrodrop.divergences.log_uniform import log_uniform_kl

EULER = 0.5772156649015329
GRID = torch.linspace(-20, 20, 401, dtype=torch.float64)
Function = Callable[[Tensor], Tensor]


def hypergeometric(t: float) -> float:
    """u 2F2(1, 1; 3/2, 2; -u), for large u by its asymptotic series."""
    with mp.workdps(40):
        u = mp.exp(-mp.mpf(t)) / 2
        if u < 2000:
            return float(u * mp.hyp2f2(1, 1, mp.mpf(3) / 2, 2, -u))
        return float((mp.log(4 * u) + mp.euler) / 2 - mp.fsum(mp.rf(0.5, k) / (2 * k) / u**k for k in range(1, 20)))


def slope(t: float) -> float:
    """-u 1F1(1; 3/2; -u)."""
    with mp.workdps(40):
        u = mp.exp(-mp.mpf(t)) / 2
        return float(-u * mp.hyp1f1(1, mp.mpf(3) / 2, -u))


@pytest.fixture(scope="module")
def reference() -> tuple[Tensor, Tensor, Tensor]:
    """Value and slope at points that float32 holds exactly."""
    t = GRID.float().double()
    values = [[hypergeometric(x), slope(x)] for x in t.tolist()]
    return t, *torch.tensor(values, dtype=torch.float64).unbind(1)  # type: ignore[return-value]


def value_and_slope(t: Tensor, f: Function = log_uniform_kl) -> tuple[Tensor, Tensor]:
    t = t.clone().requires_grad_()
    y = f(t)
    return y.detach(), torch.autograd.grad(y.sum(), t)[0]


def test_the_reference_is_the_integral() -> None:
    """2F2 and the quadrature of Dawson's function by its error-function form agree."""
    for t in (-8.5, -8.0, -4.0, 0.0, 2.0):  # either side of where the series takes over, t = -8.3
        upper = mp.sqrt(mp.exp(-t) / 2)
        integral = mp.quad(lambda s: mp.sqrt(mp.pi) / 2 * mp.exp(-(s**2)) * mp.erfi(s), [0, upper])
        assert hypergeometric(t) == pytest.approx(float(2 * integral), rel=1e-12)


@pytest.mark.parametrize(("dtype", "value", "gradient"), [(torch.float64, 1e-10, 1e-9), (torch.float32, 2e-6, 1e-6)])
def test_against_mpmath(reference: tuple[Tensor, ...], dtype: torch.dtype, value: float, gradient: float) -> None:
    t, kl, slopes = reference
    y, g = value_and_slope(t.to(dtype))
    assert y.dtype == g.dtype == dtype
    assert float((y - kl).abs().max()) < value
    assert float((g - slopes).abs().max()) < gradient


def test_relative_errors_are_those_stated(reference: tuple[Tensor, ...]) -> None:
    """Also at the right end, where the value is 1e-9, so that an absolute error is meaningless."""
    t, kl, slopes = reference
    y, g = value_and_slope(t)
    assert float((y / kl - 1).abs().max()) < 2e-11
    assert float((g / slopes - 1).abs().max()) < 1.4e-9


@pytest.mark.parametrize(("alpha", "kl"), [(0.1, 1.724138), (1.0, 0.426686), (10.0, 0.049178)])
def test_known_values(alpha: float, kl: float) -> None:
    assert float(log_uniform_kl(torch.tensor(alpha, dtype=torch.float64).log())) == pytest.approx(kl, abs=5e-7)


def test_derivatives_are_consistent() -> None:
    t = torch.tensor([-30.0, -12, -5, -2, -0.1, 0, 0.3, 1, 4, 9, 30], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(log_uniform_kl, t, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(log_uniform_kl, t, check_batched_grad=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_finite_everywhere(dtype: torch.dtype) -> None:
    t = torch.tensor([-1e30, -1e4, -700, -100, 100, 700, 1e4, 1e30], dtype=dtype).requires_grad_()
    y = log_uniform_kl(t)
    (g,) = torch.autograd.grad(y.sum(), t, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), t)
    limit = (0.5 * (EULER + math.log(2) - t[:4].double())).detach()
    assert bool(torch.isfinite(torch.stack([y, g, h])).all())
    assert float((y.detach()[:4] / limit - 1).abs().max()) <= 4 * torch.finfo(dtype).eps
    assert bool((g[:4] == -0.5).all())
    assert bool((y[4:] >= 0).all())
    assert bool((y[4:] < 1e-40).all())
