"""Replicates that are trained together, as one step of stacked parameters (`pyrodrop.engines.stacked`)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyro
import torch
from torch import Tensor

from pyrodrop.arguments import MOST
from pyrodrop.data import Dataset
from pyrodrop.devices import available, seeded
from pyrodrop.engines import Batch, Engine, Untraceable, worth_compiling
from pyrodrop.engines.graph import near, peak
from pyrodrop.engines.stacked import Stacked, StackedCompiled, StackedLoss
from pyrodrop.inputs import parts
from pyrodrop.networks.modes import undisturbed
from pyrodrop.training.fitted import Fit
from pyrodrop.training.loop import Loop
from pyrodrop.training.minibatches import StackedMinibatches
from pyrodrop.training.optimizer import optimizer_of
from pyrodrop.training.problem import Problem, describe
from pyrodrop.training.record import record
from pyrodrop.training.settings import Settings

_log = logging.getLogger("pyrodrop")


class Stack:
    """Replicates that are trained together.

    Args:
        problems: one per replicate, equal but for their tensors. The same one may be given for several or all of them, which
            then differ in data, noise and the initial parameters that `loop` may be given.
        generators: one per replicate.
        settings: of all replicates.
        data: one data set per replicate, of equal shapes; those of the problems if None.

    Raises:
        ValueError: the problems differ in more than their tensors, or cannot be traced.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        generators: Sequence[torch.Generator],
        settings: Settings,
        data: Sequence[Dataset] | None = None,
    ) -> None:
        self.problems, self.generators, self.settings = problems, generators, settings
        data = [problem.data for problem in problems] if data is None else data
        self.batches = StackedMinibatches(data, settings.batch_size, generators, settings.place)
        batch = self.batches.first()
        self._first_of = _firsts(problems)
        own = {r: problems[r].loss(batch.at(r), settings.dtype) for r in sorted(set(self._first_of))}
        self.losses = [own[first] for first in self._first_of]
        changes = [loss.changes for loss in self.losses if loss.changes]
        if changes:
            raise _refusal(f"{changes[0]}, which a trace would freeze")
        samples = self.batches.samples(settings.steps)
        problems[0].check_batches(self.losses[0], [sample.at(0) for sample in samples[1:]])
        held = {r: problems[r].tensors() for r in own}
        self.held = [held[first] for first in self._first_of]
        shapes = {r: self._shapes(r) for r in own}
        for r, mine in shapes.items():
            other = sorted(n for n in mine.keys() | shapes[0].keys() if mine.get(n) != shapes[0].get(n))
            if other:
                raise ValueError(f"replicate {r} differs from replicate 0 in what it is made of: {', '.join(other)}")

    def _shapes(self, replicate: int) -> dict[str, torch.Size]:
        """The shape of every tensor of a replicate, by name."""
        loss = self.losses[replicate]
        shapes = {n: v.shape for n, v in self.held[replicate].items()}
        shapes |= {n: p.unconstrained.shape for n, p in loss.parameters.items()}
        return shapes | {f"moving buffer {n}": b.shape for n, b in loss.moving.named().items()}

    def fitting(self, memory: float | None) -> int:
        """How many replicates like the first fit into so many bytes, at least 1; into half of the free memory if None."""
        first, loss = self.problems[0], self.losses[0]
        try:
            graph = loss.graph(self.batches.first().at(0))
        except Untraceable as error:
            raise _refusal(str(error)) from error
        weights = sum(leaf.nbytes for leaf in loss.leaves)
        need = 5 * weights + peak(graph.module.graph) + sum(x.nbytes for x in parts(first.data.x))
        budget = memory or 0.5 * available(self.settings.place)
        return max(1, int(min(budget, MOST) // need))

    def loop(self, starts: Mapping[str, Tensor] | None = None) -> Loop:
        """The training of all replicates before its first step.

        Args:
            starts: initial values of what is trained, ``[R, ...]`` by name; those of the problems if None.
        """
        settings, count = self.settings, len(self.problems)
        starts = starts or {
            name: torch.stack([loss.parameters[name].unconstrained.detach() for loss in self.losses])
            for name in self.losses[0].parameters
        }
        self.parameters = {name: starts[name].clone().requires_grad_() for name in self.losses[0].parameters}
        optimizer = optimizer_of(self.parameters, settings.optimizer, settings.lr, stacked=True)
        self.loss = StackedLoss(self.losses, list(self.parameters.values()), self.held, self.generators)
        for batch in self.batches.samples(settings.steps):
            self._verify(self.loss, batch)
        loop = Loop(
            self.parameters,
            self.batches,
            optimizer,
            settings,
            first=Stacked(self.loss, optimizer),
            choose=lambda batches, steps: self._choose(optimizer, batches, steps),
            title=f"{count} x {describe(self.problems[0].guide).split('(')[0]}",
            replicates=(count,),
        )
        loop.failure = _AllFailed(self)
        return loop

    def train(self, seeds: Sequence[int], progress: bool | None) -> tuple[list[Fit], dict[int, int]]:
        """Train all replicates.

        Args:
            seeds: of the replicates, for the record.
            progress: whether to show a progress bar.

        Returns:
            The fits, and by number the last step of every replicate that failed.
        """
        start = time.perf_counter()
        loop = self.run(progress)
        seconds = time.perf_counter() - start
        self._take_over()
        history = loop.history.cpu()
        more = {"engine": loop.engine.name, "replicates": len(self.problems), "seconds": seconds}
        fits = [
            Fit(
                problem.model,
                problem.guide,
                problem.data,
                history[:, r].contiguous(),
                {**record(self.settings, problem, seeds[r]), **more},
                self.settings.place,
            )
            for r, problem in enumerate(self.problems)
        ]
        return fits, self.failed()

    def run(self, progress: bool | None, starts: Mapping[str, Tensor] | None = None) -> Loop:
        """Make all steps. `parameters` then has the results, stacked; models and guides do not change.

        Args:
            progress: whether to show a progress bar.
            starts: as in `loop`.
        """
        loop = self.loop(starts)
        loop.run(progress)
        return loop

    def failed(self) -> dict[int, int]:
        """The last step of every replicate that failed, by number."""
        lived = self.loss.lived.tolist()
        return {r: lived[r] for r in (~self.loss.alive).nonzero().flatten().tolist()}

    def load(self, replicate: int) -> None:
        """Give the results of one replicate to its model and guide, which other replicates may share."""
        with torch.no_grad():
            for name, values in self.parameters.items():
                self.losses[replicate].parameters[name].unconstrained.copy_(values[replicate])
        self.losses[replicate].moving.take([buffer[replicate] for buffer in self.loss.buffers])

    @contextmanager
    def _loaded(self, replicate: int) -> Iterator[None]:
        """Load a replicate for the time being."""
        loss = self.losses[replicate]
        state = [*loss.leaves, *loss.buffers]
        before = [value.detach().clone() for value in state]
        try:
            self.load(replicate)
            yield
        finally:
            with torch.no_grad():
                for value, old in zip(state, before, strict=True):
                    value.copy_(old)

    def _take_over(self) -> None:
        """Copy every replicate's parameters and buffers to its own model and guide."""
        for r in range(len(self.losses)):
            self.load(r)

    def _choose(self, optimizer: torch.optim.Optimizer, batches: Sequence[Batch], steps: int) -> Engine:
        name, traced = self.settings.engine, Stacked(self.loss, optimizer)
        if name == "traced" or (
            name == "auto" and not worth_compiling(self.loss.graph(batches[0]).graph, steps, len(self.held))
        ):
            return traced
        try:
            compiled = StackedCompiled(self.loss, optimizer)
            for batch in batches:
                compiled.prepare(batch)
            return compiled
        except Untraceable as error:
            _log.warning("training replicates without compiling: %s", error)
            return traced

    def _verify(self, loss: StackedLoss, batch: Batch) -> None:
        """Raise a ValueError unless every replicate has the same loss and buffers alone and in the stacked graph.

        Of replicates that share a problem, which can differ in data alone, the first two and the last are compared.
        """
        states = [generator.get_state() for generator in self.generators]
        try:
            graph = loss.graph(batch)
            with torch.no_grad():
                controls = torch.ones(2).to(loss.leaves[0])
                inputs = (*loss.buffers, *batch.tensors, controls, *graph.constants, *graph.draw())
                terms, *results = graph.module(*loss.leaves, *inputs)
        except Exception as error:  # whatever an operation that cannot be mapped raises
            words = str(error) if isinstance(error, Untraceable) else f"it cannot be mapped over replicates: {error}"
            raise _refusal(words.splitlines()[0]) from error
        moved = results[len(loss.leaves) :]
        for generator, state in zip(self.generators, states, strict=True):
            generator.set_state(state)
        for r in sorted(set(self._first_of) | {min(1, len(states) - 1), len(states) - 1}):
            own, state = self.losses[r], states[r]
            with self._loaded(r), torch.no_grad(), pyro.validation_enabled(False), seeded(0, batch.device):
                _set_state(state, batch.device)
                with undisturbed(self.problems[r].model, self.problems[r].guide):
                    alone = own.terms(batch.at(r))
                    buffers = [buffer.detach().clone() for buffer in own.buffers]
            want = torch.stack([alone.nll, alone.kl])
            tolerance = 0.05 if self.settings.dtype is not None else 1e-3
            if not torch.allclose(want, terms[r], rtol=tolerance, atol=1e-4, equal_nan=True):
                raise ValueError(
                    f"replicate {r} differs from replicate 0 in more than replicates may: data, initial values, drop rates, "
                    f"alphas, precisions and scales of Gaussian priors; its loss alone is {want.tolist()}, stacked "
                    f"{terms[r].tolist()}"
                )
            if not all(near(value, got[r], tolerance) for value, got in zip(buffers, moved, strict=True)):
                raise _refusal("many replicates update the buffers of the network differently from one")


class _AllFailed:
    """What to say where no replicate has a finite loss: single steps are not made again."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack

    def remember(self) -> None:
        """Replicates that failed keep their last finite parameters, and no copy is needed."""

    def words(self) -> str:
        """Which replicate failed first, and how to find out why."""
        failed = self._stack.failed()
        first = min(failed, key=lambda replicate: failed[replicate], default=0)
        batches = self._stack.batches
        return (
            f"All {len(self._stack.problems)} replicates failed, replicate {first} first, on a minibatch of {batches.size} "
            f"of {batches.num_rows} rows; they keep their last finite parameters. To see which parameter broke first, fit "
            f"replicate {first} alone, with seed + {first}."
        )


def _firsts(problems: Sequence[Problem]) -> list[int]:
    """For every replicate, the first one that has the same problem: its own number where all have their own."""
    seen: dict[int, int] = {}
    return [seen.setdefault(id(problem), r) for r, problem in enumerate(problems)]


def _refusal(why: str) -> ValueError:
    return ValueError(
        f"replicates are trained as one traced step, which is impossible for this model and guide: {why}. Fit one by one"
    )


def _set_state(state: Tensor, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
