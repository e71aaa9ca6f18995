"""One fit in progress: its problem, settings, loss and loop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pyrodrop.agreement import knows_sites
from pyrodrop.constraints import EngineName
from pyrodrop.data.loader import Loader, loader_of
from pyrodrop.likelihoods.missing import leaves_out_missing
from pyrodrop.steps import Engine, Loss
from pyrodrop.training.checkpoint import State
from pyrodrop.training.loop import ByPyro, Loop
from pyrodrop.training.minibatches import batches_of, check_batches
from pyrodrop.training.optimizer import Trained, optimizer_of
from pyrodrop.training.problem import Problem, describe
from pyrodrop.training.record import Identity, identity, record
from pyrodrop.training.result import Fit
from pyrodrop.training.settings import Settings


@dataclass
class Run:
    """One fit in progress.

    Attributes:
        record: the settings in plain numbers and words.
        whole_state: access to the state of the loop; see `state` for when that is not the whole state of the training.
    """

    problem: Problem
    settings: Settings
    loss: Loss
    loop: Loop
    record: dict[str, Any]
    whole_state: State

    @functools.cached_property
    def identity(self) -> Identity:
        """The `identity` of the run, for files."""
        return identity(self.settings, self.problem, self.loss)

    @classmethod
    def of(cls, problem: Problem, settings: Settings) -> Run:
        """The training of a problem before its first step; call it in training mode and with the training's random state."""
        check = problem.targets_check() if isinstance(problem.data, Loader) else None
        batches = batches_of(problem.data, settings, check=check)
        samples = batches.samples(settings.steps)
        loss = problem.loss(samples[0], settings.objective)
        problem.check_batches(loss, samples[1:])
        leaves = {name: parameter.unconstrained for name, parameter in loss.parameters.items()}
        _check_trainable(leaves)
        optimizer = optimizer_of(leaves, settings.optimizer, settings.lr)
        engine = _engine(settings, problem)

        def faster(done: int, steps: int) -> Engine | None:
            if engine == "pyro":
                return None
            from pyrodrop.compiled import Accelerated

            program = not knows_sites(problem.model, problem.guide)
            made = Accelerated(loss, optimizer, batches.samples, engine, settings.steps, program=program)
            return made if made.record(done, steps) else None

        first = ByPyro(loss.objective.backward, optimizer)
        title = describe(problem.guide).split("(")[0]
        loop = Loop(leaves, batches, optimizer, settings, first=first, accelerate=faster, title=title)
        loop.moving = loss.moving.named
        loop.changed = Trained(problem.model, problem.guide, loss).changed
        if loss.objective.guesses:
            loop.ahead = functools.partial(loss.objective.guess, samples[0])
        state = State(loop, functools.partial(problem.buffers, loss))
        about = record(settings, problem, settings.seed)
        return cls(problem, settings, loss, loop, about, state)

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

    def fit(self, **more: Any) -> Fit:
        """The fit with its present parameters and losses; `more` is added to its settings."""
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
        )


def problem_of(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    data: Any,
    settings: Settings,
    num_data: int | None,
) -> Problem:
    """Copies of a user's model and guide with their data, checked."""
    data = loader_of(data, num_data, missing=leaves_out_missing(model))
    problem = Problem.of(model, guide, data, settings.estimator, settings.place)
    check_batches(problem, settings)
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
