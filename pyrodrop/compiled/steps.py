"""The engines that make the steps of a fit, or of replicates, by recorded programs, operation by operation or compiled.

In a step of a small network, the arithmetic takes less time than the Python code around it. So on a CPU, rows and noise of
several consecutive steps are fetched and drawn at once, into memory that the steps then read. Random numbers are drawn in
the order of single steps. After a block of steps, the random state and the position in the epoch are those after as many
single steps, so code that runs between two blocks sees no difference. A block that is interrupted has taken the rows and the
noise of all its steps.

Optimisers are elementwise, so R replicates are one fit of parameters ``[R, ...]``. The recorded gradient of one is mapped
over all of them (`MappedProgram`). A replicate whose loss or gradient is no longer finite keeps its last parameters; the
others continue.

Before every block, everything that a program reads (`Contents`) and the addresses of the memory that steps write to are
compared with those at the recording; the loop reports changes of flags of modules and parameters. After a change the steps
are recorded again. Other changes, such as a factor of the gradient in an array, are found by comparing loss and gradients
with Pyro's: for a program after steps 2, 4, 8, ..., every 1,000th and the last, and for all models after calls of the
user's code. A comparison waits until training has taken twenty times as long as the last one, so that comparisons take at
most a twentieth of the time.

Whether a compilation is worth its time:

    a compiled step saves    (a + b n) o + m e / 2       of n operations with m entries in all their results
    compiling takes          (c + d n) o

o is the time of an operation on a few numbers, and e that of an entry. b, c and d are larger where `torch.vmap` maps
operations over replicates. All were measured on one machine and are constants, so that a call takes the same engine on
every machine. Only the ratio of e to o decides, which differs between machines by less than a factor of 2.
"""

from __future__ import annotations

import logging
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyrodrop.checks import EngineName
from pyrodrop.compiled.inductor import WholeStep, on
from pyrodrop.compiled.program import MappedProgram, Program
from pyrodrop.compiled.record import Untraceable
from pyrodrop.compiled.recorded import Recorded
from pyrodrop.devices import seeded
from pyrodrop.distributions.coins import Masks
from pyrodrop.private_apis import scripts_as_they_are
from pyrodrop.steps import Arguments, Engine, Loss, Plan, Shapes, Update

_log = logging.getLogger("pyrodrop")

_LINE = 64  # bytes: PyTorch's alignment of tensors, on which the rounding of matrix products may depend
_SHARE = 20  # a comparison waits until training has taken this many times as long as the last comparison
_LATER = 100  # steps by which such a comparison is postponed

_WORTH_A_TRACE = 30  # steps: a recording costs as much as some tens of Pyro's
_STEP, _OPERATION, _COMPILATION, _COMPILED_OPERATION = 100, 1.6, 6.5e6, 1e4  # a, b, c and d
_MAPPED_OPERATION, _MAPPED_COMPILATION = 25, 3  # b, and times c and d, of operations that are mapped
_SECONDS, _SECONDS_OF_ENTRY = 6.2e-7, 1.15e-10  # o and e
_COUNTED = 1 / 3  # of a compilation's time: later fits find the program again


class StackedLoss:
    """The losses of all replicates as one, with a leading axis ``[R, ...]`` on parameters, buffers and results.

    Args:
        losses: one per replicate; their programs may differ only in tensors.
        leaves: the parameters of all replicates, ``[R, ...]``.
        held: for every replicate, the tensors of model and guide that are not parameters, by name.

    Attributes:
        alive: which replicates had finite losses and gradients at every step, ``[R]``.
        lived: the number of steps that each replicate made, ``[R]``.
    """

    def __init__(self, losses: Sequence[Loss], leaves: Sequence[Tensor], held: Sequence[Mapping[str, Tensor]]) -> None:
        self.first: Recorded = Recorded(losses[0])
        self.leaves: list[Tensor] = list(leaves)
        self.held: Sequence[Mapping[str, Tensor]] = held
        self.buffers: list[Tensor] = [
            torch.stack(of_all) for of_all in zip(*(one.buffers for one in losses), strict=True)
        ]
        self.alive: Tensor = torch.ones(len(held), dtype=torch.bool, device=self.leaves[0].device)
        self.lived: Tensor = torch.zeros(len(held), dtype=torch.long, device=self.leaves[0].device)
        self._programs: dict[Shapes, MappedProgram] = {}

    def refresh(self) -> bool:
        """False: the tensors in `held` do not change during training."""
        return False

    def program(self, batch: Arguments) -> MappedProgram:
        """The gradient for minibatches of this shape."""
        if batch.shapes not in self._programs:
            inputs = len(self.leaves) + len(self.buffers) + len(batch.tensors) + 1
            one = self.first.program(batch.at(0))
            self._programs[batch.shapes] = MappedProgram(one, self.held, inputs)
        return self._programs[batch.shapes]

    def evaluated(self, batch: Arguments, seeds: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """nll and kl, ``[R, 2]``, and the updated buffers, without a step.

        Args:
            seeds: numbers of replicates; each has the noise that Pyro draws for it alone from its number as seed. The noise
                of the others is 0.

        Raises:
            Untraceable: the loss cannot be recorded; an operation that cannot be mapped raises any error.
        """
        program = self.program(batch)
        noise = [place.zero_() for place in program.shapes()]
        for r in seeds:
            with seeded(r, batch.device):
                for place, drawn in zip(noise, program.draw_alone(r), strict=True):
                    place[r] = drawn
        inputs = [*self.leaves, *self.buffers, *batch.tensors, self.leaves[0].new_ones(())]
        terms, *results = program.evaluate(*inputs, *program.constants, *noise)
        return terms, results[len(self.leaves) :]


def bytes_of_step(loss: Loss, batch: Arguments) -> int:
    """The memory that the gradient of a replicate's step takes; `Untraceable` if it cannot be recorded."""
    return Recorded(loss).program(batch).bytes


class Steps(Engine):
    """Makes the steps of one fit, or of replicates, in blocks.

    Args:
        loss: the loss to minimise.

    Attributes:
        most_bytes, most_bytes_of_replicates: the largest size of a block's rows and noise, for one shape of minibatches.
        most_steps: the largest number of steps of a block, for one shape of minibatches.
    """

    most_bytes: ClassVar[int] = 2**20  # fits a core's cache
    most_bytes_of_replicates: ClassVar[int] = 2**22
    most_steps: ClassVar[int] = 100

    def __init__(self, loss: Recorded | StackedLoss) -> None:
        self.loss = loss
        self.leaves: list[Tensor] = loss.leaves
        self._prepared: dict[Shapes, Prepared] = {}
        self._ahead: dict[int, Prepared] = {}  # those of which steps are made in blocks, by the size of the minibatches

    def prepare(self, batch: Arguments) -> Prepared:
        """The program for minibatches of this shape."""
        if batch.shapes not in self._prepared:
            prepared = Prepared(batch, self.loss.program(batch))
            prepared.call = self.call_of(prepared)
            self._prepared[batch.shapes] = prepared
            self.look_ahead(prepared)
        return self._prepared[batch.shapes]

    @abstractmethod
    def call_of(self, prepared: Prepared) -> Callable[..., Any]:
        """The function that `make` calls."""

    @abstractmethod
    def make(self, prepared: Prepared, rows: Sequence[Tensor], noise: Sequence[Tensor], index: int) -> Tensor:
        """Make step `index` with the tensors of its minibatch; returns nll and kl, ``[..., 2]``."""

    def begin(self, plan: Plan) -> None:
        super().begin(plan)
        if self.loss.refresh():
            for prepared in self._ahead.values():
                self.look_ahead(prepared)

    def look_ahead(self, prepared: Prepared) -> None:
        """Make steps with minibatches of this shape in blocks from now on, if that is possible."""
        batch, program = prepared.batch, prepared.program
        if batch.device.type == "cpu" and not program.draws_itself and all(t.is_contiguous() for t in batch.tensors):
            needed = [] if batch.whole else batch.tensors
            size = sum(tensor.nbytes for tensor in (*needed, *program.shapes()))
            most = self.most_bytes_of_replicates if isinstance(self.loss, StackedLoss) else self.most_bytes
            steps = min(self.most_steps, most // max(1, size))
            if steps > 1:
                prepared.reserve(steps)
                self._ahead[self.rows_of(batch)] = prepared

    def rows_of(self, batch: Arguments) -> int:
        """The size of the minibatch of one replicate."""
        return batch.at(0).rows if isinstance(self.loss, StackedLoss) else batch.rows

    def advance(self, batches: Any, count: int) -> None:
        end = len(self.made) + count
        with scripts_as_they_are():
            while len(self.made) < end:
                self.block(batches, end - len(self.made))

    def block(self, batches: Any, most: int) -> None:
        """Make at least one step and at most `most` steps at once."""
        if batches.coming()[0] not in self._ahead:
            self.made.append(self.step(batches.next(), len(self.made)))
            return
        try:
            with torch.no_grad():
                steps: list[tuple[Prepared, int]] = []  # with their places, in the order of single steps
                for prepared in self._ahead.values():
                    prepared.clear()
                while len(steps) < most:
                    size, follow = batches.coming()
                    ahead = self._ahead.get(size)
                    if ahead is None or ahead.used == ahead.steps:
                        break
                    places = range(ahead.used, min(ahead.used + min(most - len(steps), follow), ahead.steps))
                    ahead.take(batches, len(places))
                    steps += [(ahead, place) for place in places]
                for prepared in self._ahead.values():
                    prepared.fill(batches)
                for prepared, place in steps:
                    rows, noise = prepared.rows[place], prepared.noise[place]
                    self.made.append(self.make(prepared, rows, noise, len(self.made)))
        finally:
            self.written()

    def step(self, batch: Arguments, index: int) -> Tensor:
        prepared = self.prepare(batch)
        with torch.no_grad(), scripts_as_they_are():
            terms = self.make(prepared, batch.tensors, prepared.program.draw(), index)
        self.written()
        return terms

    def written(self) -> None:
        """Tell autograd what steps have written to without PyTorch's knowledge."""


class Prepared:
    """Minibatches of one shape: their program, and memory for rows and noise of several steps, the same for every block.

    Random inputs are drawn in the order of single steps. If all are masks of one fit, they are drawn for several steps at
    once: a step takes whole random words for each mask.

    Args:
        batch: a minibatch of this shape.
        program: of its gradient.

    Attributes:
        call: makes a step.
        steps: the number of steps for which there is memory.
        rows: the tensors of a minibatch, by step; `fill` writes them.
        noise: the random inputs, by step.
        used: the number of steps whose rows were taken.
    """

    call: Callable[..., Any]

    def __init__(self, batch: Arguments, program: Program) -> None:
        self.batch, self.program = batch, program
        self.strides = [tensor.stride() for tensor in batch.tensors]
        self.steps = self.used = 0

    def reserve(self, steps: int) -> None:
        """Allocate the memory of this number of steps."""
        self.steps, batch, noise = steps, self.batch, self.program.noise
        self._taken: list[Tensor] = []
        self._places = [] if batch.whole else [spaced(tensor, steps) for tensor in batch.tensors]
        self.rows: list[Any] = [batch.tensors] * steps if batch.whole else _by_step(self._places, steps)
        self._masks: Masks | None = None
        if noise and all(each.kind == "coins" for each in noise):
            self._masks = Masks([each.like for each in noise], [each.shape for each in noise], steps)
        inputs = self._masks.masks if self._masks else [spaced(each.empty(), steps) for each in noise]
        self.noise: list[tuple[Tensor, ...]] = _by_step(inputs, steps)

    def clear(self) -> None:
        """Begin another block."""
        self.used = 0
        self._taken.clear()

    def take(self, batches: Any, count: int) -> None:
        """Take row numbers, and draw random numbers in the order of single steps, for the next steps."""
        steps = slice(self.used, self.used + count)
        if self._places:
            self._taken.append(batches.take(count))
        if self._masks is not None:
            self._masks.draw(steps)
        else:
            for places in self.noise[steps]:
                for noise, place in zip(self.program.noise, places, strict=True):
                    noise.fill(place)
        self.used += count

    def fill(self, batches: Any) -> None:
        """Write the rows of all steps that were taken, and their masks."""
        if self._taken:
            rows = torch.cat(self._taken, -1) if len(self._taken) > 1 else self._taken[0]
            batches.gather(rows, [place[: self.used] for place in self._places])
        if self._masks is not None and self.used:
            self._masks.compare(self.used)


def _by_step(places: Sequence[Tensor], steps: int) -> list[tuple[Tensor, ...]]:
    """The tensors of every step, from tensors ``[steps, ...]``."""
    return list(zip(*(place.unbind(0) for place in places), strict=True)) if places else [()] * steps


def spaced(like: Tensor, steps: int) -> Tensor:
    """Uninitialised memory for one contiguous tensor per step, ``[steps, ...]``, each aligned like a separate tensor."""
    unit = max(1, _LINE // like.element_size())
    memory = like.new_empty(steps, -(-like.numel() // unit) * unit)
    return memory[:, : like.numel()].unflatten(1, like.shape) if like.dim() else memory[:, 0]


class Traced(Steps):
    """Replays the recorded gradient operation by operation; the optimiser updates the parameters."""

    name = "traced"

    def __init__(self, loss: Recorded | StackedLoss, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(loss)
        self._update = Update(optimizer)

    def call_of(self, prepared: Prepared) -> Callable[..., Any]:
        return prepared.program.run

    def begin(self, plan: Plan) -> None:
        super().begin(plan)
        self._weights = torch.tensor(plan.weights, dtype=torch.float64).to(self.leaves[0]).unbind(0)

    def make(self, prepared: Prepared, rows: Sequence[Tensor], noise: Sequence[Tensor], index: int) -> Tensor:
        loss, buffers, constants = self.loss, self.loss.buffers, prepared.program.constants
        terms, *results = prepared.call(*self.leaves, *buffers, *rows, self._weights[index], *constants, *noise)
        gradients, moved = results[: len(self.leaves)], results[len(self.leaves) :]
        for leaf, gradient in zip(self.leaves, gradients, strict=True):
            leaf.grad = gradient
        choice: Callable[[Tensor, Tensor], Tensor] = lambda _, new: new  # noqa: E731
        kept: list[Tensor] = []
        if isinstance(loss, StackedLoss):  # those that are no longer finite keep what they have
            choice = _of_the_living(terms, gradients, [loss.alive, loss.lived])
            if loss.alive.is_cuda or not bool(loss.alive.all()):  # a GPU would have to be waited for
                kept = [leaf.detach().clone() for leaf in self.leaves]
        self._update(self.plan.rates[index])
        for leaf, old in zip(self.leaves, kept, strict=False):
            leaf.copy_(choice(old, leaf))
        for buffer, new in zip(buffers, moved, strict=True):
            buffer.copy_(choice(buffer, new))
        return terms

    def finish(self, steps: int) -> None:
        self._update.clear()


class Compiled(Steps):
    """Makes every step with one compiled program; there is one program for each shape of minibatch.

    Raises:
        Untraceable: the optimiser has no rule, or no state for a parameter.
    """

    name = "compiled"

    def __init__(self, loss: Recorded | StackedLoss, optimizer: Any) -> None:
        super().__init__(loss)
        self._optimizer = optimizer
        self._options: dict[str, Any] = {}
        if isinstance(loss, StackedLoss):
            self._whole = WholeStep(self.leaves, optimizer, loss.buffers, _of_the_living, [loss.alive, loss.lived])
            # With short rows, an operation that is fused into each of its readers is computed again for every few entries,
            # so fewer operations are fused.
            self._options["realize_opcount_threshold"] = 10
        else:
            self._whole = WholeStep(self.leaves, optimizer, loss.buffers)

    def call_of(self, prepared: Prepared) -> Callable[..., Any]:
        return self._whole.compiled(prepared.program, prepared.batch, self._options)

    def begin(self, plan: Plan) -> None:
        super().begin(plan)
        rows = [
            self._whole.numbers(plan.first + i, weight, rates)
            for i, (weight, rates) in enumerate(zip(plan.weights, plan.rates, strict=True), 1)
        ]
        self._controls = torch.tensor(rows, dtype=torch.float64).to(self._whole.tensors[0]).unbind(0)

    def make(self, prepared: Prepared, rows: Sequence[Tensor], noise: Sequence[Tensor], index: int) -> Tensor:
        rest = [*rows, self._controls[index], *prepared.program.constants, *noise]
        tensors = self._whole.tensors
        device = tensors[0].device
        terms: Tensor = prepared.call([*tensors, *(rest if device.type == "cpu" else on(device, rest))])[0]
        return terms

    def written(self) -> None:
        torch.autograd.graph.increment_version(self._whole.tensors)

    def step(self, batch: Arguments, index: int) -> Tensor:
        prepared, strides = self.prepare(batch), [tensor.stride() for tensor in batch.tensors]
        if strides != prepared.strides:
            raise RuntimeError(f"the program takes tensors with strides {prepared.strides}; got {strides}")
        return super().step(batch, index)

    def finish(self, steps: int) -> None:
        for leaf in self.leaves:
            leaf.grad = None  # that of the first step, which Pyro made
            state = self._optimizer.state[leaf]
            if "step" in state:
                state["step"] = state["step"].fill_(steps) if isinstance(state["step"], Tensor) else steps


def _of_the_living(
    terms: Tensor, gradients: Sequence[Tensor], extra: Sequence[Tensor]
) -> Callable[[Tensor, Tensor], Tensor]:
    """The `Guard` of replicates: those that are not finite stop."""
    was, lived = extra
    sums = [values.sum(list(range(1, values.dim()))) if values.dim() > 1 else values for values in (terms, *gradients)]
    alive = was & torch.isfinite(torch.stack(sums)).all(0)
    was.copy_(alive)
    lived.copy_(lived + alive)
    return lambda old, new: torch.where(alive.reshape(-1, *(1,) * (new.dim() - 1)), new, old)


def accelerate(
    name: EngineName,
    loss: Recorded | StackedLoss,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Arguments],
    steps: int,
) -> Any:
    """The engine of this name for the remaining steps; None if only Pyro can make them. If it is another, one line says why.

    Args:
        name: name of the engine. `auto` decides by the number of steps and the size of the program (`worth_compiling`), so
            the same call takes the same engine.
        loss: the loss to minimise, of one fit or of replicates.
        optimizer: the optimiser of the loss's parameters.
        batches: one minibatch of every shape to come.
        steps: number of remaining steps.

    Raises:
        Untraceable: replicates, whose steps Pyro cannot make, have no program.
    """
    replicates = len(loss.held) if isinstance(loss, StackedLoss) else 0
    names: list[EngineName] = ["compiled", "traced"] if replicates else ["compiled", "traced", "pyro"]
    first = name
    if name == "auto":
        first = "traced" if replicates or steps >= _WORTH_A_TRACE else "pyro"
        with suppress(Untraceable):  # which `traced` raises again
            if first == "traced" and worth_compiling(loss.program(batches[0]), steps, max(1, replicates)):
                first = "compiled"
    failed: Untraceable | None = None
    for kind in names[names.index(first) :]:
        made: Steps | None = None
        try:
            if kind != "pyro":
                # first, as the optimiser may lack the state of parameters of a loss without a program
                for batch in batches:
                    loss.program(batch)
                made = (Compiled if kind == "compiled" else Traced)(loss, optimizer)
                for batch in batches:
                    made.prepare(batch)
            break
        except Untraceable as error:
            if kind == names[-1]:
                raise
            failed = error
    if failed is not None:
        say = _log.info if name == "auto" else _log.warning
        say("training with engine %r instead of %r: %s", kind, name, failed)
    return made


def worth_compiling(program: Program, steps: int, replicates: int = 1) -> bool:
    """Whether compiled steps are likely to save more than a third of the time of their compilation.

    Args:
        program: the gradient of a minibatch.
        steps: number of steps.
        replicates: number of replicates that are trained together; steps that are not compiled are mapped over several.
    """
    operations, entries = program.operations, program.entries * replicates
    operation, times = (_OPERATION, 1) if replicates == 1 else (_MAPPED_OPERATION, _MAPPED_COMPILATION)
    saved = (_STEP + operation * operations) * _SECONDS + 0.5 * entries * _SECONDS_OF_ENTRY
    compilation = times * (_COMPILATION + _COMPILED_OPERATION * operations) * _SECONDS
    return steps * saved > _COUNTED * compilation


class Accelerated(Engine):
    """The recorded steps of a fit, which are faster than Pyro's.

    Args:
        loss: the loss to minimise.
        optimizer: the optimiser of the loss's parameters, after its first step.
        samples: function of a number of steps (None for any) that returns one minibatch of every shape that they use.
        wanted: ``traced``, ``compiled``, or ``auto`` for the one whose preparation pays off.
        total: the total number of steps; None if it is not known.
        program: whether model or guide are programs, so that changes of everything that their code reads are detected.
    """

    def __init__(
        self,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        samples: Callable[[int | None], Sequence[Arguments]],
        wanted: EngineName,
        total: int | None,
        *,
        program: bool,
    ) -> None:
        self._recorded, self._optimizer = Recorded(loss, loss.moving.parts if program else ()), optimizer
        self._samples, self._wanted, self._total, self._program = samples, wanted, total, program
        self._since, self._calls = 0, 0
        self._due = 2 if program else sys.maxsize
        self._called: int | None = None  # the step before which the user's code ran first since the last comparison
        self._clock, self._cost = time.perf_counter(), 0.0

    def record(self, done: int, steps: int) -> bool:
        """Record the steps after the first `done`, of which `steps` are expected, by which ``auto`` chooses.

        Returns:
            Whether there is an engine faster than Pyro; if not, one logged line says why.
        """
        self._recorded.look()
        self._memory = self._memory_now()
        batches = self._samples(None if self._total is None else self._total - done)
        chosen = accelerate(self._wanted, self._recorded, self._optimizer, batches, steps)
        if chosen is not None:
            self._engine, self.name = chosen, chosen.name
        return chosen is not None

    def holds(self, done: int, changed: str) -> bool:
        name = changed or self._recorded.changed()
        if not name and self._memory_now() != self._memory:
            name = "the memory of a parameter or buffer"
        if not name:
            return True
        _log.info("after step %d, %s has changed: the steps are recorded again", done, name)
        self._engine.finish(done)
        self._recorded.forget()
        self._optimizer.zero_grad()  # of parameters that no longer get one
        expected, self._since = max(1, done - self._since), done
        return self.record(done, expected if self._total is None else min(expected, self._total - done))

    def _memory_now(self) -> list[tuple[Any, ...]]:
        """The addresses of the tensors that a step writes to; `Tensor.data` can change them, and compiled steps use them."""
        unconstrained = [parameter.unconstrained for parameter in self._recorded.loss.parameters.values()]
        return [(t.data_ptr(), t.stride(), t.dtype) for t in (*unconstrained, *self._recorded.buffers)]

    def until(self, done: int, end: int) -> int:
        return min(end, self._due) if self._due > done else end

    def called(self, done: int) -> None:
        self._calls += 1
        self._called = done if self._called is None else self._called
        if self._calls & (self._calls - 1) == 0 or self._has_waited():
            self._due = done

    def begin(self, plan: Plan) -> None:
        self._engine.begin(plan)
        self.plan, self.made, done = plan, self._engine.made, plan.first
        if done < self._due or done == self._recorded.compared:
            return
        if self._called is None and not self._has_waited():
            self._due = done + _LATER
        else:
            self._compare(done)

    def advance(self, batches: Any, count: int) -> None:
        self._engine.advance(batches, count)

    def step(self, batch: Any, index: int) -> Tensor:
        return self._engine.step(batch, index)

    def check(self, done: int) -> None:
        if done != self._recorded.compared and (self._program or (self._called is not None and self._called < done)):
            self._compare(done)

    def finish(self, steps: int) -> None:
        self._engine.finish(steps)

    def _has_waited(self) -> bool:
        return time.perf_counter() - self._clock > _SHARE * self._cost

    def _compare(self, done: int) -> None:
        """Compare loss, gradients and buffers of the recorded steps with Pyro's; a RuntimeError if they differ."""
        start = time.perf_counter()
        for batch in self._samples(1):
            if unlike := self._recorded.differs(batch):
                raise self._recorded.error(unlike)
        self._recorded.compared, self._called = done, None
        self._due = min(max(1, 2 * done), (done // 1000 + 1) * 1000) if self._program else sys.maxsize
        self._clock = time.perf_counter()
        self._cost = self._clock - start
