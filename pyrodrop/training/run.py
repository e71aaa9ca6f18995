"""One fit in progress: its problem, settings, loss and loop."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pyrodrop.agreement import knows_sites
from pyrodrop.changes import tensors_of
from pyrodrop.constraints import EngineName
from pyrodrop.data.loader import Loader
from pyrodrop.data.sources import streamed_of
from pyrodrop.data.streamed import Streamed
from pyrodrop.likelihoods.missing import leaves_out_missing
from pyrodrop.steps import Arguments, Engine, Loss
from pyrodrop.training.checkpoint import State
from pyrodrop.training.in_parts import backward
from pyrodrop.training.loop import ByPyro, Loop
from pyrodrop.training.minibatches import batches_of, check_batches, of_each_shape
from pyrodrop.training.optimizer import Trained, optimizer_of
from pyrodrop.training.problem import Problem, describe
from pyrodrop.training.ranks import Ranks
from pyrodrop.training.record import Identity, identity, record
from pyrodrop.training.result import Fit
from pyrodrop.training.settings import Settings

_log = logging.getLogger("pyrodrop")


@dataclass
class Run:
    """One fit in progress.

    Attributes:
        record: the settings in plain numbers and words.
        whole_state: access to the state of the loop; see `state` for when that is not the whole state of the training.
        ranks: the processes that train together.
    """

    problem: Problem
    settings: Settings
    loss: Loss
    loop: Loop
    record: dict[str, Any]
    whole_state: State
    ranks: Ranks

    @functools.cached_property
    def identity(self) -> Identity:
        """The `identity` of the run, for files."""
        return identity(self.settings, self.problem, self.loss, self.ranks.size)

    @classmethod
    def of(cls, problem: Problem, settings: Settings, ranks: Ranks) -> Run:
        """The training of a problem before its first step; call it in training mode and with the training's random state."""
        check = problem.targets_check() if isinstance(problem.data, Streamed) else None
        batches = batches_of(problem.data, settings, check=check, ranks=ranks)
        in_parts = settings.accumulate > 1 or ranks.size > 1
        samples = of_each_shape(batches.samples(settings.steps))
        loss = problem.loss(samples[0], settings.dtype, settings.objective)
        settings.check_precision(loss)
        problem.check_batches(loss, samples[1:])
        leaves = {name: parameter.unconstrained for name, parameter in loss.parameters.items()}
        _check_trainable(leaves)
        optimizer = optimizer_of(leaves, settings.optimizer, settings.lr)
        combine = functools.partial(backward, loss, ranks) if in_parts else None
        engine = _engine(settings, problem)

        program = not knows_sites(problem.model, problem.guide)

        def samples_of(most: int | None) -> list[Arguments]:
            return of_each_shape(batches.samples(most))

        def faster(done: int, steps: int) -> Engine | None:
            if engine == "pyro":
                return None
            from pyrodrop.compiled import Accelerated

            made = Accelerated(loss, optimizer, samples_of, engine, settings.steps, program=program, combine=combine)
            return made if made.record(done, steps) else None

        first = ByPyro(combine or loss.objective.backward, optimizer, as_svi=program)
        title = describe(problem.guide).split("(")[0]
        loop = Loop(leaves, batches, optimizer, settings, first=first, accelerate=faster, title=title)
        loop.moving = loss.moving.named
        loop.changed = Trained(problem.model, problem.guide, loss).changed
        if loss.objective.guesses and not in_parts:
            loop.ahead = functools.partial(loss.objective.guess, samples[0])
        state = State(loop, functools.partial(problem.buffers, loss), ranks)
        about = record(settings, problem, settings.seed, ranks.size)
        return cls(problem, settings, loss, loop, about, state, ranks)

    def align(self) -> None:
        """Check that all ranks run the same training, and start all of them from the parameters and buffers of rank 0.

        Raises:
            ValueError: this rank runs another training than rank 0.
        """
        if self.ranks.size == 1:
            return
        tensors = self._tensors()
        description = {name: word for entries in self.identity.values() for name, word in entries.items()}
        description |= {name: f"{list(value.shape)} of {value.dtype}" for name, value in tensors.items()}
        self.ranks.check_same({"steps": str(self.settings.steps), **description})
        self.ranks.broadcast(tensors.values())
        if self.ranks.first:
            _log.info("training on %d ranks", self.ranks.size)

    def _tensors(self) -> dict[str, Tensor]:
        """All parameters and buffers by name, each once."""
        tensors: dict[str, Tensor] = {f"parameter {name}": leaf for name, leaf in self.loop.parameters.items()}
        tensors |= tensors_of(self.problem.model, self.problem.guide)
        once = {id(value): name for name, value in reversed(tensors.items())}
        return {name: tensors[name] for name in once.values()}

    def state(self) -> State:
        """Access to the state between two steps.

        Raises:
            ValueError: a step changes Python attributes, which the state does not contain.
        """
        if self.loss.changes:
            raise ValueError(
                "the state of a training consists of the parameters and buffers of modules, but "
                f"{self.loss.changes}: register what must be saved as a buffer (register_buffer)"
            )
        return self.whole_state

    def fit(self, *, ended: bool = False, **more: Any) -> Fit:
        """The fit with its present parameters and losses, of its own if training has `ended`; `more` adds settings."""
        history = self.loop.history[: self.loop.done].clone().cpu()
        problem = self.problem
        return Fit(
            problem.model,
            problem.guide,
            problem.data,
            history,
            {**self.record, **more},
            self.settings.place,
            self.settings.objective,
            problem.kept() if ended else None,
        )


def problem_of(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    data: Any,
    settings: Settings,
    ranks: int,
    num_data: int | None,
) -> Problem:
    """Copies of a user's model and guide with their data, checked, with new initial weights if the settings ask for them."""
    data = streamed_of(data, settings.batch_size, num_data, missing=leaves_out_missing(model))
    start = settings.seed if settings.starts == "new" else None
    problem = Problem.of(model, guide, data, settings.estimator, settings.place, start)
    check_batches(problem, settings, ranks)
    return problem


def _engine(settings: Settings, problem: Problem) -> EngineName:
    """The requested engine; Pyro's for ``auto`` if minibatches vary in shape, since every shape would be traced."""
    varies = isinstance(problem.data, Loader) and problem.data.varies
    return "pyro" if settings.engine == "auto" and varies else settings.engine


def _check_trainable(leaves: Mapping[str, Tensor]) -> None:
    """Raise a ValueError for parameters that are not copied and that autograd cannot record."""
    wrong = [name for name, leaf in leaves.items() if leaf.is_inference()]
    if wrong:
        raise ValueError(
            f"the parameter {wrong[0]} was made under torch.inference_mode, so that it cannot be trained: make model and "
            "guide, or call them for the first time, outside of it"
        )
