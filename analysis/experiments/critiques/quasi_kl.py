"""The quasi-KL divergence of a singular approximation: what is left of a KL divergence when its infinite part is removed.

    q = N(0, A V A^T),  A [D, K] orthonormal,  V diagonal;      p = N(0, S),  S [D, D] of full rank

    QKL(q, p) = lim  KL(N(0, A V A^T + tau I) || p) + (D - K) / 2 ln tau          tau -> 0
              = [tr(S^-1 A V A^T) - D + ln |S| - ln |V|] / 2

For given A the minimum is V = (A^T S^-1 A)^-1 if that is diagonal, and then over A the K leading eigenvectors of S, with
V their eigenvalues: principal components. The minimum is [K - D + sum_(k > K) ln lambda_k] / 2.

For dropout of one weight, q = (1 - r) delta_m + r delta_0 and p = N(0, s^2), it is the limit of the Gaussian mixture:

    lim  KL(q_theta || p) + ln(2 pi e theta^2) / 2  =  (1 - r) m^2 / (2 s^2) + ln(2 pi s^2) / 2 - H(r)         theta -> 0

Hron, Matthews & Ghahramani (2018), https://arxiv.org/abs/1807.01969, section 4.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from pyro.distributions import LowRankMultivariateNormal, MultivariateNormal, Normal
from scipy.linalg import eigh, subspace_angles
from scipy.optimize import minimize
from torch import Tensor
from torch.distributions import kl_divergence

from pyrodrop.distributions import BernoulliMixture


def minimum(covariance: np.ndarray, rank: int) -> float:
    """The smallest quasi-KL divergence of a Gaussian of this rank."""
    below = eigh(covariance, eigvals_only=True)[: len(covariance) - rank]
    return float((rank - len(covariance) + np.log(below).sum()) / 2)


def leading(covariance: np.ndarray, rank: int) -> np.ndarray:
    """The leading eigenvectors, ``[D, rank]``."""
    return np.asarray(eigh(covariance)[1][:, -rank:])


def optimised(covariance: np.ndarray, rank: int, tau: float, seed: int) -> tuple[float, float]:
    """Minimise KL(N(0, F F^T + tau I) || N(0, S)) over F ``[D, rank]`` from a random start.

    Returns:
        The divergence plus (D - rank) / 2 ln tau, and the largest angle in radians between the columns of F and the leading
        eigenvectors of S.
    """
    size = len(covariance)
    target = MultivariateNormal(torch.zeros(size).double(), torch.tensor(covariance))
    noise = torch.full((size,), tau).double()

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        factor = torch.tensor(values.reshape(size, rank), requires_grad=True)
        value: Tensor = kl_divergence(LowRankMultivariateNormal(torch.zeros(size).double(), factor, noise), target)
        value.backward()  # type: ignore[no-untyped-call]
        assert factor.grad is not None
        return float(value.detach()), factor.grad.numpy().ravel()

    start = np.random.default_rng(seed).standard_normal(size * rank)
    best = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-9})
    angle = subspace_angles(best.x.reshape(size, rank), leading(covariance, rank)).max()
    return float(best.fun) + (size - rank) / 2 * math.log(tau), float(angle)


def dropout_limit(m: float, rate: float, scale: float) -> float:
    """The quasi-KL divergence of dropout of one weight from N(0, scale^2)."""
    entropy = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
    return (1 - rate) * m**2 / (2 * scale**2) + math.log(2 * math.pi * scale**2) / 2 - entropy


def dropout_kl(m: float, rate: float, theta: float, scale: float) -> float:
    """The KL divergence of the Bernoulli mixture with theta > 0, which is finite."""
    loc = torch.tensor([[m]], dtype=torch.float64)
    prior = Normal(torch.zeros_like(loc), scale * torch.ones_like(loc))
    return float(kl_divergence(BernoulliMixture(loc, rate, theta), prior.to_event(2)))
