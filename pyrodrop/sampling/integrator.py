"""Several chains moved by one call: the energy of one chain, mapped over chains and compiled together with the update.

The energy of one chain is traced, mapped over chains by `torch.vmap`, and compiled together with what an integrator does
between two gradients: one call moves a block of chains by one step. A network that cannot be mapped takes its chains one
after the other. `leapfrog` and `isokinetic` are such integrators.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from pyrodrop.compiled import Untraceable
from pyrodrop.compiled.graph import loosen_views, peak
from pyrodrop.compiled.inductor import compile_graph
from pyrodrop.compiled.private_apis import record
from pyrodrop.constraints import EngineName as Name
from pyrodrop.sampling.density import Density
from pyrodrop.sampling.posterior import agree, by_pyro
from pyrodrop.sampling.programs import first_way, fixed_inputs, graph_of, programs

_BLOCK_BYTES = {"cpu": 8 * 2**20, "cuda": 2**30}  # of a block's activations: fits the CPU's cache, or occupies a GPU

Energies = Callable[..., tuple[Tensor, Tensor]]
"""From q ``[B, D]``, and further tensors, to U ``[B]`` and dU/dq ``[B, D]``."""
Step = Callable[..., Sequence[Tensor]]


class Integrator(ABC):
    """One step of a fixed number of chains.

    Args:
        density: of the latent sites; a chain's q has the unconstrained values of all sites one after the other.
        chains: C.
        engine: ``compiled``, ``traced``, ``pyro`` (handlers in every call, chains one after the other), or ``auto`` for the
            first of them that works.

    Attributes:
        engine: the engine that is used.
        stacked: whether one call moves several chains.
        block: number of chains that a call moves.
        size: D.

    Raises:
        ValueError: the energy differs from call to call, or from Pyro's.
    """

    def __init__(self, density: Density, chains: int, engine: Name) -> None:
        self.density: Density = density
        self.chains: int = chains
        self.sizes: list[int] = [site.shape.numel() for site in density.sites.values()]
        self.size: int = sum(self.sizes)
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
        self.engine: Name
        self.stacked: bool
        self.engine, self.stacked = first_way("chains", engine, ways)

    @staticmethod
    @abstractmethod
    def step_with(energies: Energies) -> Step:
        """The step of a block by a function from q and further tensors to U and dU/dq.

        It takes tensors as `inputs` has them, then the further ones, and returns the new q first.
        """

    @abstractmethod
    def inputs(self, block: int) -> list[Tensor]:
        """Tensors of the shapes that the step takes: those of a block ``[B, D]``, and those of all chains."""

    @abstractmethod
    def energies(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """U ``[C]`` and dU/dq ``[C, D]`` at q ``[C, D]``, by a step that goes nowhere."""

    @property
    def like(self) -> Tensor:
        """A scalar of the chains' dtype and device."""
        return torch.zeros((), dtype=self.density.dtype, device=self.density.device)

    def flat(self, values: Mapping[str, Tensor]) -> Tensor:
        """One chain's unconstrained values as one vector ``[D]``."""
        return torch.cat([values[name].reshape(-1) for name in self.density.sites])

    def values(self, q: Tensor) -> dict[str, Tensor]:
        """Values on the supports of the sites, ``[..., *shape]`` each, for q ``[..., D]``."""
        return {
            name: site.to_support(value.reshape(*q.shape[:-1], *site.shape))
            for (name, site), value in zip(self.density.sites.items(), q.split(self.sizes, -1), strict=True)
        }

    def blocks(self) -> Iterator[slice]:
        """The chains of every call."""
        return (slice(first, first + self.block) for first in range(0, self.chains, self.block))

    def _ways(self, engine: Name) -> Iterator[tuple[Name, bool, Callable[[], tuple[int, Step]]]]:
        """The engines to try, each with whether it moves several chains by a call, and a function that makes its step."""
        mappable = self.density.model.maps_weights
        if mappable and engine in ("auto", "compiled"):
            yield "compiled", True, functools.partial(self._mapped, True)
        if mappable and engine != "pyro":
            yield "traced", True, functools.partial(self._mapped, False)
        for name, make in programs(self.density, engine):
            yield name, False, lambda make=make: (1, self._alone(make()))  # type: ignore[misc]

    def _mapped(self, compiled: bool) -> tuple[int, Step]:
        """The number of chains in a block, and their step: the traced graph of one chain, mapped over them."""
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

        most = _BLOCK_BYTES.get(self.density.device.type, _BLOCK_BYTES["cpu"]) // max(1, peak(graph.graph))
        block = next(size for size in range(self.chains, 0, -1) if self.chains % size == 0 and size <= max(1, most))
        inputs = [*self.inputs(block), *fixed]
        with torch.no_grad():
            program: Step
            if compiled:
                program = compile_graph(self.step_with(at), inputs, {"size_asserts": False})
            else:
                try:
                    program = record(self.step_with(at), inputs)
                except Exception as error:  # whatever an operation that cannot be mapped raises
                    raise Untraceable(f"it cannot be mapped over chains: {error}") from error
        return block, lambda *given: program(*given, *fixed)

    def _alone(self, program: Callable[..., list[Tensor]]) -> Step:
        """The step of one chain by a program of `pyrodrop.sampling.programs`."""
        shapes = [site.shape for site in self.density.sites.values()]

        def at(q: Tensor) -> tuple[Tensor, Tensor]:
            values = [v.reshape(shape) for v, shape in zip(q[0].split(self.sizes), shapes, strict=True)]
            energy, *gradients = program(*values)
            return energy[None], torch.cat([v.reshape(-1) for v in gradients])[None]

        return self.step_with(at)

    def _agrees(self, pairs: Sequence[tuple[dict[str, Tensor], list[Tensor]]]) -> bool:
        """Whether energies and gradients are Pyro's, with the points of `pairs` in turn as chains."""
        chosen = [pairs[chain % len(pairs)] for chain in range(self.chains)]
        try:
            energy, gradient = self.energies(torch.stack([self.flat(point) for point, _ in chosen]))
        except Exception as error:  # whatever an operation that cannot be mapped raises
            raise Untraceable(f"it cannot be run for several chains: {error}") from error
        ours = [[energy[c], *gradient[c].split(self.sizes)] for c in range(self.chains)]
        theirs = [[value, *(g.reshape(-1) for g in gradients)] for _, (value, *gradients) in chosen]
        return all(agree(one, other) for one, other in zip(ours, theirs, strict=True))
