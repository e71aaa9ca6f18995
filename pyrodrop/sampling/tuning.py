"""What tuning learns from all chains together: step size, trajectory length and mass matrix.

Step size: stochastic approximation (Robbins & Monro 1951, https://doi.org/10.1214/aoms/1177729586) of the ln eps at which
the harmonic mean over chains of the acceptance probability a meets a target, by steps of (a - target) / sqrt(n). The steps
of Stan's dual averaging are about 20 times as large, and make ln eps oscillate when a is a mean over many chains.

Trajectory length: a transition follows the trajectory for the time h T, where h in (0, 1) is the same for all chains and
follows the van der Corput sequence. T climbs the change in the estimator of the expected square (ChEES),

    ChEES = E[(|q' - E q'|^2 - |q - E q|^2)^2] / 4
    dChEES / d ln T ~ h T sum_c a_c (|q'_c - m'|^2 - |q_c - m|^2) (q'_c - m') . p'_c / sum_c a_c

where m and m' are means over chains and norms are those of the mass matrix, |z|^2 = z^T M z (Hoffman, Radul & Sountsov 2021,
An Adaptive-MCMC Scheme for Setting Trajectory Lengths in Hamiltonian Monte Carlo,
https://proceedings.mlr.press/v130/hoffman21a.html). With one chain q = m, so that this gradient is 0; there must be at
least 4.

Mass matrix of networks: M^-1 is the variance of every coordinate over chains and recent transitions. Chains in different
modes widen it; with the mass matrix of programs, chains of a 2-50-1 network mix more slowly.

Mass matrix of programs: M^-1 is such that M^-1 dU/dq has the covariance of q, which makes the Fisher divergence between
the posterior and a Gaussian least, first for the diagonal and then for the remaining low rank,

    M^-1 = S (1 + V (Lambda - 1) V^T) S,     s_i^2 = sd(q_i) / sd(dU/dq_i)

V and Lambda are eigenvectors and eigenvalues outside of [1/2, 2] of the geometric mean of the covariance of q / s and the
inverse of that of s dU/dq (Seyboldt, Carlson & Carpenter 2026, https://arxiv.org/abs/2603.18845). For a Gaussian posterior
both are exact for any points, also before the chains have reached it. So deviations are from the mean of each chain, and
chains in different modes do not widen them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

_CLIP = 3.0  # standard deviations, of the steps of ln T
_RATE = 0.05  # of these steps
_LOW_RANK = math.log(2)  # least size of the logarithm of an eigenvalue
_FAR = 10.0  # median deviations of energy
_FORGOTTEN = 0.02  # part of the moments of a network's chains, at every transition


class Averaged:
    """A positive number that is learned by steps of its logarithm.

    Args:
        initial: number to start from.
        power: the n-th step enters the average with the weight n^-power.
    """

    def __init__(self, initial: float, power: float) -> None:
        self._steps, self._power = 0, power
        self._log = self._log_mean = math.log(initial)

    @property
    def now(self) -> float:
        """The number to use while learning."""
        return math.exp(self._log)

    @property
    def averaged(self) -> float:
        """A weighted average of the numbers so far, to use after learning."""
        return math.exp(self._log_mean)

    def rescale(self, factor: float) -> None:
        """Multiply by a factor, as when the mass matrix changes."""
        self._log += math.log(factor)
        self._log_mean += math.log(factor)

    def _move(self, log: float) -> None:
        self._log = log
        self._log_mean += max(1, self._steps) ** -self._power * (log - self._log_mean)


class StepSize(Averaged):
    """Stochastic approximation of ln eps: every transition adds (acceptance - target) / sqrt(n).

    Args:
        initial: step size to start from.
        target: acceptance probability.
    """

    def __init__(self, initial: float, target: float) -> None:
        super().__init__(initial, 0.75)
        self.target = target

    def learn(self, accepted: float) -> None:
        """Update by the acceptance probability of a transition."""
        self._steps += 1
        self._move(self._log + (accepted - self.target) / math.sqrt(self._steps))


class TrajectoryLength(Averaged):
    """Gradient ascent of ln T on ChEES, with steps scaled by the gradient's root mean square (Adam without momentum)."""

    def __init__(self, initial: float) -> None:
        super().__init__(initial, 0.5)
        self._square = 0.0

    def learn(self, gradient: float, shortest: float, longest: float) -> None:
        """Make one step of ascent by the gradient of ChEES by ln T, within bounds of T."""
        log = self._log
        if 0 < gradient * gradient < math.inf:
            self._steps += 1
            self._square = 0.95 * self._square + 0.05 * gradient**2
            scale = math.sqrt(self._square / (1 - 0.95**self._steps))
            log += _RATE * max(-_CLIP, min(_CLIP, gradient / scale))
        self._move(min(max(log, math.log(shortest)), math.log(longest)))


def chees_gradient(
    q: Tensor,
    proposed: Tensor,
    momentum: Tensor,
    metric: Metric,
    accepted: Tensor,
    time: float,
) -> float:
    """The estimate of dChEES / d ln T.

    Args:
        q, proposed, momentum: of every chain before the trajectory, and after it, ``[C, D]``.
        metric: of M.
        accepted: acceptance probability of every chain, ``[C]``; 0 where the trajectory diverged.
        time: h T.
    """
    weight = (accepted / accepted.sum().clamp_min(1e-9)).to(q)
    sound = accepted > 0
    proposed, momentum = (torch.where(sound[:, None], value, torch.zeros_like(value)) for value in (proposed, momentum))
    before, after = q - q.mean(0), proposed - weight @ proposed
    lengths = (metric.root(each / metric.scale, -0.5).square().sum(1) for each in (after, before))
    change = next(lengths) - next(lengths)
    return time * float((weight * change * (after * momentum).sum(1)).sum())


class Metric(NamedTuple):
    """M^-1 = S (1 + V (Lambda - 1) V^T) S: s ``[D]``, V ``[D, K]`` and Lambda ``[K]``, or s alone."""

    scale: Tensor
    vectors: Tensor | None = None
    values: Tensor | None = None

    def root(self, z: Tensor, power: float) -> Tensor:
        """(1 + V (Lambda - 1) V^T)^power z, for z ``[..., D]``."""
        if self.vectors is None or self.values is None:
            return z
        return z + ((z @ self.vectors) * (self.values**power - 1)) @ self.vectors.T

    def velocity(self, p: Tensor) -> Tensor:
        """M^-1 p."""
        return self.scale * self.root(self.scale * p, 1.0)

    def log_size(self) -> float:
        """The logarithm of the determinant of M^-1, per dimension."""
        low = 0.0 if self.values is None else float(self.values.log().sum()) / len(self.scale)
        return 2 * float(self.scale.log().mean()) + low

    def to(self, like: Tensor) -> Metric:
        """In the dtype of a tensor, and on its device."""
        return Metric(*(None if tensor is None else tensor.to(like) for tensor in self))  # type: ignore[arg-type]


class Fisher:
    """The metric from q and dU/dq within chains, in the last two windows of transitions.

    Args:
        rank: K, the most eigenvalues to use.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._points: list[tuple[Tensor, Tensor]] = []
        self._turned = 0  # of these points, those that were there at the end of the last window

    def learn(self, q: Tensor, gradient: Tensor, energy: Tensor) -> None:
        """Account for positions and gradients ``[C, D]`` of the chains whose energy ``[C]`` is not far above the others'."""
        above = energy.double() - energy.double().median()
        self.near: Tensor = (above <= _FAR * (1 + above.abs().median())).double()
        self._points.append((torch.stack([q.double(), gradient.double()]), self.near[:, None]))

    def turn(self) -> None:
        """End a window, and leave the one before it."""
        self._points = self._points[self._turned :]
        self._turned = len(self._points)

    def metric(self, low_rank: bool = True) -> Metric:
        """The metric in float64; without `low_rank`, Lambda is 1."""
        points, kept = (torch.stack(each) for each in zip(*self._points, strict=True))  # [T, 2, C, D] and [T, C, 1]
        kept = kept[:, None]
        number, means = float(kept.sum()), (kept * points).sum(0) / kept.sum(0).clamp_min(1)
        deviations = (kept * (points - means)).movedim(1, 0).flatten(1, 2)
        covariance = deviations.mT @ deviations / max(number, 1)
        q, g = torch.diagonal(covariance, dim1=1, dim2=2).clamp_min(1e-30)
        scale = (q / g).clamp(1e-16, 1e16) ** 0.25
        few = 5 / (number + 5)
        eye = torch.eye(len(scale)).to(scale)
        points = (1 - few) * covariance[0] / scale.outer(scale) + few * eye
        slopes = (1 - few) * covariance[1] * scale.outer(scale) + few * eye
        values, vectors = torch.linalg.eigh(_geometric_mean(points, slopes))
        chosen = values.log().abs().argsort(descending=True)[: self.rank]
        values, vectors = values[chosen], vectors[:, chosen]
        kept = low_rank & (values.log().abs() > _LOW_RANK)
        return Metric(scale, vectors, torch.where(kept, values, 1.0))


def _geometric_mean(a: Tensor, b: Tensor) -> Tensor:
    """The positive definite X with X b X = a."""
    values, vectors = torch.linalg.eigh(b)
    root = vectors * values.clamp_min(1e-12).sqrt()
    half, inverse = root @ vectors.T, (vectors / values.clamp_min(1e-12).sqrt()) @ vectors.T
    inner, axes = torch.linalg.eigh(half @ a @ half)
    return inverse @ (axes * inner.clamp_min(1e-24).sqrt()) @ axes.T @ inverse  # type: ignore[no-any-return]


class Mass:
    """The variance of every coordinate, over chains and with exponentially decreasing weights over transitions.

    Args:
        like: a tensor ``[C, D]`` on the device of the chains.
    """

    def __init__(self, like: Tensor) -> None:
        self._moments = torch.zeros(2, like.shape[1], dtype=torch.float64, device=like.device)
        self._weight, self._count = 0.0, 0

    def learn(self, q: Tensor, *_: Tensor) -> None:
        """Account for the positions of all chains ``[C, D]``."""
        self._weight += _FORGOTTEN * (1 - self._weight)
        self._moments.lerp_(torch.stack([q.double().mean(0), q.double().square().mean(0)]), _FORGOTTEN)
        self._count += len(q)

    def metric(self, _: bool = False) -> Metric:
        """The metric in float64: shrunk towards a variance of 1e-3 if there are few positions, as in Stan."""
        mean, square = self._moments / self._weight
        variance = (square - mean**2).clamp_min(0)
        few = 5 / (min(self._count, 1000) + 5)
        return Metric(((1 - few) * variance + few * 1e-3).sqrt())


def van_der_corput(number: int) -> float:
    """The radical inverse of a positive integer to the base 2, in (0, 1)."""
    digits = f"{number:b}"
    return int(digits[::-1], 2) / 2 ** len(digits)


def reasonable_step_size(accepts: Callable[[float], bool], eps: float = 1e-3) -> float:
    """A step size whose single step half of the chains would accept (Hoffman & Gelman 2014, algorithm 4).

    Args:
        accepts: whether a single step of this size is accepted with probability 1/2 or more, in the median of the chains.
        eps: the first to try.
    """
    rises = accepts(eps)
    for _ in range(60):
        eps = eps * 2 if rises else eps / 2
        if accepts(eps) != rises:
            break
    return eps / 2 if rises else eps
