"""The energy and gradient of many chains in one call, compiled together with the step of a kernel.

    q [B, D]  ->  U [B],  dU/dq [B, D]                                U of `pyrodrop.sampling.density`

The energy of one chain is recorded, mapped over a block of B chains by `torch.vmap`, and compiled together with what a
kernel computes from one gradient to the next. If a network cannot be mapped, its chains are computed one by one. The
numbers are compared with those that Pyro computes for the model before they are used. No other file of this folder uses
`pyrodrop.compiled`.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from pyro import poutine
from pyro.infer.mcmc.util import initialize_model
from pyro.ops.integrator import potential_grad
from torch import Tensor

from pyrodrop.arrays import near
from pyrodrop.compiled import Program, Replayed, Untraceable, calling, first_that_works, pure
from pyrodrop.constraints import EngineName as Name
from pyrodrop.devices import denormals_flushed, seeded
from pyrodrop.sampling.density import Density, unchecked

_log = logging.getLogger("pyrodrop")

TRIES = 100  # to find values of finite energy
NOT_FINITE = (
    f"fewer than 2 of {TRIES} draws from the prior have a finite log joint density and gradient: check the scales of the "
    "prior, the likelihood and the data, or pass start=..., trained runs"
)
_NOT_PYROS = (
    "the log joint density is not the one that Pyro computes for this model: it may differ from call to call, as in a "
    "likelihood that draws random numbers"
)
_NEARER = 0.9  # draw number n to compare is scaled by this to the power n
_BLOCK_BYTES = {"cpu": 8 * 2**20, "cuda": 2**30}  # of a block's activations: fits the CPU's cache, or occupies a GPU
_REPLAY = {"cuda"}  # kinds of devices that replay the kernels of a step

Energies = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From q ``[B, D]`` to U ``[B]`` and dU/dq ``[B, D]``."""


class Step(NamedTuple):
    """What is compiled together with one evaluation of the energies.

    Attributes:
        function: takes `Energies`, the tensors of chains, the scalars and a vector ``[D]``, and returns U ``[B]`` and dU/dq
            ``[B, D]`` at the new q, then other results. If all scalars are 0, q does not move.
        chain_tensors: the number of tensors ``[B, D]``, of which q is the first.
        scalars: the number of scalars.
        carried: the positions of the results that are the first tensors of chains in the next step.
    """

    function: Callable[..., Sequence[Tensor]]
    chain_tensors: int
    scalars: int
    carried: tuple[int, ...]


ENERGY = Step(lambda energies, q, _: energies(q), 1, 0, ())


class CompiledDensity:
    """A density for a fixed number of chains; a call makes one step of a block of them.

    Args:
        density: of the latent sites and the data.
        chains: C.
        engine: ``compiled``, ``traced``, ``pyro`` (handlers in every call, chains one after the other), or ``auto`` for the
            first of them that works.
        step: of a kernel.

    Attributes:
        engine: the engine that is used.
        stacked: whether one call moves several chains.
        block: B, the number of chains that a call moves.
        seconds: what recording, compiling and comparing took.

    Raises:
        ValueError: the energy differs from call to call, or from Pyro's.
    """

    block: int
    _program: Callable[..., Sequence[Tensor]]

    def __init__(self, density: Density, chains: int, engine: Name, step: Step = ENERGY) -> None:
        begun = time.perf_counter()
        self.density: Density = density
        self.chains: int = chains
        self.step: Step = step
        self.size: int = sum(density.sizes)
        say = _log.info if engine == "auto" else _log.warning
        pyros = _by_pyro(density)

        def attempt(way: tuple[Name, bool]) -> None:
            self._make(*way)
            if not self._agrees(pyros):
                raise Untraceable("its numbers differ from Pyro's")

        def failed(way: tuple[Name, bool], error: Untraceable) -> None:
            name, mapped = way
            say("no potential energy by engine %r%s: %s", name, ", all chains at once" if mapped else "", error)

        ways = ((way, functools.partial(attempt, way)) for way in self._ways(engine))
        try:
            (self.engine, self.stacked), _ = first_that_works(ways, failed)
        except Untraceable as error:
            raise ValueError(_NOT_PYROS) from error
        self.seconds: float = time.perf_counter() - begun

    def __call__(self, *tensors: Tensor) -> Sequence[Tensor]:
        """One step of a block, for the inputs of `Step.function`, which must be contiguous.

        On a GPU, the next call overwrites the results that `Step.carried` names.
        """
        return self._program(*tensors)

    def repeated(self, times: int, *tensors: Tensor) -> Sequence[Tensor]:
        """The results of the last of `times` steps, each of which begins where the step before it ended."""
        if isinstance(self._program, Replayed):
            return self._program(*tensors, times=times)
        results: Sequence[Tensor] = ()
        for _ in range(times):
            results = self(*tensors)
            tensors = (*(results[position] for position in self.step.carried), *tensors[len(self.step.carried) :])
        return results

    def energies(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """U and dU/dq at q ``[n B, D]``, from steps that do not move."""
        with torch.no_grad():
            if len(q) == self.block:
                energy, gradient = self(q, *self._staying)[:2]
                return energy, gradient.clone()
            results = [self.energies(rows) for rows in q.split(self.block)]
        energies, gradients = zip(*results, strict=True)
        return torch.cat(energies), torch.cat(gradients)

    def by_blocks(self, follow: Callable[[slice], Sequence[Tensor]]) -> list[Tensor]:
        """The results of `follow` for the chains of each block, ``[B, ...]``, concatenated to ``[C, ...]``."""
        with torch.no_grad(), denormals_flushed():
            slices = [slice(first, first + self.block) for first in range(0, self.chains, self.block)]
            blocks = [[tensor.clone() for tensor in follow(chains)] for chains in slices]
        return [torch.cat(tensors) for tensors in zip(*blocks, strict=True)]

    def _ways(self, engine: Name) -> Iterator[tuple[Name, bool]]:
        """The engines to try, in this order, and whether to map the energy over chains."""
        names: list[Name] = ["compiled", "traced"]
        names = [] if engine == "pyro" else ["traced"] if engine == "traced" else names
        if self.chains > 1 and self.density.model.maps_weights:
            yield from ((name, True) for name in names)
        yield from ((name, False) for name in names)
        yield "pyro", False

    def _make(self, name: Name, mapped: bool) -> None:
        """Make the program of a step."""
        density, self.block = self.density, 1
        zero = torch.zeros((), dtype=density.dtype, device=density.device)
        energy: Any = functools.partial(_energy_and_gradients, density) if name == "pyro" else self._energy
        if mapped:
            most = _BLOCK_BYTES.get(density.device.type, _BLOCK_BYTES["cpu"]) // max(1, energy.bytes)
            self.block = next(n for n in range(self.chains, 0, -1) if self.chains % n == 0 and n <= max(1, most))
        function, chains = self.step.function, (self.block, self.size)
        shapes = [chains] * self.step.chain_tensors + [()] * self.step.scalars + [(self.size,)]
        inputs = [zero.expand(shape).contiguous() for shape in shapes]
        self._staying = [tensor + (tensor.shape == chains) for tensor in inputs[1:]]

        def step(energy: Callable[..., Sequence[Tensor]], *tensors: Tensor) -> Sequence[Tensor]:
            def energies(q: Tensor) -> tuple[Tensor, Tensor]:
                values = density.by_site(q).values()
                if mapped:
                    energy_of_each, *gradients = energy(*values)
                else:
                    energy_of_each, *gradients = (result[None] for result in energy(*(value[0] for value in values)))
                return energy_of_each, torch.cat([gradient.reshape(len(q), -1) for gradient in gradients], 1)

            return function(energies, *tensors)

        if name == "pyro":
            self._program = functools.partial(step, energy)
        else:
            made = calling(step, energy, inputs, mapped=mapped, compiled=name == "compiled")
            self._program = self._replayed(made, inputs)

    def _replayed(
        self, program: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]
    ) -> Callable[..., Sequence[Tensor]]:
        """The program as one graph of GPU kernels, on a device that can replay it."""
        if self.density.device.type not in _REPLAY:
            return program
        try:
            return Replayed(program, inputs, self.step.carried)
        except RuntimeError as error:
            _log.info("the kernels of a step are launched one by one, which is slower: %s", error)
            return program

    @functools.cached_property
    def _energy(self) -> Program:
        """The recorded energy and gradients of one chain, a function of the sites' values."""
        density = self.density
        if density.model.changes_itself:
            raise Untraceable(f"{density.model.changes_itself}, which a trace would freeze")
        values = density.by_site(torch.zeros(self.size, dtype=density.dtype, device=density.device)).values()
        program = pure(functools.partial(_energy_and_gradients, density), list(values), [density.model])
        if program.is_random:
            raise Untraceable("it draws random numbers")
        return program

    def _agrees(self, pyros: Sequence[_Evaluated]) -> bool:
        """Whether energies and gradients agree with Pyro's up to rounding, at its points in turn as chains."""
        try:
            energy, gradient = self.energies(torch.stack([point.q for point in pyros]).repeat(self.block, 1))
        except Exception as error:  # whatever an operation that cannot be mapped raises
            raise Untraceable(f"it cannot be run: {error}") from error
        tolerance = 1e-3 if energy.dtype == torch.float32 else 1e-7
        for number, (_, wanted, gradients) in enumerate(pyros):
            rows = slice(number, None, len(pyros))
            least = 1e-3 * max(float(want.abs().max()) for want in gradients if want.numel())  # relative to the largest
            pairs = [
                (want, got, least)
                for want, got in zip(gradients, gradient[rows].split(self.density.sizes, 1), strict=True)
            ]
            pairs.append((wanted, energy[rows], 1.0))
            if not all(near(want.expand_as(got), got, tolerance, low) for want, got, low in pairs):
                return False
        return True


def _energy_and_gradients(density: Density, *tensors: Tensor) -> list[Tensor]:
    """U and its gradients by Pyro's handlers, for the value of each site."""
    values = [value.detach().requires_grad_() for value in tensors]
    with torch.enable_grad(), unchecked():
        energy = density.energy(dict(zip(density.sites, values, strict=True)))
        gradients = torch.autograd.grad(energy, values, allow_unused=True, materialize_grads=True)
    return [energy.detach(), *gradients]


class _Evaluated(NamedTuple):
    """A point q ``[D]`` with its energy and its gradient by site, flattened."""

    q: Tensor
    energy: Tensor
    gradients: list[Tensor]


def _by_pyro(density: Density) -> list[_Evaluated]:
    """Two points, evaluated by the potential that Pyro's own kernels would use for the model.

    The points are draws from the prior, each scaled closer to 0: for a deep network most draws may have infinite energy.

    Raises:
        ValueError: fewer than two of the points have a finite energy and gradient.
    """
    evaluated = []
    for seed in range(TRIES):
        point = {name: _NEARER**seed * value for name, value in density.draw(seed).items()}
        with seeded(seed, density.device), poutine.block(), unchecked():
            values = {name: value.clone() for name, value in point.items()}
            _, function, _, _ = initialize_model(density.joint, (density.x, density.y), initial_params=values)
            gradients, energy = potential_grad(function, values)
        results = [energy, *(gradients[name].reshape(-1) for name in density.sites)]
        if all(bool(result.isfinite().all()) for result in results):
            evaluated.append(_Evaluated(density.flat(point), results[0], results[1:]))
        if len(evaluated) == 2:
            return evaluated
    raise ValueError(NOT_FINITE)
