"""The ELBO's terms and their gradient as one graph, traced once.

    (parameters, x, y, controls, constants, noise) -> ([nll, kl], gradients of the loss)

    loss = controls[0] nll + controls[1] kl(weights) + kl(hyperparameters)

Pyro runs its handlers at every step to find out the same; here they run once, under `make_fx`, with the parameters
substituted, and what they did to tensors is kept. Every tensor that the trace met on its way (rates, precisions, prior
scales, standardisations) is an input of the graph, so nothing is baked in, and so is every random number: the graph is a
pure function.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyro
import torch
from pyro import poutine
from torch import Tensor, fx
from torch.distributions import constraints, transform_to
from torch.fx.experimental.proxy_tensor import make_fx

from pyrodrop.elbo import Terms, elbo_terms
from pyrodrop.stepper.noise import Noise, hoist, sources
from pyrodrop.stepper.untraceable import Untraceable


class Parameter(NamedTuple):
    """A parameter as the optimiser moves it, and where its values may lie."""

    unconstrained: Tensor
    constraint: constraints.Constraint


class Batch(NamedTuple):
    """Arguments of model and guide: x, y, and num_data where they are a part of the data set."""

    x: Tensor
    y: Tensor
    kwargs: dict[str, int]


@dataclass
class Graph:
    """A traced gradient. Call ``module(*parameters, x, y, controls, *constants, *noise)``.

    Attributes:
        module: the graph; its outputs are ``[nll, kl]`` and the gradient of every parameter.
        constants: the tensors that the trace met, by reference.
        noise_of: from values of the constants to how each random input is drawn, in the order in which Pyro draws them.
    """

    module: fx.GraphModule
    constants: list[Tensor]
    noise_of: Callable[[Sequence[Tensor]], list[Noise]]
    noise: list[Noise] = field(init=False)

    def __post_init__(self) -> None:
        self.noise = self.noise_of(self.constants)
        self._sources = sources([[noise] for noise in self.noise], [None])

    def shapes(self) -> list[Tensor]:
        """The random inputs without their values."""
        return [noise.empty() for noise in self.noise]

    def draw(self) -> list[Tensor]:
        """Random numbers for one step, from torch's generator, as Pyro would draw them."""
        return [drawn[0] for source in self._sources for drawn in source.draw()]


def evaluate(
    model: Callable[..., Any], guide: Callable[..., Any], batch: Batch, precision: torch.dtype | None = None
) -> Terms:
    """The ELBO's terms by Pyro; `precision` is the dtype of matrix products, the parameters' own if None."""
    with torch.autocast(batch.x.device.type, dtype=precision, enabled=precision is not None):
        return elbo_terms(model, guide, batch.x, batch.y, **batch.kwargs)


def trace(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    parameters: Mapping[str, Parameter],
    batch: Batch,
    precision: torch.dtype | None = None,
) -> Graph:
    """Trace the gradient for minibatches shaped as `batch`.

    Raises:
        Untraceable: model or guide does something that depends on the values of tensors, draws random numbers outside
            torch, draws noise whose law depends on parameters or data, or the graph's numbers are not Pyro's.
    """

    def gradient(*tensors: Tensor) -> list[Tensor]:
        *values, x, y, controls = tensors
        values = [value.detach().requires_grad_() for value in values]
        constrained = {
            name: transform_to(p.constraint)(value) for (name, p), value in zip(parameters.items(), values, strict=True)
        }
        with poutine.substitute(data=constrained):
            terms = evaluate(model, guide, Batch(x, y, batch.kwargs), precision)
        loss = controls[0] * terms.nll + controls[1] * terms.kl_weights + terms.kl_hyper
        gradients = torch.autograd.grad(loss, values, allow_unused=True, materialize_grads=True)
        return [torch.stack([terms.nll.detach(), terms.kl.detach()]), *gradients]

    values = [p.unconstrained.detach() for p in parameters.values()]
    controls = torch.ones(2, dtype=values[0].dtype, device=values[0].device)
    outside = _states_outside_torch()
    with pyro.validation_enabled(False), torch.random.fork_rng(_devices(batch)):
        try:
            module = make_fx(gradient, tracing_mode="fake", _allow_non_fake_inputs=True)(
                *values, batch.x, batch.y, controls
            )
        except Exception as error:  # whatever a user's model raises when its tensors have no values
            raise Untraceable(f"it cannot be traced: {_first_line(error)}") from error
    if _states_outside_torch() != outside:
        raise Untraceable("it draws random numbers outside torch, which a trace would freeze")
    graph = _purify(module, len(values) + 3)
    _verify(graph, model, guide, parameters, batch, controls, precision)
    return graph


def _purify(module: fx.GraphModule, inputs: int) -> Graph:
    """Turn tensors that the graph holds and random numbers that it draws into inputs."""
    graph = module.graph
    graph._codegen = fx.graph.CodeGen()  # flat in, flat out
    last = [node for node in graph.nodes if node.op == "placeholder"][inputs - 1]
    held: dict[str, fx.Node] = {}
    constants: list[Tensor] = []
    for node in list(graph.nodes):
        if node.op == "get_attr":
            if node.target not in held:
                with graph.inserting_after(last):
                    last = held[node.target] = graph.placeholder(f"constant_{len(held)}")
                constants.append(getattr(module, node.target).detach())
                last.meta["val"] = constants[-1]
            node.replace_all_uses_with(held[node.target])
            graph.erase_node(node)
    noise_of = hoist(graph, last, list(held.values()))
    graph.eliminate_dead_code()
    module.recompile()
    return Graph(module, constants, noise_of)


def _verify(
    graph: Graph,
    model: Callable[..., Any],
    guide: Callable[..., Any],
    parameters: Mapping[str, Parameter],
    batch: Batch,
    controls: Tensor,
    precision: torch.dtype | None,
) -> None:
    """Compare with Pyro on other noise than the trace's: what Python did during the trace must not have stayed in it."""
    leaves = [p.unconstrained for p in parameters.values()]
    devices = _devices(batch)
    with pyro.validation_enabled(False), torch.random.fork_rng(devices):
        torch.manual_seed(1)
        terms = evaluate(model, guide, batch, precision)
        wanted = torch.autograd.grad(terms.loss, leaves, allow_unused=True, materialize_grads=True)
        torch.manual_seed(1)
        ours = graph.module(
            *(leaf.detach() for leaf in leaves), batch.x, batch.y, controls, *graph.constants, *graph.draw()
        )
    tolerance = 1e-3 if leaves[0].dtype == torch.float32 else 1e-7
    tolerance = max(tolerance, 0.0 if precision is None else 0.05)
    pairs = [(torch.stack([terms.nll, terms.kl]).detach(), ours[0]), *zip(wanted, ours[1:], strict=True)]
    for want, got in pairs:
        scale = want.abs().max().clamp_min(torch.finfo(want.dtype).tiny)
        if not bool(((want - got).abs().max() <= tolerance * scale) | ~torch.isfinite(scale)):
            raise Untraceable(
                "its trace gives other numbers than Pyro does: something changes between calls that is no tensor"
            )


def _devices(batch: Batch) -> list[torch.device]:
    return [batch.x.device] if batch.x.is_cuda else []


def _states_outside_torch() -> tuple[Any, ...]:
    """Of the generators of Python and NumPy that a model may draw from without being seen."""
    _, keys, position, *_ = np.random.get_state(legacy=True)
    return random.getstate(), keys.tobytes(), position  # type: ignore[union-attr]


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"
