"""The engine that compiles gradient and optimiser into one program with TorchInductor.

On a CPU the program is one C++ function, called without PyTorch's checks of every call. On a GPU several steps, with their
noise, are one CUDA graph.
"""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyrodrop.arrays import near
from pyrodrop.compiled.graph import Graph, make_flat
from pyrodrop.compiled.in_blocks import InBlocks, spaced
from pyrodrop.compiled.narrow_products import rewrite_products
from pyrodrop.compiled.noise import AS_THEY_ARE
from pyrodrop.compiled.optimizers import rules_of
from pyrodrop.compiled.private_apis import Program, compile_by_inductor, elementary_forms, record
from pyrodrop.compiled.programs import found_or_made
from pyrodrop.compiled.recorded import Graphs
from pyrodrop.compiled.replays import Captured
from pyrodrop.compiled.untraceable import Untraceable, first_line, first_that_works
from pyrodrop.devices import seeded
from pyrodrop.steps import Arguments, Plan, Shapes

_log = logging.getLogger("pyrodrop")
_A: Any = torch.ops.aten

# Options of TorchInductor. Compiling PyTorch's headers ahead takes as long as six programs that do without.
NATIVE = {"cpp_wrapper": True, "size_asserts": False, "cpp_cache_precompile_headers": False}

Call = Callable[[list[Tensor]], Sequence[Tensor]]

# Operations that write to tensors which their signatures do not mark as written; their elementary forms mark them.
_BATCH_NORMS = (_A.native_batch_norm, _A.native_batch_norm_backward, _A.cudnn_batch_norm, _A.cudnn_batch_norm_backward)


class Compiled(InBlocks):
    """Makes every step of a fit with one compiled program; there is one program for each shape of minibatch.

    Args:
        loss: the loss to minimise; its graphs are compiled.

    Raises:
        Untraceable: the optimiser has no rule (`pyrodrop.compiled.optimizers`), or no state for a parameter.
    """

    name = "compiled"
    options: ClassVar[dict[str, Any]] = {}  # options of TorchInductor
    most_bytes_on_gpu: ClassVar[int] = 2**28
    most_steps_on_gpu: ClassVar[int] = 10

    def __init__(self, loss: Graphs, optimizer: Any) -> None:
        super().__init__(loss)
        self.optimizer: Any = optimizer  # of `torch.optim`, or the optimisers of a `PyroOptim` as one
        self.leaves: list[Tensor] = loss.leaves
        rules = rules_of(optimizer)
        if rules is None:
            raise Untraceable(
                f"the optimiser {type(optimizer).__name__} has no compiled form (Adam, AdamW, ClippedAdam and SGD have)"
            )
        self.rules = rules
        group_of = {id(p): i for i, group in enumerate(self.optimizer.param_groups) for p in group["params"]}
        self.groups: list[int] = [group_of[id(leaf)] for leaf in self.leaves]
        try:
            self.state: list[list[Any]] = [
                [self.optimizer.state[leaf][name] for name in self.rules[group].state]
                for leaf, group in zip(self.leaves, self.groups, strict=True)
            ]
        except KeyError as error:
            raise Untraceable(f"a parameter had no gradient in the first step, so that it has no {error}") from error
        leaves, states = [leaf.detach() for leaf in self.leaves], [s for state in self.state for s in state]
        self._held = [*leaves, *states, *loss.buffers]
        self._held_by = [self._held]  # every group
        self._calls: dict[Shapes, tuple[Sequence[Any], Call]] = {}  # the graph of every group, and the call of all
        self._strides: dict[Shapes, list[tuple[int, ...]]] = {}
        self._width: int = 2 + sum(rule.numbers for rule in self.rules)  # of the numbers of a step
        self._captured: dict[Shapes, tuple[Arguments, Captured]] = {}  # on a GPU
        self._shapes: dict[int, Shapes] = {}  # of minibatches there, by their size

    def begin(self, plan: Plan) -> None:
        super().begin(plan)
        rows = [
            (
                *factors,
                *(n for rule, lr in zip(self.rules, rates, strict=True) for n in rule.schedule(plan.first + i, lr)),
            )
            for i, (factors, rates) in enumerate(zip(plan.factors, plan.rates, strict=True), 1)
        ]
        self._numbers = torch.tensor(rows, dtype=torch.float64).to(self._held[0])
        self._controls = self._numbers.unbind(0)

    def prepare(self, batch: Arguments) -> None:
        """Compile the step for minibatches of this shape."""
        if batch.shapes not in self._calls:
            self._strides[batch.shapes] = [tensor.stride() for tensor in batch.tensors]
            graphs = self.graphs(batch)
            call = self._call(graphs[0], self._held_by[0], self.of_groups(batch)[0])
            self._calls[batch.shapes] = graphs, call
            self.look_ahead(batch, graphs)

    def graphs(self, batch: Arguments) -> Sequence[Any]:
        """The graph of every group."""
        return [self.loss.graph(batch)]

    def look_ahead(self, batch: Arguments, graphs: Sequence[Any]) -> None:
        if batch.device.type == "cpu":
            super().look_ahead(batch, graphs)
        elif all(noise.device == batch.device for noise in graphs[0].shapes()):  # the GPU cannot draw what the CPU does
            self._captured[batch.shapes] = batch, self._capture(batch, graphs[0])
            self._shapes[(batch if self.replicates is None else batch.at(0)).rows] = batch.shapes

    def seen(self) -> list[Arguments]:
        return [*super().seen(), *(batch for batch, _ in self._captured.values())]

    def _capture(self, batch: Arguments, graph: Any) -> Captured:
        """Steps with minibatches like this one as CUDA graphs; there is one group on a GPU."""
        call, held, constants = self._calls[batch.shapes][1], self._held_by[0], on(batch.device, graph.constants)
        same, rows, steps = batch.tensors, list[Tensor](), self.most_steps_on_gpu
        if not batch.whole:
            alone = not all(tensor.is_contiguous() for tensor in same)
            steps = 1 if alone else max(1, min(steps, self.most_bytes_on_gpu // sum(tensor.nbytes for tensor in same)))
            rows = [torch.empty_like(tensor)[None] if alone else spaced(tensor, steps) for tensor in same]
            for place, tensor in zip(rows, same, strict=True):
                place.copy_(tensor)

        def step(rows: Sequence[Tensor], numbers: Tensor) -> Tensor:
            return call([*held, *(rows or same), numbers, *constants, *graph.draw()])[0]

        with torch.no_grad():
            return Captured(step, self._held, rows, self._held[0].new_ones(steps, self._width))

    def block(self, batches: Any, most: int) -> None:
        size, follow = batches.coming()
        if size not in self._shapes:
            super().block(batches, most)
            return
        first, steps = len(self.made), self._captured[self._shapes[size]][1]
        count = min(most, follow, len(steps.numbers))
        try:
            with torch.no_grad():
                if steps.rows:
                    batches.gather(batches.take(count), [place[:count] for place in steps.rows])
                steps.numbers[:count].copy_(self._numbers[first : first + count])
                self.made += steps(count).unbind(0)
        finally:
            torch.autograd.graph.increment_version(self._held)

    def step(self, batch: Arguments, index: int) -> Tensor:
        self.prepare(batch)
        shapes, strides = batch.shapes, [tensor.stride() for tensor in batch.tensors]
        if strides != self._strides[shapes]:
            raise RuntimeError(f"the program takes tensors with strides {self._strides[shapes]}; got {strides}")
        with torch.no_grad():
            if shapes in self._captured:
                terms = [self._by_graph(self._captured[shapes][1], batch.tensors, index)]
            else:
                pairs = zip(self.of_groups(batch), self._calls[shapes][0], strict=True)
                terms = [
                    self.make(shapes, of_group.tensors, graph.draw(), index, group)
                    for group, (of_group, graph) in enumerate(pairs)
                ]
        torch.autograd.graph.increment_version(self._held)
        return terms[0] if len(terms) == 1 else torch.cat(terms)

    def _by_graph(self, steps: Captured, rows: Sequence[Tensor], index: int) -> Tensor:
        for place, tensor in zip(steps.rows, rows, strict=False):  # no places if every step has the same rows
            place[0].copy_(tensor, non_blocking=True)
        steps.numbers[0].copy_(self._controls[index])
        return steps(1)[0]

    def make(
        self, shapes: Shapes, rows: Sequence[Tensor], noise: Sequence[Tensor], index: int, group: int = 0
    ) -> Tensor:
        graphs, call = self._calls[shapes]
        rest = [*rows, self._controls[index], *graphs[group].constants, *noise]
        device = self._held[0].device
        return call([*self._held_by[group], *(rest if device.type == "cpu" else on(device, rest))])[0]

    def changed(self) -> list[Tensor]:
        return self._held

    def finish(self, steps: int) -> None:
        for leaf in self.leaves:
            leaf.grad = None  # that of the first step, which Pyro made
            state = self.optimizer.state[leaf]
            if "step" in state:
                state["step"] = state["step"].fill_(steps) if isinstance(state["step"], Tensor) else steps

    def choice(self, terms: Tensor, gradients: list[Tensor], extra: list[Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        """A function from the old and the new value of a parameter or state to the value that it takes."""
        return lambda old, new: new

    def _call(self, graph: Any, held: Sequence[Tensor], batch: Arguments) -> Call:
        """The call of a graph's program for these tensors and minibatches of this shape."""
        wrappers = [("in Python", self.options)]
        if batch.device.type == "cpu":
            wrappers.insert(0, ("as a C++ function", {**self.options, **NATIVE}))
        if graph.draws_itself:
            check_draws(graph, held)
            wrappers = [(words, {**options, "fallback_random": True}) for words, options in wrappers]
        compiled = ((words, partial(self._compile, graph, held, batch, options)) for words, options in wrappers)
        _, call = first_that_works(
            compiled,
            lambda words, error: _log.info(
                "the compiled step is called from Python, which is slower: %s, %s", words, error
            ),
        )
        return call

    def _compile(self, graph: Any, held: Sequence[Tensor], batch: Arguments, options: Mapping[str, Any]) -> Call:
        with torch.no_grad():
            noise = graph.shapes()
            controls = self._held[0].new_ones(self._width)
            inputs = on(batch.device, [*held, *batch.tensors, controls, *graph.constants, *noise])
            update = self._update(graph.module, len(batch.tensors))
            program = found_or_made(
                [
                    type(self).__name__,
                    graph.text,
                    *self.rules,
                    self.groups,
                    sorted(options.items()),
                ],
                inputs,
                lambda: compile_graph(update, inputs, options),
                lambda program: self._try(program, graph, held, batch, controls),
            )
            return program.call

    def _try(
        self, program: Callable[..., Any], graph: Any, held: Sequence[Tensor], batch: Arguments, controls: Tensor
    ) -> None:
        """Make a step on copies, by the program and by the graph, and compare; see `for_some_noise`.

        Compared are nll, kl, the buffers, and values that move in proportion to the gradient: the optimiser's state, or the
        parameters if there is no state. Parameters under Adam do not: a gradient of 0 up to rounding moves them, too.
        """
        first = len(self.leaves) if any(self.state) else 0
        end = len(self.leaves) + sum(len(state) for state in self.state) + len(self.loss.buffers)

        def compare(noise: list[Tensor]) -> None:
            rest = [*batch.tensors, controls, *graph.constants, *noise]
            want, got = ([value.clone() for value in held] for _ in range(2))
            with seeded(0, batch.device):  # of what the graph itself draws
                terms = self._update(graph.evaluate, len(batch.tensors))(*want, *rest)
            try:
                with seeded(0, batch.device):
                    ours = program(*got, *on(batch.device, rest))
            except Exception as error:
                raise Untraceable(f"its compiled program cannot be run: {first_line(error)}") from error
            moves = [(a - old, b - old) for a, b, old in list(zip(want, got, held, strict=True))[first:end]]
            check_same([(terms[0], ours[0])], moves)

        for_some_noise(graph.shapes(), compare)

    def _update(self, evaluate: Callable[..., Any], tensors: int) -> Callable[..., list[Tensor]]:
        """The step as a function of all its inputs that updates parameters, state and buffers in place."""
        count, buffers = len(self.leaves), len(self.loss.buffers)
        sizes = [len(state) for state in self.state]
        extras = len(self._held) - count - sum(sizes) - buffers
        offsets = [2 + sum(rule.numbers for rule in self.rules[:i]) for i in range(len(self.rules))]

        def step(*inputs: Tensor) -> list[Tensor]:
            given = iter(inputs)
            leaves = [next(given) for _ in range(count)]
            states = [[next(given) for _ in range(size)] for size in sizes]
            moving = [next(given) for _ in range(buffers)]
            extra = [next(given) for _ in range(extras)]
            batch = [next(given) for _ in range(tensors)]
            controls, *others = given
            terms, *results = evaluate(*leaves, *moving, *batch, controls[:2], *others)
            gradients, moved = results[:count], results[count:]
            choice = self.choice(terms, gradients, extra)
            for leaf, gradient, old, group in zip(leaves, gradients, states, self.groups, strict=True):
                rule, first = self.rules[group], offsets[group]
                after, new = rule.update(leaf, gradient, old, controls[first : first + rule.numbers])
                for place, value in zip([leaf, *old], [after, *new], strict=True):
                    place.copy_(choice(place, value))
            for place, value in zip(moving, moved, strict=True):
                place.copy_(choice(place, value))
            return [terms]

        return step


def check_same(terms: Sequence[tuple[Tensor, Tensor]], gradients: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Raise `Untraceable` if pairs of results of a graph and its program differ by more than rounding.

    Each gradient is compared relative to its largest entry, or to a hundredth of the largest entry of all if that is more.
    """
    sizes = [float(one.abs().max()) for one, _ in gradients if one.numel() and one.is_floating_point()]
    least = 1e-2 * max((size for size in sizes if math.isfinite(size)), default=0.0)
    same = all(near(*pair, 2e-3) for pair in terms)
    if not same or not all(near(*pair, 1e-2, least) for pair in gradients):
        raise Untraceable("its compiled program gives other numbers than the trace does")


def check_draws(graph: Graph, inputs: Sequence[Tensor]) -> None:
    """Raise `Untraceable` for a graph whose compiled program would draw other random numbers than the graph."""
    others = [str(operation) for operation in graph.draws_itself if operation not in AS_THEY_ARE]
    if others or (graph.draws_itself and any(tensor.is_cuda for tensor in inputs)):
        raise Untraceable(
            f"it draws noise whose distribution depends on parameters, by {(others or graph.draws_itself)[0]}, of which a "
            "compiled program would draw other numbers"
        )


def compile_function(function: Callable[..., Any], inputs: list[Tensor]) -> Program:
    """A function of tensors, which may call programs mapped over many values, compiled by TorchInductor.

    The program does not check its inputs, which must be contiguous and of the shapes and dtypes of `inputs`.

    Raises:
        Untraceable: the function cannot be recorded, or the compiler fails.
    """
    return compile_graph(function, inputs, {"size_asserts": False})


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Collect garbage less often within the block: compiling allocates many objects, most of which stay."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], 50_000) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@_seldom_collected()
def compile_graph(function: Callable[..., Any], inputs: list[Tensor], options: Mapping[str, Any]) -> Program:
    """Compile a function of tensors by TorchInductor, with these options of its configuration.

    Raises:
        Untraceable: the function cannot be recorded, or the compiler fails, such as without a C++ compiler.
    """
    try:
        module = record(function, inputs, elementary_forms(_BATCH_NORMS))
    except Exception as error:  # whatever an operation that cannot be mapped over replicates or chains raises
        raise Untraceable(f"it cannot be recorded: {first_line(error)}") from error
    make_flat(module)
    rewrite_products(module)
    for attempt in ({}, _SMALL_KERNELS):
        try:
            return compile_by_inductor(module, inputs, {**options, **attempt})
        except Exception as error:  # the compiler's errors have no common type
            failure = error
    raise Untraceable(f"the compiler failed: {first_line(failure)}") from failure


# Fusing loops of different depths, TorchInductor 2.13 may look up a buffer that one of them does not read: a KeyError.
_SMALL_KERNELS = {"max_fusion_size": 8}


def on(device: torch.device, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Move tensors to the device of a program: numbers, and rows of a subsample, may have been made on the CPU."""
    return [tensor.to(device) for tensor in tensors]


def any_number(noise: Tensor) -> float:
    """A value that any random input of this dtype may take."""
    return 0.5 if noise.is_floating_point() else float(noise.dtype == torch.uint8)


def for_some_noise(likes: Sequence[Tensor], compare: Callable[[list[Tensor]], None]) -> None:
    """Compare a graph and its program for constant noise, and as long as they differ, for up to two random draws.

    Rounding may carry one value over the kink of a ReLU or a tie of a maximum, and a gradient then changes by the share of
    that value. This does not recur at the same place for other noise, while a wrong program stays wrong.

    Raises:
        Untraceable: `compare` raises it for every noise.
    """
    for attempt in range(3):
        noise = [torch.full_like(like, any_number(like)) for like in likes]
        generator = torch.Generator().manual_seed(attempt)
        for values in noise if attempt else ():
            if values.is_floating_point():
                values.copy_(torch.rand(values.shape, generator=generator))
            elif values.dtype == torch.uint8:  # a mask
                values.copy_(torch.rand(values.shape, generator=generator) > 0.5)
        try:
            compare(noise)
            return
        except Untraceable as error:
            failure = error
    raise failure
