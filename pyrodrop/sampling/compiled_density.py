"""Leapfrog steps of many chains as one compiled call.

    q [B, D]  ->  U [B],  dU/dq [B, D]

The energy of one chain is recorded, mapped over a block of B chains by `torch.vmap`, and compiled together with the rest of
a leapfrog step. If a network cannot be mapped, its chains are computed one by one. The numbers are compared with those that
Pyro computes for the model before they are used. No other file of this folder uses `pyrodrop.compiled`.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import logging
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from pyro import poutine
from pyro.infer.mcmc.util import initialize_model
from pyro.ops.integrator import potential_grad
from torch import Tensor, fx

from pyrodrop.arrays import near
from pyrodrop.compiled import Program, Untraceable, calling, pure
from pyrodrop.devices import made_on, seeded
from pyrodrop.private_apis import makes_new
from pyrodrop.sampling.density import Density, unchecked
from pyrodrop.sampling.tuning import Metric

_log = logging.getLogger("pyrodrop")
_A: Any = torch.ops.aten
_PUTS = (_A.index_put.default, _A.index_put_.default)

_TRIES = 100  # to find values of finite energy
_NOT_FINITE = (
    f"fewer than 2 of {_TRIES} draws from the prior have a finite log joint density and gradient: check the scales of the "
    "prior, the likelihood and the data, or pass start=..., trained runs"
)
_NEARER = 0.9  # draw number n to compare is scaled by this to the power n
_BLOCK_BYTES = {"cpu": 2 * 2**20, "cuda": 2**30}  # of a block's activations: fit a core's cache, or occupy a GPU
_MOST_OPERATIONS = 1500  # of an energy and its gradient, to compile them unasked

Name = Literal["auto", "compiled", "traced"]

Energies = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From q ``[B, D]`` to U ``[B]`` and dU/dq ``[B, D]``."""


def leapfrog(energies: Energies, q: Tensor, p: Tensor, gradient: Tensor, eps: Tensor, *metric: Tensor) -> list[Tensor]:
    """U and dU/dq at the new q, the new q and the new p; with eps = 0 all stays."""
    p = p - 0.5 * eps * gradient
    q = q + eps * Metric(*metric).velocity(p)
    energy, gradient = energies(q)
    return [energy, gradient, q, p - 0.5 * eps * gradient]


class CompiledDensity:
    """Leapfrog steps under a density for a fixed number of chains.

    Args:
        density: of the latent sites and the data.
        chains: C.
        engine: ``compiled``, ``traced``, or ``auto`` for the first of them that works.

    Attributes:
        engine: the engine that is used.
        stacked: whether one call moves several chains.
        block: B, the number of chains that a call moves.

    Raises:
        ValueError: the energy cannot be recorded, draws random numbers, or differs from Pyro's.
    """

    def __init__(self, density: Density, chains: int, engine: Name) -> None:
        self.density: Density = density
        self.chains: int = chains
        self.size: int = sum(density.sizes)
        self.block: int = 1
        rank, one = min(density.rank, self.size), torch.ones(self.size, dtype=density.dtype, device=density.device)
        self.metric: Metric = Metric(one, *((one.new_zeros(self.size, rank), one[:rank].clone()) if rank else ()))
        self._program: Callable[..., Sequence[Tensor]]
        pyros = _by_pyro(density)

        try:
            energy = _recorded(density, self.metric.scale)
            *others, last = self._ways(engine, energy)
            for self.engine, self.stacked in others:
                try:
                    self._make(energy, self.engine, self.stacked, pyros)
                    return
                except Untraceable as error:
                    at_once = ", all chains at once" if self.stacked else ""
                    _log.info("no potential energy by engine %r%s: %s", self.engine, at_once, error)
            self.engine, self.stacked = last
            self._make(energy, *last, pyros)
        except Untraceable as error:
            raise ValueError(
                "the log joint density must be a function that can be recorded, and the one that Pyro computes for the "
                f"model (pyro.infer.NUTS calls a model as it is); got a density of which {error}"
            ) from error

    def follow(self, q: Tensor, p: Tensor, gradient: Tensor, eps: float, metric: Metric, steps: int) -> list[Tensor]:
        """U ``[C]``, dU/dq, q and p ``[C, D]`` after this many steps from q, p and dU/dq of C chains, a multiple of B."""
        size, shared = q.new_tensor(eps), [tensor for tensor in metric if tensor is not None]
        blocks = []
        with torch.no_grad():
            for chains in zip(q.split(self.block), p.split(self.block), gradient.split(self.block), strict=True):
                blocks.append(self._steps(*chains, size, *shared, times=steps))
        return [torch.cat(tensors) for tensors in zip(*blocks, strict=True)]

    def energies(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """U and dU/dq at q ``[C, D]``, from steps that do not move."""
        still = torch.zeros_like(q)
        energy, gradient, *_ = self.follow(q, still, still, 0.0, self.metric, 1)
        return energy, gradient

    def from_prior(self, generator: torch.Generator) -> Tensor:
        """Draws of `Density.draw` with a finite energy and gradient, ``[C, D]``.

        Raises:
            ValueError: too few draws have them.
        """
        seeds = torch.randint(2**31, (_TRIES, self.chains), generator=generator, device=generator.device).tolist()
        q = torch.stack([self.density.flat(self.density.draw(seed)) for seed in seeds[0]])
        for row in seeds[1:]:
            wrong = self.not_finite(q)
            if not wrong.any():
                return q
            for chain in wrong.nonzero().flatten().tolist():
                q[chain] = self.density.flat(self.density.draw(row[chain]))
        raise ValueError(_NOT_FINITE)

    def not_finite(self, q: Tensor) -> Tensor:
        """Whether the energy or the gradient at q is not finite, ``[C]``."""
        energy, gradient = self.energies(q)
        return ~(energy.isfinite() & gradient.isfinite().all(1))

    def _steps(self, *tensors: Tensor, times: int = 1) -> Sequence[Tensor]:
        """The results of the last of `times` steps of a block, which must be contiguous."""
        results = self._program(*tensors)
        for _ in range(times - 1):
            _, gradient, q, p = results
            results = self._program(q, p, gradient, *tensors[3:])
        return results

    def _ways(self, engine: Name, energy: Program) -> Iterator[tuple[Name, bool]]:
        """The engines to try, in this order, and whether to map the energy over chains."""
        many = engine == "auto" and energy.operations > _MOST_OPERATIONS
        names: list[Name] = ["traced"] if engine == "traced" or many else ["compiled", "traced"]
        if self.chains > 1 and self.density.maps:
            yield from ((name, True) for name in names)
        yield from ((name, False) for name in names)

    def _make(self, energy: Program, name: Name, mapped: bool, pyros: Sequence[tuple[Tensor, ...]]) -> None:
        """Make the program of a step, and compare it with Pyro at two points."""
        density, self.block = self.density, 1
        if mapped:
            cores = 1 if (on_gpu := density.device.type == "cuda") else torch.get_num_threads()
            most = cores * _BLOCK_BYTES["cuda" if on_gpu else "cpu"] // max(1, energy.bytes)
            self.block = next(n for n in range(self.chains, 0, -1) if self.chains % n == 0 and n <= max(1, most))
        chains = self.metric.scale.new_zeros(self.block, self.size)
        inputs = [chains, chains.clone(), chains.clone(), chains.new_zeros(()), *filter(torch.is_tensor, self.metric)]

        def step(energy: Callable[..., Sequence[Tensor]], *tensors: Tensor) -> Sequence[Tensor]:
            def energies(q: Tensor) -> tuple[Tensor, Tensor]:
                values = density.by_site(q).values()
                if mapped:
                    energy_of_each, *gradients = energy(*values)
                else:
                    energy_of_each, *gradients = (result[None] for result in energy(*(value[0] for value in values)))
                return energy_of_each, torch.cat([gradient.reshape(len(q), -1) for gradient in gradients], 1)

            return leapfrog(energies, *tensors)

        code = f"{[site.shape for site in density.sites.values()]} {_source()}"
        self._program = calling(step, energy, inputs, mapped=mapped, compiled=name == "compiled", code=code)
        try:
            ours = self.energies(torch.stack([q for q, *_ in pyros]).repeat(self.block, 1))
        except Exception as error:  # whatever an operation that cannot be mapped raises
            raise Untraceable(f"it cannot be run: {error}") from error
        tolerance = 1e-3 if density.dtype == torch.float32 else 1e-7
        for number, (_, want, gradient) in enumerate(pyros):
            energies, gradients = (each[number :: len(pyros)] for each in ours)
            least, sizes = 1e-3 * float(gradient.abs().max()), density.sizes  # relative to the largest
            sites = zip(gradient.split(sizes), gradients.split(sizes, 1), strict=True)
            alike = [near(wanted.expand_as(got), got, tolerance, least) for wanted, got in sites]
            if not near(want.expand_as(energies), energies, tolerance, 1.0) or not all(alike):
                raise Untraceable("its numbers differ from Pyro's")


def _recorded(density: Density, like: Tensor) -> Program:
    """The recorded energy and gradients of one chain, a function of the sites' values, for q `like`."""
    if density.changes:
        raise Untraceable(f"{density.changes}, which a trace would freeze")
    values = density.by_site(like).values()
    program = pure(functools.partial(_energy_and_gradients, density), list(values), [density.model])
    if program.is_random:
        raise Untraceable("it draws random numbers")
    _make_failures_nan(program.graph)
    _make_writes_mappable(program.graph)
    return program


def _make_failures_nan(graph: fx.Graph) -> None:
    """Fill the factor of a matrix with NaN where it does not exist, in place of an error for all chains."""
    for check in graph.find_nodes(op="call_function", target=_A._linalg_check_errors.default):
        info = check.args[0]
        factor = next(node for node in info.args[0].users if node.target is operator.getitem and node.args[1] == 0)
        graph.erase_node(check)
        with graph.inserting_before(max(factor, info).next):
            failed = graph.call_function(_A.ne.Scalar, (info, 0))
            for _ in range(2):
                failed = graph.call_function(_A.unsqueeze.default, (failed, -1))
            filled = graph.call_function(_A.masked_fill.Scalar, (factor, failed, math.nan))
        filled.meta = dict(factor.meta)
        factor.replace_all_uses_with(filled, lambda user, filled=filled: user is not filled)


def _make_writes_mappable(graph: fx.Graph) -> None:
    """Replace writes at places that differ between chains, as of `Dirichlet` and `Multinomial`, which vmap cannot do."""

    for node in [node for node in graph.nodes if node.target in (_A.scatter_.value, *_PUTS)]:
        tensor, place, *rest = node.args
        whole = (tensor.meta["val"].shape, torch.bool)
        if node.target is not _PUTS[0] and not (
            makes_new(tensor.target)
            and all(user is node or (user < node and makes_new(user.target)) for user in tensor.users)
        ):
            continue  # more than the result has what it writes
        if node.target is _A.scatter_.value:
            node.target = _A.scatter.value
        elif len(rest) == len(place) == 1 == rest[0].meta["val"].shape.numel() and place[0].meta["val"][::2] == whole:
            node.target, node.args = _A.where.self, (place[0], rest[0], tensor)


@functools.cache
def _source() -> str:
    """A hash of what a step computes besides the density, with the code around it."""
    return hashlib.sha256(f"{inspect.getsource(leapfrog)}{inspect.getsource(Metric)}".encode()).hexdigest()


def _energy_and_gradients(density: Density, *tensors: Tensor) -> list[Tensor]:
    """U and its gradients by Pyro's handlers, for the value of each site."""
    values = [value.detach().requires_grad_() for value in tensors]
    try:
        with torch.enable_grad(), unchecked():
            energy = density.energy(dict(zip(density.sites, values, strict=True)))
            gradients = torch.autograd.grad(energy, values, allow_unused=True, materialize_grads=True)
    except torch.linalg.LinAlgError:  # of a matrix that is singular up to rounding
        return [value * torch.nan for value in (values[0].detach().sum(), *values)]
    return [energy.detach(), *gradients]


def _by_pyro(density: Density) -> list[tuple[Tensor, ...]]:
    """Two points q ``[D]``, each with U and dU/dq ``[D]`` by the potential that Pyro's own kernels would use for the model.

    The points are draws from the prior, each scaled closer to 0: for a deep network most draws may have infinite energy.

    Raises:
        ValueError: fewer than two of the points have a finite energy and gradient.
    """
    args, kwargs = density.arguments.args, density.arguments.kwargs
    found: list[tuple[Tensor, ...]] = []
    for seed in range(_TRIES):
        point = {name: _NEARER**seed * value for name, value in density.draw(seed).items()}
        with seeded(seed, density.device), poutine.block(), unchecked(), made_on(density.device):
            values = {name: value.clone() for name, value in point.items()}
            made = initialize_model(
                density.model, args, kwargs, max_plate_nesting=density.nesting, initial_params=values
            )
            gradients, energy = potential_grad(made[1], values)
        if bool(energy.isfinite()) and bool((gradient := density.flat(gradients)).isfinite().all()):
            found.append((density.flat(point), energy, gradient))
        if len(found) == 2:
            return found
    raise ValueError(_NOT_FINITE)
