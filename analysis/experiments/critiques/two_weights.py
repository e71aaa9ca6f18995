"""A linear regression with two weights: the exact posterior and every approximation, in closed form or by a small search.

    y ~ N(X w, s^2 I),   w ~ N(0, I)                      X [N, 2]
    exact        w | y ~ N(L^-1 X^T y / s^2, L^-1),       L = I + X^T X / s^2
    dropout      w = m * z,   z_k ~ Bernoulli(1 - r):     four atoms
                 m maximises E_q[ln p(y | w)] - (1 - r) |m|^2 / 2, so, with k = 1 - r, G = X^T X and y in units of s,
                 (I + [k G + r diag(G)] / s^2) m = X^T y / s^2
    mixture      w = m * z + theta e                      m, theta (and r) maximise the ELBO
    factorised   variances 1 / L_kk at the exact mean

An ELBO is ln p(y) less the KL divergence from the posterior.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch
from pyro.distributions import Normal
from scipy.optimize import minimize
from scipy.stats import multivariate_normal
from torch.distributions import kl_divergence

from pyrodrop.distributions import BernoulliMixture

TRUE = np.array([1.0, 0.5])
NOISE = 0.5


@dataclass(frozen=True)
class Mixture:
    """A mixture of Gaussians over the two weights, with equal covariances; atoms if the covariance is 0."""

    weights: np.ndarray  # [C]
    means: np.ndarray  # [C, 2]
    covariance: np.ndarray  # [2, 2]

    @property
    def mean(self) -> np.ndarray:
        return np.asarray(self.weights @ self.means)

    @property
    def total(self) -> np.ndarray:
        """The covariance of the whole mixture."""
        away = self.means - self.mean
        return np.asarray(self.covariance + (self.weights[:, None] * away).T @ away)

    def log_density(self, w: np.ndarray) -> float:
        """Log density at w; minus infinity for atoms, which are elsewhere."""
        if not self.covariance.any():
            return -math.inf
        parts = [multivariate_normal(mean, self.covariance).logpdf(w) for mean in self.means]
        return float(np.logaddexp.reduce(np.log(self.weights) + np.array(parts)))

    def along(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """The mixture of f = x.w: weights, means and the standard deviation of the components."""
        return self.weights, self.means @ x, math.sqrt(float(x @ self.covariance @ x))


def sample(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """n observations; the two inputs have correlation .8."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 2)) @ np.linalg.cholesky([[1.0, 0.8], [0.8, 1.0]]).T
    return x, x @ TRUE + NOISE * rng.standard_normal(n)


def exact(x: np.ndarray, y: np.ndarray) -> Mixture:
    """The posterior."""
    covariance = np.linalg.inv(np.eye(2) + x.T @ x / NOISE**2)
    return Mixture(np.ones(1), (covariance @ x.T @ y / NOISE**2)[None], covariance)


def log_evidence(x: np.ndarray, y: np.ndarray) -> float:
    """ln p(y)."""
    return float(multivariate_normal(np.zeros(len(y)), x @ x.T + NOISE**2 * np.eye(len(y))).logpdf(y))


def dropout(x: np.ndarray, y: np.ndarray, rate: float) -> Mixture:
    """The optimal MC dropout with this rate."""
    gram = x.T @ x
    system = np.eye(2) + ((1 - rate) * gram + rate * np.diag(np.diag(gram))) / NOISE**2
    return _masked(np.linalg.solve(system, x.T @ y / NOISE**2), rate, 0.0)


def factorised(x: np.ndarray, y: np.ndarray) -> Mixture:
    """The optimal mean field."""
    posterior = exact(x, y)
    return Mixture(np.ones(1), posterior.means, np.diag(1 / np.diag(np.linalg.inv(posterior.covariance))))


def thickened(x: np.ndarray, y: np.ndarray, rate: float | None) -> tuple[Mixture, float, float, float]:
    """The optimal mixture with theta > 0, and a learned rate if `rate` is None.

    Returns:
        The mixture, its ELBO, theta and the rate.
    """

    def unpacked(values: np.ndarray) -> tuple[np.ndarray, float, float]:
        rate_of = 1 / (1 + math.exp(-values[3])) if rate is None else rate
        return values[:2], math.exp(values[2]), rate_of

    def loss(values: np.ndarray) -> float:
        return -elbo(x, y, *unpacked(values))

    starts = [np.array([*exact(x, y).mean, math.log(0.1), logit]) for logit in (-1.0, -4.0)]
    options = {"xatol": 1e-7, "fatol": 1e-9, "maxiter": 4000, "maxfev": 4000}
    best = min(
        (minimize(loss, start, method="Nelder-Mead", options=options) for start in starts), key=lambda found: found.fun
    )
    m, theta, rate_of = unpacked(best.x)
    return _masked(m, rate_of, theta), -float(best.fun), theta, rate_of


def elbo(x: np.ndarray, y: np.ndarray, m: np.ndarray, theta: float, rate: float) -> float:
    """ELBO of the mixture in nats, with the exact KL divergence of `pyrodrop.divergences`."""
    keep = 1 - rate
    variance = keep * rate * m**2 + theta**2
    squares = ((y - x @ (keep * m)) ** 2).sum() + (x**2).sum(0) @ variance
    fit = -squares / (2 * NOISE**2) - len(y) * math.log(2 * math.pi * NOISE**2) / 2
    loc = torch.tensor(m[None])
    prior = Normal(torch.zeros_like(loc), torch.ones_like(loc)).to_event(2)
    return float(fit) - float(kl_divergence(BernoulliMixture(loc, rate, theta), prior))


def divergence(q: Mixture, posterior: Mixture) -> float:
    """KL divergence of one Gaussian from another in nats."""
    precision, away = np.linalg.inv(posterior.covariance), q.mean - posterior.mean
    logs = np.linalg.slogdet(posterior.covariance)[1] - np.linalg.slogdet(q.covariance)[1]
    return float(np.trace(precision @ q.covariance) - len(away) + logs + away @ precision @ away) / 2


def distance(posterior: Mixture, q: Mixture, w: np.ndarray) -> float:
    """Distance of the nearest component's mean of q from w, in standard deviations of the posterior."""
    precision = np.linalg.inv(posterior.covariance)
    return min(math.sqrt(float((mean - w) @ precision @ (mean - w))) for mean in q.means)


def modes(q: Mixture, x: np.ndarray) -> int:
    """Number of local maxima of the density of f = x.w, or of different atoms."""
    weights, means, sd = q.along(x)
    if sd == 0:
        return len(np.unique(np.round(means, 12)))
    grid = np.linspace(means.min() - 4 * sd, means.max() + 4 * sd, 20_001)
    density = (weights * np.exp(-(((grid[:, None] - means) / sd) ** 2) / 2)).sum(1)
    return int(((density[1:-1] > density[:-2]) & (density[1:-1] > density[2:])).sum())


def _masked(m: np.ndarray, rate: float, theta: float) -> Mixture:
    masks = np.array(list(itertools.product((1.0, 0.0), repeat=len(m))))
    weights = np.prod(np.where(masks > 0, 1 - rate, rate), 1)
    return Mixture(weights, masks * m, theta**2 * np.eye(len(m)))
