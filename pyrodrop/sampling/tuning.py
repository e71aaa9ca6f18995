"""What tuning learns from all chains together.

For Hamiltonian Monte Carlo, step size, trajectory length and mass matrix.

Step size: stochastic approximation (Robbins & Monro 1951, https://doi.org/10.1214/aoms/1177729586) of the ln eps at which
the harmonic mean over chains of the acceptance probability a meets a target, by steps of (a - target) / sqrt(n). The steps
of Stan's dual averaging are about 20 times as large, and make ln eps oscillate when a is a mean over many chains.

Trajectory length: a transition follows the trajectory for the time h T, where h in (0, 1) is the same for all chains and
follows the van der Corput sequence. T climbs the change in the estimator of the expected square (ChEES),

    ChEES = E[(|q' - E q'|^2 - |q - E q|^2)^2] / 4
    dChEES / d ln T ~ h T sum_c a_c (|q'_c - m'|^2 - |q_c - m|^2) (q'_c - m') . p'_c / sum_c a_c

where m and m' are means over chains and norms are those of the mass matrix, |z|^2 = z^T M z (Hoffman, Radul & Sountsov 2021,
An Adaptive-MCMC Scheme for Setting Trajectory Lengths in Hamiltonian Monte Carlo,
https://proceedings.mlr.press/v130/hoffman21a.html). With one chain q = m, so that this gradient is 0. With fewer than 4
chains both m are therefore the mean over chains and recent transitions; the gradient is then noisier.

Mass matrix: M^-1 is the variance of every coordinate over chains and recent transitions.

For microcanonical Monte Carlo, step size, scales and length. No step is rejected, so the draws have a bias that grows with
the step size, which is tuned so that the change of energy in a step has a given mean square v per dimension,

    E[(change of energy)^2] = v D,     mean square ~ eps^6        eps <- eps (v D / mean square)^(1/6)

(Robnik et al. 2023, sec. 5, https://arxiv.org/abs/2212.08549, and their code for the weights of old and extreme steps).
Scales are the standard deviations of coordinates within chains.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

FEW = 4  # chains; the mean of fewer is a poor estimate of the posterior mean
_CLIP = 3.0  # standard deviations, of the steps of ln T
_RATE = 0.05  # of these steps
_KEPT = 0.8  # factor of the weights of past transitions at each new one, for the microcanonical step size


class Averaged:
    """A positive number that is learned by steps of its logarithm.

    Args:
        initial: number to start from.
    """

    def __init__(self, initial: float) -> None:
        self._steps, self._log, self._log_mean = 0, math.log(initial), math.log(initial)

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

    def move(self, log: float, power: float) -> None:
        """Go to a logarithm, which enters the average with the weight steps^-power."""
        self._log = log
        self._log_mean += max(1, self._steps) ** -power * (log - self._log_mean)


class StepSize(Averaged):
    """Stochastic approximation of ln eps: every transition adds (acceptance - target) / sqrt(n).

    Args:
        initial: step size to start from.
        target: acceptance probability.
    """

    def __init__(self, initial: float, target: float) -> None:
        super().__init__(initial)
        self.target = target

    def learn(self, accepted: float) -> None:
        """Update by the acceptance probability of a transition."""
        self._steps += 1
        self.move(self._log + (accepted - self.target) / math.sqrt(self._steps), 0.75)


class TrajectoryLength(Averaged):
    """Gradient ascent of ln T on ChEES, with steps scaled by the gradient's root mean square (Adam without momentum)."""

    _square = 0.0

    def learn(self, gradient: float, shortest: float, longest: float) -> None:
        """Make one step of ascent, within bounds of T.

        Args:
            gradient: of ChEES by ln T.
            shortest, longest: bounds of T.
        """
        log = self._log
        if 0 < gradient * gradient < math.inf:  # it is about 0 for a single chain whose trajectory is rejected
            self._steps += 1
            self._square = 0.95 * self._square + 0.05 * gradient**2
            scale = math.sqrt(self._square / (1 - 0.95**self._steps))
            log += _RATE * max(-_CLIP, min(_CLIP, gradient / scale))
        self.move(min(max(log, math.log(shortest)), math.log(longest)), 0.5)


def chees_gradient(
    q: Tensor,
    proposed: Tensor,
    momentum: Tensor,
    inverse_mass: Tensor,
    accepted: Tensor,
    time: float,
    centre: Tensor | None = None,
) -> float:
    """The estimate of dChEES / d ln T.

    Args:
        q, proposed, momentum: of every chain before the trajectory, and after it, ``[C, D]``.
        inverse_mass: diagonal of M^-1, ``[D]``.
        accepted: acceptance probability of every chain, ``[C]``; 0 where the trajectory diverged.
        time: h T.
        centre: replaces both means over chains, ``[D]``, for few chains.
    """
    weight = (accepted / accepted.sum().clamp_min(1e-9)).to(q)
    sound = accepted > 0
    proposed, momentum = (torch.where(sound[:, None], value, torch.zeros_like(value)) for value in (proposed, momentum))
    before = q - (q.mean(0) if centre is None else centre)
    after = proposed - (weight @ proposed if centre is None else centre)
    change = (after**2 / inverse_mass).sum(1) - (before**2 / inverse_mass).sum(1)
    return time * float((weight * change * (after * momentum).sum(1)).sum())


class Mass:
    """The variance of every coordinate, over chains and with exponentially decreasing weights over transitions.

    Args:
        like: a tensor ``[D]`` on the device of the chains.
    """

    def __init__(self, like: Tensor) -> None:
        self._mean = torch.zeros_like(like, dtype=torch.float64)
        self._square = torch.zeros_like(self._mean)
        self._weight = 0.0
        self._count = 0

    def learn(self, q: Tensor) -> None:
        """Account for the positions of all chains ``[C, D]``."""
        rate, q = 0.02, q.double()
        self._weight = (1 - rate) * self._weight + rate
        self._mean += rate * (q.mean(0) - self._mean)
        self._square += rate * ((q**2).mean(0) - self._square)
        self._count += len(q)

    @property
    def mean(self) -> Tensor:
        """The mean of every coordinate, over chains and recent transitions, ``[D]`` in float64."""
        return self._mean / self._weight

    def inverse(self) -> Tensor:
        """The diagonal of M^-1, ``[D]`` in float64: shrunk towards 1e-3 if there are few positions, as in Stan."""
        mean = self._mean / self._weight
        variance = (self._square / self._weight - mean**2).clamp_min(0)
        few = 5 / (min(self._count, 1000) + 5)
        return (1 - few) * variance + few * 1e-3


def van_der_corput(number: int) -> float:
    """The radical inverse of a positive integer to the base 2, in (0, 1)."""
    total, weight = 0.0, 0.5
    while number:
        total += weight * (number & 1)
        number, weight = number >> 1, weight / 2
    return total


def reasonable_step_size(accepts: Callable[[float], bool]) -> float:
    """A step size whose single step half of the chains would accept (Hoffman & Gelman 2014, algorithm 4).

    Args:
        accepts: whether a single step of this size is accepted with probability 1/2 or more, in the median of the chains.
    """
    eps = 1e-3
    rises = accepts(eps)
    for _ in range(60):
        new = eps * 2 if rises else eps / 2
        if accepts(new) != rises:
            return eps if rises else new
        eps = new
    return eps


class EnergyStepSize:
    """eps by the mean square of energy's change: a weighted mean of (mean square) / (v D eps^6) with exponential forgetting.

    Args:
        initial: eps to start from.
        target: v D, the mean square to reach; it may change.

    Attributes:
        now: the step size to use.
    """

    def __init__(self, initial: float, target: float) -> None:
        self.now: float = initial
        self.target: float = target
        self._total, self._weight = 0.0, 0.0

    def learn(self, changes: Tensor) -> None:
        """Update by the changes of energy in steps of the present size."""
        ratio = float(changes.square().mean()) / self.target + 1e-8
        weight = math.exp(-0.5 * (math.log(ratio) / 9) ** 2)  # steps far too large or small get little weight
        self._total = _KEPT * self._total + weight * ratio / self.now**6
        self._weight = _KEPT * self._weight + weight
        self.now = (self._total / self._weight) ** (-1 / 6)

    def rescale(self, factor: float) -> None:
        """Multiply eps by a factor, and forget what was learned."""
        self.now *= factor
        self._total, self._weight = 0.0, 0.0


class VarianceWithinChains:
    """The variance of every coordinate within chains, mean over chains.

    Args:
        like: a tensor ``[C, D]`` on the device of the chains.
    """

    def __init__(self, like: Tensor) -> None:
        self._count = 0
        self._mean = torch.zeros_like(like, dtype=torch.float64)
        self._squares = torch.zeros_like(self._mean)

    def learn(self, q: Tensor) -> None:
        """Account for the positions of all chains ``[C, D]``."""
        self._count += 1
        before = q.double() - self._mean
        self._mean += before / self._count
        self._squares += before * (q.double() - self._mean)

    def scale(self) -> Tensor:
        """Standard deviations ``[D]`` in float64, shrunk towards their geometric mean if there are few positions."""
        logs = (self._squares.mean(0) / max(1, self._count - 1)).clamp_min(1e-30).log() / 2
        few = 5 / (self._squares.shape[0] * self._count + 5)
        return ((1 - few) * logs + few * logs.mean()).exp()


def transitions_per_draw(track: Tensor) -> float:
    """Transitions per effective draw of a chain, from positions ``[C, T, D]``; the mean over chains and coordinates."""
    from arviz_stats.base import array_stats  # slow to import

    values = track.double().numpy()
    sizes = [
        float(array_stats.ess(chain[None, :, i], method="mean")) for chain in values for i in range(values.shape[2])
    ]
    return float(np.mean(track.shape[1] / np.maximum(sizes, 1.0)))
