"""Training one step at a time, for custom loops."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, Unpack

import pyro
import torch
from torch import Tensor

from pyrodrop import threads
from pyrodrop.arguments import count as whole_number
from pyrodrop.arguments import shown
from pyrodrop.changes import modules_of
from pyrodrop.data import Data
from pyrodrop.devices import denormals_flushed, heap_kept, random_states, seeded, set_random_states
from pyrodrop.surroundings import outside
from pyrodrop.training.loop import CHECK_EVERY
from pyrodrop.training.options import TrainingOptions, with_options
from pyrodrop.training.problem import training_mode
from pyrodrop.training.record import as_tensor, check_same, of_tensor
from pyrodrop.training.result import Fit
from pyrodrop.training.run import Run, problem_of
from pyrodrop.training.settings import Settings

_EXPECTED_STEPS = 10_000


class StepLosses(NamedTuple):
    """The terms of the loss at one step, or at several ``[count]``, in nats for the whole data set.

    They are computed before the step changes the parameters.

    Attributes:
        nll: minus the log likelihood, for one draw from the guide.
        kl: the KL divergence of the posterior from the prior.
    """

    nll: Tensor
    kl: Tensor


class Training:
    """A training that makes one step per call of `step`, with the steps of `pyrodrop.fit`.

    Use it for loops that `fit` does not offer, such as the pruner of a sweep, or the trainer of another library. n
    calls of `step` give the same bits as ``fit(steps=n)`` with the same engine and seed. Like `fit`, it trains copies of
    models and guides of this package, and other programs in place. It leaves the caller's random state alone, which does not
    change the training between two steps.

    Args:
        model, guide, data: as in `pyrodrop.fit`, which describes the other arguments too.
        steps: the number of steps that you expect to make, which is not a limit. ``engine="auto"`` cannot know how many will
            follow: it chooses the engine that ``fit(steps=steps)`` would choose, with 10,000 steps if this is None. The
            engine is prepared at the second step, and a compilation takes many seconds: for few steps, pass their number or
            ``engine="traced"``.

    Raises:
        TypeError, ValueError, RuntimeError: as `pyrodrop.fit` before its first step.

    Example:
        >>> import torch, pyrodrop
        >>> from pyrodrop import guides, likelihoods, models, priors
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> model = models.MLP([1, 8, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(10.0))
        >>> training = pyrodrop.Training(model, guides.MeanField(model), (x, x**2), lr=0.01, engine="pyro")
        >>> losses = [training.step() for _ in range(5)]
        >>> training.steps_done, losses[0].nll.shape
        (5, torch.Size([]))
        >>> saved = training.state()
        >>> prediction = training.fit.predict(x, 10)
        >>> training.load_state(saved)
    """

    @with_options
    @threads.exclusive()
    @outside("Training")
    @torch.inference_mode(False)
    @torch.enable_grad()
    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        data: Data | Mapping[str, Any] | Iterable[Any],
        *,
        steps: int | None = None,
        num_data: int | None = None,
        **options: Unpack[TrainingOptions],
    ) -> None:
        expected = Settings(steps=steps, **options)
        self._expected = expected.steps or _EXPECTED_STEPS
        self._settings = settings = replace(expected, steps=None)
        self._seconds = 0.0
        problem = problem_of(model, guide, data, settings, num_data)
        with seeded(settings.seed, settings.place), settings.products(), training_mode(problem):
            self._run = Run.of(problem, settings)
            self._run.identity  # noqa: B018  what the run is made of before its first step
            self._random = random_states(settings.place)
            self._modules = [module for module in modules_of(*problem.networks).values() if module.training]

    @property
    def steps_done(self) -> int:
        """The number of steps made so far."""
        return self._run.loop.done

    @property
    def steps_per_epoch(self) -> int:
        """The number of minibatches in an epoch."""
        return self._run.loop.batches.per_epoch

    @property
    def engine(self) -> str:
        """The name of the engine that made the last step; the first step is always Pyro's."""
        return self._run.loop.engine.name

    @property
    def fit(self) -> Fit:
        """The fit as it is now, in evaluation mode, with the losses of all steps so far.

        Its predictions and estimates do not change the training. It shares model and guide with the training, so later steps
        change it too; ``copy.deepcopy(training.fit)`` does not change.
        """
        return self._run.fit(steps=self.steps_done, seconds=self._seconds, engine=self.engine)

    def step(self) -> StepLosses:
        """Make one step on the next minibatch.

        Returns:
            The terms of its loss, on the training's device; reading their values waits for the device.

        Raises:
            RuntimeError: the first step changes no parameter.
            FloatingPointError: a loss is no longer finite. The losses are checked at the first step and every 100 steps. The
                message is that of `fit`.
        """
        nll, kl = self.advance(1)
        return StepLosses(nll[0], kl[0])

    def advance(self, count: int) -> StepLosses:
        """Make `count` steps, which for small networks is faster than as many calls of `step`, with the same result.

        Returns:
            The terms of the loss at every step, ``[count]`` each.

        Raises:
            TypeError: count is not a whole number.
            ValueError: count is less than 1; a schedule is negative, NaN or infinite at one of these steps.
            RuntimeError, FloatingPointError: as `step`.
        """
        count = whole_number(count, "count", "the number of steps")
        loop = self._run.loop
        first, end = loop.done, loop.done + count
        with self._in_context():
            if first == 0:
                loop.first_step()
            loop.engine.called(first)
            if loop.done < end:
                loop.choose_engine(max(1, self._expected - 1))
            with pyro.validation_enabled(False):
                while loop.done < end:
                    loop.advance(min(end, (loop.done // CHECK_EVERY + 1) * CHECK_EVERY))
                    if loop.done % CHECK_EVERY == 0:
                        loop.check_finite()
        return StepLosses(*loop.history[first:end, :2].clone().unbind(1))

    def state(self) -> dict[str, Tensor]:
        """A copy of everything that the next steps depend on.

        The parameters, buffers, optimiser, random state, place in the epoch, losses, and a description of the run, as
        tensors by name, which `torch.save` and safetensors can write. `load_state` continues from it to the same bits.

        Raises:
            ValueError: a step changes Python attributes of model or guide, which tensors cannot restore.
            FloatingPointError: a loss or a parameter is not finite. The message is that of `fit`.
        """
        state = self._run.state()
        with self._in_context():
            self._run.loop.check_finite(whole=True)
            tensors = {name: value.detach().clone() for name, value in state.tensors().items()}
        return tensors | {"run": as_tensor(self._run.identity)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a state of this training, or of another one that was made with the same arguments.

        Args:
            state: as returned by `state`.

        Raises:
            TypeError: the state is not a mapping.
            ValueError: it is not a whole state, or the state of another training, as for `pyrodrop.Checkpoint`. Nothing is
                changed then.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"state must be a mapping of tensors by name, as state() returns it; got {shown(state)}")
        if "run" not in state:
            raise ValueError(
                f"the state must be whole, what state() returned; got {shown(state)} that is not whole: it lacks run"
            )
        check_same(of_tensor(state["run"]), self._run.identity, "the state")
        current = self._run.state()
        with self._in_context():
            tensors = {name: value for name, value in state.items() if name != "run"}
            current.load(tensors, "the state")

    @contextmanager
    def _in_context(self) -> Iterator[None]:
        """Training mode, the training's own random state and arithmetic within the block; restored afterwards."""
        place, start = self._settings.place, time.perf_counter()
        with (
            threads.exclusive(),
            outside("a step of Training"),
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.random.fork_rng([place] if place.type == "cuda" else []),
            self._settings.products(),
            denormals_flushed(),
            heap_kept(),
        ):
            set_random_states(self._random, place)
            for module in self._modules:
                module.training = True
            try:
                yield
            finally:
                for module in self._modules:
                    module.training = False
                self._random = random_states(place)
                self._seconds += time.perf_counter() - start
