"""Microcanonical Langevin Monte Carlo with many chains that share one tuning: momentum of length 1, and no rejection.

    dq = s u dt,     du = -(1 - u u^T) s dU/dq dt / (D - 1)                          |u| = 1, s diagonal
    turn by t:   e = -g / |g|,  g = s dU/dq,  delta = t |g| / (D - 1),  zeta = exp(-delta)
                 u <- (e (1 - zeta) (1 + zeta + e.u (1 - zeta)) + 2 zeta u) / norm
                 kinetic energy <- it + (D - 1) (delta - ln 2 + ln(1 + e.u + (1 - e.u) zeta^2))
    renewal:     u <- (u + nu z) / |u + nu z|,   z ~ N(0, 1)^D,   nu^2 = (exp(2 eps / L) - 1) / D

In continuous time the density of q along a trajectory is exp(-U) up to a constant; steps of size eps bias it. L is the
length after which momentum is forgotten. A step is: renew, turn by lambda eps, move by eps/2, turn by (1 - 2 lambda) eps,
move by eps/2, turn by lambda eps, with lambda of McLachlan's integrator of minimal norm. Its two gradients are two calls of
one program. A transition is 20 steps.

eps is tuned so that the change of energy in a step has the mean square v D. Tuning has three parts: the way from the starts
to where the chains stay, with equal scales and 5 v; the scale s of every coordinate, from its variance within chains, which
starts in different modes do not widen; and L, 0.4 times the length in which a chain makes an independent draw, but at least
sqrt(D).

Robnik, De Luca, Silverstein & Seljak (2023), Microcanonical Hamiltonian Monte Carlo, https://arxiv.org/abs/2212.08549;
Robnik & Seljak (2023), Microcanonical Langevin Monte Carlo, https://arxiv.org/abs/2303.18221; for the kinetic energy Steeg &
Galstyan (2021), Hamiltonian dynamics with non-Newtonian momentum, https://arxiv.org/abs/2111.02434.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pyrodrop.sampling.chains import DIVERGENT, State
from pyrodrop.sampling.density import CompiledDensity, Energies, Step
from pyrodrop.sampling.tuning import EnergyStepSize, VarianceWithinChains, transitions_per_draw

LAMBDA = 0.1931833275037836  # McLachlan (1995), https://doi.org/10.1137/0916010
STEPS = 20  # of a transition
_FIRST, _SCALES = 0.4, 0.4  # parts of the tuning
_WIDE = 5.0  # times v in the first part, so that steps are longer there
_EFFECTIVE = 0.4  # L in lengths of an independent draw
_CHAINS, _COORDINATES = 8, 100  # about as many at most, for the autocorrelation


class Tuned(NamedTuple):
    """What tuning learns: eps, L and s ``[D]``."""

    step_size: float
    length: float
    scale: Tensor


def turned(u: Tensor, gradient: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """The momentum ``[B, D]`` after a turn, and the change of kinetic energy ``[B]``."""
    others = u.shape[1] - 1
    norm = gradient.norm(dim=1, keepdim=True).clamp_min(1e-30)
    e = -gradient / norm
    delta = time * norm / others
    zeta, along = (-delta).exp(), (e * u).sum(1, keepdim=True)
    new = e * (1 - zeta) * (1 + zeta + along * (1 - zeta)) + 2 * zeta * u
    kinetic = others * (delta - math.log(2) + (1 + along + (1 - along) * zeta**2).log())
    return new / new.norm(dim=1, keepdim=True), kinetic[:, 0]


def half_step(
    energies: Energies, q: Tensor, u: Tensor, gradient: Tensor, z: Tensor, nu: Tensor, before: Tensor, after: Tensor,
    time: Tensor, scale: Tensor,
) -> list[Tensor]:  # fmt: skip
    """Renew, turn, move, and turn; returns U and dU/dq at the new q, the new q and u, and the change of kinetic energy."""
    u = u + nu * z
    u, first = turned(u / u.norm(dim=1, keepdim=True), gradient * scale, before)
    q = q + time * scale * u
    energy, gradient = energies(q)
    u, second = turned(u, gradient * scale, after)
    return [energy, gradient, q, u, first + second]


class MCLMC:
    """Chains of microcanonical Langevin Monte Carlo, which move and adapt together.

    Args:
        density, q, generator, tune: as of `HMC`.
        energy_variance: v, target for the mean square of the change of energy in a step, per dimension.
    """

    step = Step(half_step, chain_tensors=4, scalars=4, carried=(2, 3, 1))

    def __init__(
        self, density: CompiledDensity, q: Tensor, generator: torch.Generator, tune: int, *, energy_variance: float
    ) -> None:
        self.density, self.generator, self.tune = density, generator, tune
        self.descent: int = int(_FIRST * tune)
        length = math.sqrt(density.size)
        self.step_size: EnergyStepSize = EnergyStepSize(0.01 * length, _WIDE * energy_variance * density.size)
        self.within: VarianceWithinChains = VarianceWithinChains(q)
        self.track: list[Tensor] = []
        self.tuned: Tuned = Tuned(self.step_size.now, length, torch.ones_like(q[0]))
        self.state: State = self._turned_anywhere(State.at(density, q))

    def transition(self, number: int) -> dict[str, Tensor]:
        """20 steps of all chains; a chain whose energy error is over 1000 nats or not finite stays, with new momentum."""
        end, self.changes = self.follow(self.state, self.state.normal(self.generator, STEPS))
        self.lost: Tensor = ~(self.changes.abs() <= DIVERGENT).all(1)
        self.lost |= ~(end.q.isfinite().all(1) & end.gradient.isfinite().all(1))
        self.changes[self.lost] = math.nan
        if self.lost.any():
            end = self._turned_anywhere(self.state).where(self.lost, end)
        self.state = end
        return {
            "lp": -end.energy.double(),
            "energy_error": self.changes.square().mean(1).sqrt(),
            "diverging": self.lost,
            "n_steps": torch.full_like(self.lost, 2 * STEPS, dtype=torch.int64),
        }

    def follow(self, state: State, noise: Tensor) -> tuple[State, Tensor]:
        """Follow all chains for as many steps as `noise` has z, ``[steps, C, D]``.

        Returns:
            The state, and the change of energy in every step, ``[C, steps]`` in float64.
        """
        eps, length, scale = self.tuned
        nu = math.sqrt(math.expm1(2 * eps / length) / self.density.size)
        numbers = (0.0, nu, LAMBDA * eps, (1 - 2 * LAMBDA) * eps, eps / 2)
        none, renewal, outer, inner, half = (scale.new_tensor(number) for number in numbers)

        def block(chains: slice) -> list[Tensor]:
            q, u, gradient, energy = (value[chains] for value in state)
            changes = []
            for z in noise[:, chains]:
                before = energy.double()
                energy, gradient, q, u, first = self.density(q, u, gradient, z, renewal, outer, inner, half, scale)
                energy, gradient, q, u, second = self.density(q, u, gradient, z, none, none, outer, half, scale)
                changes.append(energy.double() - before + first + second)
            return [q, u, gradient, energy, torch.stack(changes, 1)]

        *end, changes = self.density.by_blocks(block)
        return State(*end), changes

    def adapt(self, number: int) -> None:
        """Learn the step size, then also the scales, and finally the length L."""
        first, second = self.descent, self.descent + int(_SCALES * self.tune)
        last = second + (self.tune - second) // 3  # the last transition that changes the step size
        length, scale = self.tuned.length, self.tuned.scale
        if number <= last:
            if self.lost.any():
                self.step_size.rescale(0.5)
            else:
                self.step_size.learn(self.changes)
        else:
            coordinates = slice(None, None, max(1, self.density.size // _COORDINATES))
            self.track.append(self.state.q[:_CHAINS, coordinates].cpu())
        if first // 2 < number <= first or first + (second - first) // 4 < number <= second:
            self.within.learn(self.state.q)
        if number in (first, second):
            scale = self.within.scale().to(scale)
            self.within = VarianceWithinChains(self.state.q)
            self.step_size.rescale(math.exp(float((self.tuned.scale / scale).log().mean())))
        if number == first:
            self.step_size.target /= _WIDE
        if number == self.tune:
            draw = self.step_size.now * STEPS * transitions_per_draw(torch.stack(self.track, 1))
            length = max(length, _EFFECTIVE * draw)
        self.tuned = Tuned(self.step_size.now, length, scale)

    def progress(self) -> str:
        """A few words about the latest transition."""
        variance = float(self.changes.square().nanmean()) / self.density.size
        return f"energy variance {variance:.1g}, steps of {self.tuned.step_size:.2g}, length {self.tuned.length:.2g}"

    def _turned_anywhere(self, state: State) -> State:
        """The state with momenta that are uniform on the sphere."""
        z = state.normal(self.generator)
        return state._replace(momentum=z / z.norm(dim=1, keepdim=True))
