"""One fit in progress: its problem, settings, loss and loop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pyrodrop.data import Data
from pyrodrop.engines import Loss, Pyro, choose, choose_in_parts
from pyrodrop.training.dealing import Dealt
from pyrodrop.training.failure import FirstFailure
from pyrodrop.training.fitted import Fit
from pyrodrop.training.loop import Loop
from pyrodrop.training.minibatches import Minibatches, check_minibatches
from pyrodrop.training.optimizer import optimizer_of
from pyrodrop.training.problem import Problem, describe, restart
from pyrodrop.training.record import Identity, identity, record
from pyrodrop.training.settings import Settings
from pyrodrop.training.state import State


@dataclass
class Run:
    """One fit in progress.

    Attributes:
        problem: model, guide and data.
        settings: of the training.
        loss: of the problem.
        loop: makes the steps.
        record: the settings in plain numbers and words.
        whole_state: access to the state of the loop, whether it is all of the training's or not.
    """

    problem: Problem
    settings: Settings
    loss: Loss
    loop: Loop
    record: dict[str, Any]
    whole_state: State

    @functools.cached_property
    def identity(self) -> Identity:
        """What the run is made of, in words."""
        names = {id(parameter): name for name, parameter in self.loop.parameters.items()}
        groups = zip(self.loop.optimizer.param_groups, self.loop.base_rates, strict=True)
        rates = {names[id(parameter)]: rate for group, rate in groups for parameter in group["params"]}
        return identity(self.settings, self.problem, self.loss, self.loop.optimizer, rates)

    @classmethod
    def of(cls, problem: Problem, settings: Settings) -> Run:
        """The training of a problem before its first step; called in training mode and with the training's random state.

        Raises:
            ValueError: see `fit`.
        """
        batches = Minibatches(problem.data, settings.batch_size, settings.place)
        dealt = Dealt(batches, parts=settings.accumulate) if settings.accumulate > 1 else None
        samples = batches.samples(settings.steps) if dealt is None else dealt.shapes(settings.steps)
        loss = problem.loss(samples[0], settings.dtype)
        problem.check_batches(loss, samples[1:])
        leaves = {name: parameter.unconstrained for name, parameter in loss.parameters.items()}
        _check_trainable(leaves)
        optimizer = optimizer_of(leaves, settings.optimizer, settings.lr)
        loop = Loop(
            leaves,
            dealt or batches,
            optimizer,
            settings,
            first=Pyro(loss, optimizer)
            if dealt is None
            else choose_in_parts("pyro", loss, optimizer, [dealt.first()], 1),
            choose=functools.partial(choose if dealt is None else choose_in_parts, settings.engine, loss, optimizer),
            title=describe(problem.guide).split("(")[0],
        )
        loop.moving = loss.moving.named
        state = State(loop, functools.partial(problem.buffers, loss))
        loop.failure = FirstFailure(loop, loss, state)
        return cls(problem, settings, loss, loop, record(settings, problem, settings.seed), state)

    def state(self) -> State:
        """Access to the state between two steps.

        Raises:
            ValueError: a step changes Python attributes, which are not part of it.
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
        return Fit(problem.model, problem.guide, problem.data, history, {**self.record, **more}, self.settings.place)


def problem_of(model: Callable[..., Any], guide: Callable[..., Any], data: Data, settings: Settings) -> Problem:
    """Copies of a user's model and guide with their data, checked, with new initial weights if the settings ask for them."""
    if settings.starts == "new":
        model, guide = restart(model, guide, settings.seed)
    problem = Problem.of(model, guide, data, settings.estimator, settings.place)
    check_minibatches(settings.batch_size, problem.data.x, problem.model, problem.guide, parts=settings.accumulate)
    return problem


def _check_trainable(leaves: Mapping[str, Tensor]) -> None:
    """Raise a ValueError for parameters that are not copied and that autograd cannot record."""
    wrong = [name for name, leaf in leaves.items() if leaf.is_inference()]
    if wrong:
        raise ValueError(
            f"the parameter {wrong[0]} was made under torch.inference_mode, so that it cannot be trained: make model and "
            "guide, or call them for the first time, outside of it"
        )
