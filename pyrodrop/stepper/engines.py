"""Who makes a step: Pyro, a replayed trace, or a compiled graph.

    pyro       handlers run at every step; any model and guide
    traced     the gradient is a graph, replayed operation by operation; the optimiser is torch's
    compiled   gradient and optimiser are one graph, compiled by TorchInductor; on a GPU launched as one CUDA graph

All three draw the same random numbers in the same order. `traced` does Pyro's arithmetic; `compiled` does it in another
order, and agrees to rounding.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pyrodrop.stepper.captured import Captured
from pyrodrop.stepper.graph import Batch, Graph, Parameter, evaluate, trace
from pyrodrop.stepper.products import turn_narrow_products
from pyrodrop.stepper.rules import rules_of
from pyrodrop.stepper.untraceable import Untraceable

Name = Literal["auto", "pyro", "traced", "compiled"]
NAMES = ("auto", "pyro", "traced", "compiled")
_log = logging.getLogger("pyrodrop")


class Plan(NamedTuple):
    """What a block of steps is told, one entry a step.

    Attributes:
        first: number of the block's first step, counted from 0.
        factors: of the likelihood (temperature) and of the weights' divergence.
        rates: learning rate of every parameter group.
    """

    first: int
    factors: list[tuple[float, float]]
    rates: list[list[float]]


class Engine(Protocol):
    """Makes the steps."""

    name: str

    def begin(self, plan: Plan) -> None:
        """Look at the block of steps to come."""

    def step(self, batch: Batch, index: int) -> Tensor:
        """Move the parameters by the block's step of this index; nll and kl before it, ``[2]``."""

    def finish(self, steps: int) -> None:
        """Leave the optimiser's state as if it had made all `steps` itself."""


class Pyro:
    """Every step by Pyro's handlers."""

    name = "pyro"

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        optimizer: torch.optim.Optimizer,
        precision: torch.dtype | None,
    ) -> None:
        self.model, self.guide, self.optimizer, self.precision = model, guide, optimizer, precision

    def begin(self, plan: Plan) -> None:
        self.plan = plan

    def step(self, batch: Batch, index: int) -> Tensor:
        terms = evaluate(self.model, self.guide, batch, self.precision)
        temperature, weight = self.plan.factors[index]
        self.optimizer.zero_grad()
        (temperature * terms.nll + weight * terms.kl_weights + terms.kl_hyper).backward()
        _set_rates(self.optimizer, self.plan.rates[index])
        self.optimizer.step()
        return torch.stack([terms.nll.detach(), terms.kl.detach()])

    def finish(self, steps: int) -> None:
        pass


class Traced:
    """Every step by replaying a graph of the gradient; a graph for each size of minibatch."""

    name = "traced"

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        parameters: Mapping[str, Parameter],
        optimizer: torch.optim.Optimizer,
        precision: torch.dtype | None,
    ) -> None:
        self.model, self.guide, self.optimizer, self.precision = model, guide, optimizer, precision
        self.parameters = parameters
        self.leaves = [p.unconstrained for p in parameters.values()]
        self._graphs: dict[torch.Size, Graph] = {}

    def graph(self, batch: Batch) -> Graph:
        """The graph for minibatches of this shape."""
        shape = batch.x.shape
        if shape not in self._graphs:
            self._graphs[shape] = trace(self.model, self.guide, self.parameters, batch, self.precision)
        return self._graphs[shape]

    def begin(self, plan: Plan) -> None:
        self.plan = plan
        self._factors = torch.tensor(plan.factors).to(self.leaves[0])

    def step(self, batch: Batch, index: int) -> Tensor:
        graph = self.graph(batch)
        factors = self._factors[index]
        with torch.no_grad():
            terms, *gradients = graph.module(*self.leaves, batch.x, batch.y, factors, *graph.constants, *graph.draw())
        for leaf, gradient in zip(self.leaves, gradients, strict=True):
            leaf.grad = gradient
        _set_rates(self.optimizer, self.plan.rates[index])
        self.optimizer.step()
        return terms  # type: ignore[no-any-return]

    def finish(self, steps: int) -> None:
        self.optimizer.zero_grad()


class Replays(Protocol):
    """An engine with graphs to compile."""

    leaves: list[Tensor]
    optimizer: torch.optim.Optimizer

    def graph(self, batch: Batch) -> Any: ...


class Compiled:
    """Every step by one compiled call; a program for each shape of minibatch.

    Args:
        traced: where the graphs come from.

    Raises:
        Untraceable: the optimiser has no rule (`pyrodrop.stepper.rules`).
    """

    name = "compiled"
    options: ClassVar[dict[str, Any]] = {}  # of TorchInductor

    def __init__(self, traced: Replays) -> None:
        self.traced, self.optimizer = traced, traced.optimizer
        rules = rules_of(traced.optimizer)
        if rules is None:
            raise Untraceable(
                f"the optimiser {type(traced.optimizer).__name__} has no compiled form (Adam, AdamW and SGD have)"
            )
        self.rules = rules
        group_of = {id(p): i for i, group in enumerate(self.optimizer.param_groups) for p in group["params"]}
        self.groups = [group_of[id(leaf)] for leaf in traced.leaves]
        self.state = [
            [self.optimizer.state[leaf][name] for name in self.rules[group].state]
            for leaf, group in zip(traced.leaves, self.groups, strict=True)
        ]
        self._held = [*(leaf.detach() for leaf in traced.leaves), *(s for state in self.state for s in state)]
        self._programs: dict[torch.Size, tuple[Any, Callable[..., Any]]] = {}

    def begin(self, plan: Plan) -> None:
        rows = [
            (
                *factors,
                *(n for rule, lr in zip(self.rules, rates, strict=True) for n in rule.schedule(plan.first + i, lr)),
            )
            for i, (factors, rates) in enumerate(zip(plan.factors, plan.rates, strict=True), 1)
        ]
        self._controls = torch.tensor(rows, dtype=torch.float64).to(self._held[0]).unbind(0)

    def prepare(self, batch: Batch) -> None:
        """Compile the step for minibatches of this shape.

        Raises:
            Untraceable: the compiler fails.
        """
        if batch.x.shape not in self._programs:
            self._programs[batch.x.shape] = self._program(batch)

    def step(self, batch: Batch, index: int) -> Tensor:
        self.prepare(batch)
        graph, program = self._programs[batch.x.shape]
        inputs = (batch.x, batch.y, self._controls[index], *graph.constants, *graph.draw())
        return program(*self._held, *inputs)[0]  # type: ignore[no-any-return]

    def finish(self, steps: int) -> None:
        for leaf in self.traced.leaves:
            count = self.optimizer.state[leaf].get("step")
            if count is not None:
                count.fill_(steps)

    def choice(self, terms: Tensor, gradients: list[Tensor], extra: list[Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        """From old and new value of a parameter or state to the one that it takes."""
        return lambda old, new: new

    def _program(self, batch: Batch) -> tuple[Any, Callable[..., Any]]:
        """The graph for minibatches of this shape and the call that makes a step of it."""
        graph = self.traced.graph(batch)
        return graph, self._compile(graph, self._held, batch)

    def _compile(self, graph: Any, held: Sequence[Tensor], batch: Batch) -> Callable[..., Any]:
        with torch.no_grad():
            noise = graph.shapes()
            controls = torch.ones(2 + sum(rule.numbers for rule in self.rules)).to(self._held[0])
            inputs = [*held, batch.x, batch.y, controls, *graph.constants, *noise]
            whole = make_fx(self._update(graph), tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
            program = compile_graph(whole, inputs, self.options)
            if not batch.x.is_cuda:
                return program
            first, last = len(held), len(inputs) - len(noise)
            return Captured(program, inputs, [first, first + 1, first + 2, *range(last, len(inputs))])

    def _update(self, graph: Any) -> Callable[..., list[Tensor]]:
        """The step as a function of all its inputs that moves parameters and state in place."""
        count = len(self.traced.leaves)
        sizes = [len(state) for state in self.state]
        extras = len(self._held) - count - sum(sizes)
        offsets = [2 + sum(rule.numbers for rule in self.rules[:i]) for i in range(len(self.rules))]

        def step(*inputs: Tensor) -> list[Tensor]:
            given = iter(inputs)
            leaves = [next(given) for _ in range(count)]
            states = [[next(given) for _ in range(size)] for size in sizes]
            extra = [next(given) for _ in range(extras)]
            x, y, controls, *others = given
            terms, *gradients = graph.module(*leaves, x, y, controls[:2], *others)
            choice = self.choice(terms, gradients, extra)
            for leaf, gradient, old, group in zip(leaves, gradients, states, self.groups, strict=True):
                rule, first = self.rules[group], offsets[group]
                moved, new = rule.update(leaf, gradient, old, controls[first : first + rule.numbers])
                for place, value in zip([leaf, *old], [moved, *new], strict=True):
                    place.copy_(choice(place, value))
            return [terms]

        return step


def compile_graph(
    module: torch.fx.GraphModule, inputs: list[Tensor], options: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile a pure graph by TorchInductor, whose configuration is changed by `options`.

    Raises:
        Untraceable: the compiler fails, as where there is no C++ compiler.
    """
    module.graph._codegen = torch.fx.graph.CodeGen()
    turn_narrow_products(module)
    for attempt in ({}, _SMALL_KERNELS):
        try:
            return torch._inductor.compile(module, [*inputs], options={**(options or {}), **attempt})  # type: ignore[no-any-return, attr-defined]
        except Exception as error:  # the compiler's errors have no common type
            failure = error
    words = "".join(traceback.format_exception_only(failure)).strip().splitlines()[0]
    raise Untraceable(f"the compiler failed: {words}") from failure


# Fusing loops of unlike depths, TorchInductor 2.13 may look for a buffer that one of them does not read: a KeyError.
_SMALL_KERNELS = {"max_fusion_size": 8}


def choose(
    name: Name,
    pyro_engine: Pyro,
    parameters: Mapping[str, Parameter],
    batch: Batch,
    steps: int,
) -> Engine:
    """The engine of this name for the steps that are left; Pyro's, and one logged line why, where it cannot be had.

    `auto` weighs the work: a trace costs as much as some tens of Pyro's steps, a compilation seconds. It decides by the
    size of the graph and never by a clock, so the same call always takes the same engine and gives the same bits.
    """
    if name == "pyro" or (name == "auto" and steps < _WORTH_A_TRACE):
        return pyro_engine
    engine: Engine = pyro_engine
    try:
        traced = Traced(pyro_engine.model, pyro_engine.guide, parameters, pyro_engine.optimizer, pyro_engine.precision)
        graph = traced.graph(batch)
        engine = traced
        if name == "compiled" or (name == "auto" and worth_compiling(graph, steps)):
            compiled = Compiled(traced)
            compiled.prepare(batch)
            engine = compiled
    except Untraceable as error:
        say = _log.info if name == "auto" else _log.warning
        say("training with engine %r instead of %r: %s", engine.name, name, error)
    return engine


_WORTH_A_TRACE = 300  # steps
_NODE_SECONDS = 5e-6  # what one operation of a replayed graph costs beside its arithmetic
_ELEMENT_SECONDS = 1e-9  # and what it costs an element
_COMPILE_SECONDS = 15.0


def worth_compiling(graph: Graph, steps: int, replicates: int = 1) -> bool:
    """Whether the time that compiled steps save is likely to be more than the compiler's."""
    nodes = [node for node in graph.module.graph.nodes if node.op == "call_function"]
    elements = sum(node.meta["val"].numel() for node in nodes if isinstance(node.meta.get("val"), Tensor))
    saved = 0.7 * len(nodes) * _NODE_SECONDS + 0.5 * elements * replicates * _ELEMENT_SECONDS
    return steps * saved > 2 * _COMPILE_SECONDS


def _set_rates(optimizer: torch.optim.Optimizer, rates: list[float]) -> None:
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
