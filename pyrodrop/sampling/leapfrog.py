"""Hamiltonian trajectories of many chains at once, by the leapfrog integrator.

    H(q, p) = U(q) + p^T M^-1 p / 2                       M diagonal
    p <- p - eps/2 dU/dq,   q <- q + eps M^-1 p,   p <- p - eps/2 dU/dq

The energy of one chain is traced, mapped over chains by `torch.vmap`, and compiled together with the updates: one call moves
a block of chains by one step. A network that cannot be mapped takes its chains one after the other. Neal (2011), MCMC using
Hamiltonian dynamics, eq. 5.18-5.20, https://arxiv.org/abs/1206.1901.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pyro
import torch
from torch import Tensor

from pyrodrop.engines import Name, Untraceable
from pyrodrop.engines.compiled import compile_graph
from pyrodrop.engines.graph import loosen_views, peak
from pyrodrop.private_apis import elementary_forms, record
from pyrodrop.sampling.density import Density
from pyrodrop.sampling.posterior import agree, by_pyro
from pyrodrop.sampling.programs import first_way, fixed_inputs, graph_of, programs

_BLOCK_BYTES = {"cpu": 8 * 2**20, "cuda": 2**30}  # of a block's activations: fits the CPU's cache, or occupies a GPU

Step = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Sequence[Tensor]]
"""From q, p, dU/dq ``[B, D]``, eps ``[]`` and the diagonal of M^-1 ``[D]`` to the new q, p, dU/dq and U ``[B]``."""


class State(NamedTuple):
    """Where C chains are: q, p and dU/dq ``[C, D]``, and U ``[C]``."""

    q: Tensor
    p: Tensor
    gradient: Tensor
    energy: Tensor


class Leapfrog:
    """Trajectories of a fixed number of chains.

    Args:
        density: of the latent sites; a chain's q has the unconstrained values of all sites one after the other.
        chains: C.
        engine: ``compiled``, ``traced``, ``pyro`` (handlers in every call, chains one after the other), or ``auto`` for the
            first of them that works.

    Attributes:
        engine: the engine that is used.
        stacked: whether one call moves several chains.

    Raises:
        ValueError: the energy differs from call to call, or from Pyro's.
    """

    def __init__(self, density: Density, chains: int, engine: Name) -> None:
        self.density, self.chains = density, chains
        self.sizes = [site.shape.numel() for site in density.sites.values()]
        pairs = by_pyro(density)

        def tried(name: Name, stacked: bool, make: Callable[[], tuple[int, Step]]) -> tuple[Name, bool]:
            self.block, self._step = make()
            if not self._agrees(pairs):
                raise Untraceable("its numbers differ from Pyro's")
            return name, stacked

        ways = (
            (f"{name!r}, all at once" if stacked else repr(name), functools.partial(tried, name, stacked, make))
            for name, stacked, make in self._ways(engine)
        )
        self.engine, self.stacked = first_way("chains", engine, ways)

    def __call__(self, state: State, step_size: float, inverse_mass: Tensor, steps: int) -> State:
        """Follow the trajectories of all chains for `steps` leapfrog steps."""
        eps = torch.tensor(step_size, dtype=state.q.dtype, device=state.q.device)
        done = []
        with torch.no_grad(), pyro.validation_enabled(False):  # a trajectory may diverge
            for first in range(0, self.chains, self.block):
                q, p, gradient, energy = (value[first : first + self.block] for value in state)
                for _ in range(steps):
                    q, p, gradient, energy = self._step(q, p, gradient, eps, inverse_mass)
                done.append((q, p, gradient, energy))
        return State(*(torch.cat(parts) for parts in zip(*done, strict=True)))

    def at(self, q: Tensor) -> State:
        """The state at q ``[C, D]`` with p = 0."""
        rest = torch.zeros_like(q)
        start = State(q, rest, rest, q.new_zeros(len(q)))
        return self(start, 0.0, torch.ones_like(q[0]), 1)._replace(p=rest)

    def flat(self, values: Mapping[str, Tensor]) -> Tensor:
        """One chain's unconstrained values as one vector ``[D]``."""
        return torch.cat([values[name].reshape(-1) for name in self.density.sites])

    def values(self, q: Tensor) -> dict[str, Tensor]:
        """Values on the supports of the sites, ``[..., *shape]`` each, for q ``[..., D]``."""
        return {
            name: site.to_support(value.reshape(*q.shape[:-1], *site.shape))
            for (name, site), value in zip(self.density.sites.items(), q.split(self.sizes, -1), strict=True)
        }

    def _ways(self, engine: Name) -> Iterator[tuple[Name, bool, Callable[[], tuple[int, Step]]]]:
        """The engines to try, each with whether it moves several chains by a call, and a function that makes its step."""
        mappable = self.density.model.maps_weights
        if mappable and engine in ("auto", "compiled"):
            yield "compiled", True, self._compiled
        if mappable and engine != "pyro":
            yield "traced", True, self._mapped
        for name, make in programs(self.density, engine):
            yield name, False, lambda make=make: (1, self._alone(make()))  # type: ignore[misc]

    def _mapped(self) -> tuple[int, Step]:
        """The step by the traced graph of one chain, mapped over chains, and the chains in one block."""
        graph = graph_of(self.density)
        fixed = fixed_inputs(self.density, graph)
        loosen_views(graph.module)
        axes = (*(0,) * len(self.sizes), *(None,) * len(fixed))
        energies = torch.vmap(lambda *given: tuple(graph.module(*given)), in_dims=axes)
        shapes = [site.shape for site in self.density.sites.values()]

        def at(q: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
            values = [v.reshape(len(q), *shape) for v, shape in zip(q.split(self.sizes, 1), shapes, strict=True)]
            energy, *gradients = energies(*values, *given)
            return energy, torch.cat([v.reshape(len(q), -1) for v in gradients], 1)

        step = _leapfrog(at)
        self._pure, self._fixed = step, fixed
        most = _BLOCK_BYTES.get(self.density.device.type, _BLOCK_BYTES["cpu"]) // max(1, peak(graph.graph))
        block = next(size for size in range(self.chains, 0, -1) if self.chains % size == 0 and size <= max(1, most))
        return block, lambda *given: step(*given, *fixed)

    def _compiled(self) -> tuple[int, Step]:
        """The mapped step as one compiled program."""
        block, _ = self._mapped()
        like = torch.zeros(1, dtype=self.density.dtype, device=self.density.device)
        several = [like.expand(block, sum(self.sizes)).contiguous() for _ in range(3)]
        inputs = [*several, like[0].clone(), like.expand(sum(self.sizes)).contiguous(), *self._fixed]
        with torch.no_grad():
            try:
                module = record(self._pure, inputs, elementary_forms(()))
            except Exception as error:  # whatever an operation that cannot be mapped raises
                raise Untraceable(f"it cannot be mapped over chains: {error}") from error
            program = compile_graph(module, inputs, {"size_asserts": False})
        fixed = self._fixed

        def step(q: Tensor, p: Tensor, gradient: Tensor, eps: Tensor, inverse_mass: Tensor) -> Sequence[Tensor]:
            return program(q, p, gradient, eps, inverse_mass, *fixed)  # type: ignore[no-any-return]

        return block, step

    def _alone(self, program: Callable[..., list[Tensor]]) -> Step:
        """The step of one chain by a program of `pyrodrop.sampling.programs`."""
        shapes = [site.shape for site in self.density.sites.values()]

        def at(q: Tensor) -> tuple[Tensor, Tensor]:
            values = [v.reshape(shape) for v, shape in zip(q[0].split(self.sizes), shapes, strict=True)]
            energy, *gradients = program(*values)
            return energy[None], torch.cat([v.reshape(-1) for v in gradients])[None]

        return _leapfrog(at)

    def _agrees(self, pairs: Sequence[tuple[dict[str, Tensor], list[Tensor]]]) -> bool:
        """Whether energies and gradients are Pyro's, with the points of `pairs` in turn as chains."""
        chosen = [pairs[chain % len(pairs)] for chain in range(self.chains)]
        try:
            state = self.at(torch.stack([self.flat(point) for point, _ in chosen]))
        except Exception as error:  # whatever an operation that cannot be mapped raises
            raise Untraceable(f"it cannot be run for several chains: {error}") from error
        ours = [[state.energy[c], *state.gradient[c].split(self.sizes)] for c in range(self.chains)]
        theirs = [[energy, *(g.reshape(-1) for g in gradients)] for _, (energy, *gradients) in chosen]
        return all(agree(one, other) for one, other in zip(ours, theirs, strict=True))


def _leapfrog(at: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., list[Tensor]]:
    """The step by a function from q and further tensors to U and dU/dq; the step takes these tensors, too."""

    def step(q: Tensor, p: Tensor, gradient: Tensor, eps: Tensor, inverse_mass: Tensor, *given: Tensor) -> list[Tensor]:
        p = p - 0.5 * eps * gradient
        q = q + eps * inverse_mass * p
        energy, gradient = at(q, *given)
        return [q, p - 0.5 * eps * gradient, gradient, energy]

    return step
