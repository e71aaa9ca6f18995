"""The energy and its gradient as one function of tensors: by Pyro's handlers, as a traced graph, or compiled.

    (u_1, ..., u_J) -> (U, dU/du_1, ..., dU/du_J)

U is the energy of `pyrodrop.sampling.density`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from pyrodrop.compiled import Untraceable, first_that_works, pure
from pyrodrop.compiled.graph import Graph
from pyrodrop.compiled.inductor import compile_pure
from pyrodrop.constraints import EngineName as Name
from pyrodrop.inputs import parts, rebuilt
from pyrodrop.sampling.density import Density, unchecked
from pyrodrop.sampling.posterior import NOT_PYROS

_log = logging.getLogger("pyrodrop")

T = TypeVar("T")
Program = Callable[..., list[Tensor]]


def programs(density: Density, name: Name) -> Iterator[tuple[Name, Callable[[], Program]]]:
    """The engines to try, in this order, each with a function that makes its program or raises `Untraceable`."""
    graphs: list[Graph] = []

    def graph() -> Graph:
        if not graphs:
            graphs.append(graph_of(density))
        return graphs[0]

    if name in ("auto", "compiled"):
        yield "compiled", lambda: _compiled(density, graph())
    if name != "pyro":
        yield "traced", lambda: _traced(density, graph())
    yield "pyro", lambda: _function(density, _data(density))


def first_way(what: str, engine: Name, ways: Iterable[tuple[str, Callable[[], T]]]) -> T:
    """What the first of these functions returns that does not raise `Untraceable`; the log says why others were left out.

    Args:
        ways: to make it, by the engine in words.

    Raises:
        ValueError: not even Pyro's handlers agree with themselves.
    """
    say = _log.info if engine == "auto" else _log.warning
    try:
        return first_that_works(ways, lambda name, error: say("no %s by engine %s: %s", what, name, error))[1]
    except Untraceable as error:
        raise ValueError(NOT_PYROS) from error


def _function(density: Density, given: Sequence[Tensor] | None = None) -> Program:
    """Energy and gradient by Pyro's handlers; without `given`, the tensors of x and y are further arguments."""

    def function(*tensors: Tensor) -> list[Tensor]:
        values = [value.detach().requires_grad_() for value in tensors[: len(density.sites)]]
        *xs, y = given if given is not None else tensors[len(density.sites) :]
        with torch.enable_grad(), unchecked():
            energy = density.energy(dict(zip(density.sites, values, strict=True)), rebuilt(density.x, list(xs)), y)
            gradients = torch.autograd.grad(energy, values, allow_unused=True, materialize_grads=True)
        return [energy.detach(), *gradients]

    return function


def _data(density: Density) -> list[Tensor]:
    return [*parts(density.x), density.y]


def _start(density: Density) -> list[Tensor]:
    """Values of the shapes of the sites."""
    return [torch.zeros(site.shape, dtype=density.dtype, device=density.device) for site in density.sites.values()]


def graph_of(density: Density) -> Graph:
    """The traced energy and gradient; its inputs are the sites' values, x, y and the graph's constants."""
    if density.model.changes_itself:
        raise Untraceable(f"{density.model.changes_itself}, which a trace would freeze")
    graph = pure(_function(density), [*_start(density), *_data(density)], [density.model])
    if graph.noise or graph.draws_itself:
        raise Untraceable("it draws random numbers")
    return graph


def fixed_inputs(density: Density, graph: Graph) -> list[Tensor]:
    """The inputs of the graph after the sites' values."""
    return [tensor.contiguous() for tensor in (*_data(density), *graph.constants)]


def _traced(density: Density, graph: Graph) -> Program:
    fixed = fixed_inputs(density, graph)

    def program(*values: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return graph.module(*values, *fixed)  # type: ignore[no-any-return]

    return program


def _compiled(density: Density, graph: Graph) -> Program:
    fixed = fixed_inputs(density, graph)
    program = compile_pure(graph, [*_start(density), *fixed])

    def run(*values: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return program(*(value.contiguous() for value in values), *fixed)  # type: ignore[no-any-return]

    return run
