"""Training a guide by stochastic variational inference.

    loss = nll + kl_weight * kl(weights) + kl(hyperparameters)

Every step (`pyrodrop.training.step`) draws once from the guide, computes the gradient of the loss on a minibatch, and
updates the parameters of guide and model. With the factor 1 the loss is minus the ELBO. Every epoch visits the rows of the
data in a new random order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import pyro
import torch
from torch import Tensor

from pyrodrop import threads
from pyrodrop.changes import evaluating, modules_of
from pyrodrop.checks import Progress, checked, shown
from pyrodrop.checks import count as whole_number
from pyrodrop.data import Data
from pyrodrop.devices import denormals_flushed, random_states, seeded, set_random_states
from pyrodrop.threads import outside
from pyrodrop.training.by_default import by_default, settings_for
from pyrodrop.training.checkpoint import Checkpoint
from pyrodrop.training.early_stopping import EarlyStopping
from pyrodrop.training.problem import Problem, training_mode
from pyrodrop.training.result import Fit
from pyrodrop.training.session import CHECK_EVERY, Session, check_after_epoch
from pyrodrop.training.settings import Settings, TrainingOptions, with_options
from pyrodrop.training.worth import judge

_EXPECTED_STEPS = 10_000


@with_options
@checked
@threads.exclusive()
@outside("fit")
@torch.inference_mode(False)
@torch.enable_grad()
def fit(
    model: Callable[..., Any],
    guide: Callable[..., Any] | Data | None = None,
    data: Data | Mapping[str, Any] | Iterable[Any] | None = None,
    *,
    steps: int | None = None,
    num_data: int | None = None,
    progress: Progress = None,
    checkpoint: str | Path | Checkpoint | None = None,
    after_epoch: Callable[[Fit, Any], object] | None = None,
    **options: Unpack[TrainingOptions],
) -> Fit:
    """Train a guide of a model on data; ``fit(model, data)`` takes priors and guide that are near the exact posterior.

    ``fit(model, data)`` is for an MLP under Gaussian noise or class labels, and at most 2,000 rows. It replaces priors and
    noise by those of `priors.from_gp`, standardises data that are not, and trains `guides.ExactLastLayer` by 3,000 steps, or
    200 of class labels, which are slower; lr 0.01, unless you pass others. Of three or more classes with more than 400
    weights in the last layer it trains `guides.MeanField`, estimator ``local``. `recipes.curve` makes the network, too.

    Of models and guides of this package, ``Fit.model`` and ``Fit.guide`` are copies in evaluation mode: a model serves many
    guides, and the same call gives the same result. Every other Pyro program (a function, method, partial, object or module,
    and an autoguide with its model, which must be `model`) is trained in place, as by `pyro.infer.SVI`: the networks that it
    uses and its parameters in Pyro's store go on from where they are. The fit keeps what was trained and predicts with that,
    in evaluation mode, whatever becomes of the networks. Data may be read a minibatch at a time (docs/scale.md).

    Args:
        model: a Pyro model ``model(x, y)``, or ``model(x, y, num_data=N)`` if it is to be trained on minibatches.
        guide: its guide, called with the same arguments; it may be left out, see above.
        data: a pair (x, y) in their own units; a `Dataset`, whose standardisation a model of `pyrodrop.models` takes over; a
            mapping of arguments of another Pyro program, whose plates may take subsamples and whose epoch is a step; or a
            `DataLoader`.
        steps: number of gradient steps; needed if a guide is given.
        num_data: rows of the data set behind a loader; None for a DataLoader that visits each of them once per epoch.
        batch_size: rows per minibatch; all rows if None.
        lr: learning rate, or a function from a parameter's name to its learning rate.
        optimizer: a `torch.optim` class or a function with the same arguments, without weight decay; Adam by default.
        lr_schedule: factor of the learning rate by the number of steps done, such as ``schedules.cosine(steps)``.
        estimator: how the examples of a minibatch share noise, see `pyrodrop.reparam`: one weight draw for all (``shared``),
            one each (``per_example``), noise on the activations (``local``, as `torch.nn.Dropout`), or random signs
            (``flipout``). The expected gradient is the same, except that ``local`` in convolutions and on tokens has that of
            another posterior for noise of weights. Only ``shared`` works where an example's output depends on others.
        kl_weight: factor of the KL divergence of the weights in the loss, at least 0: a number, or a function of the number
            of epochs done, such as ``schedules.linear(20)``. It does not apply to hyperparameters, nor to `Fit.elbo`.
        objective: a loss of Pyro in place of minus the ELBO with closed-form divergences, such as ``TraceEnum_ELBO()`` or
            ``RenyiELBO(alpha=0, num_particles=k)``, with the random numbers of ``pyro.infer.SVI``.
        average: share of the steps at the end, from 0 (none) to 1, over which the parameters are averaged: the fit has their
            means (Polyak & Juditsky 1992, https://doi.org/10.1137/0330046; as figure 1a of Kingma et al. 2015). Positive
            ones are averaged as they are trained, by their logarithms. Not with a checkpoint, nor with EarlyStopping.
        engine: how steps are computed, see `pyrodrop.compiled`: ``pyro``, ``traced``, ``compiled``; ``auto`` weighs the work
            against the time for compiling. All draw the same noise. What cannot be traced is trained with ``pyro``.
        device: ``auto`` (a GPU if there is one), ``cpu``, ``cuda``, ``cuda:1`` ...
        seed: of minibatches and noise: the same bits on one machine with as many threads. The caller's random state stays.
        progress: whether to show a progress bar; if None, where the output is a terminal.
        checkpoint: file to save the state to, every 10,000 steps and at the end, and to continue from; or a `Checkpoint`.
        after_epoch: called as ``after_epoch(fit, epoch)`` after every epoch or after as many steps as its attribute
            ``every``. Its random draws do not affect training, which ends if it returns True (`EarlyStopping`).

    Raises:
        TypeError: an unknown argument, or one of the wrong kind.
        ValueError: before the first step, what cannot be trained with, such as a guide of another model, a checkpoint of
            another run; later, a schedule that is negative, NaN or infinite.
        RuntimeError: the first step changes no parameter; the call is inside of ``torch.autocast``
            or a handler of Pyro (`pyrodrop.threads`).
        FloatingPointError: the loss or a parameter is no longer finite; the message says where, and what to continue from.
        OSError: the checkpoint cannot be read or written.

    Example:
        >>> import torch, pyrodrop
        >>> from pyrodrop import guides, likelihoods, models, priors
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> model = models.MLP([1, 8, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(10.0))
        >>> fit = pyrodrop.fit(model, guides.BernoulliDropout(model, 0.1), (x, x**2), steps=50, lr=0.01)
        >>> fit.losses.shape, fit.predict(x, 10).mean.shape
        (torch.Size([50]), torch.Size([20, 1]))
    """
    if guide is None or data is None:
        fitted, guide, data = by_default(model, data if guide is None else guide, options.get("seed", 0))
        model, (steps, options) = fitted.model, settings_for(guide, steps, options)
    if steps is None:
        raise TypeError("steps, the number of gradient steps, must be given, fit(..., steps=1000); got none")
    settings = Settings(steps=whole_number(steps, "steps", "the number of gradient steps"), **options)
    saving = Checkpoint.of(checkpoint)
    check_after_epoch(after_epoch)
    if settings.average and (saving is not None or isinstance(after_epoch, EarlyStopping)):
        raise ValueError(
            "average must be 0 with a checkpoint, which has no means, and with EarlyStopping, which goes back to its best "
            f"step; got {settings.average}"
        )
    problem = Problem.of(model, guide, data, settings, num_data)
    start = time.perf_counter()
    with seeded(settings.seed, settings.place), settings.products(), training_mode(problem):
        session = Session(problem, settings)
        if isinstance(after_epoch, EarlyStopping):
            with evaluating(*problem.networks):
                after_epoch.begin(session.result(), saving)
        if saving is not None:
            session.open(saving)
        session.run(progress, after_epoch)
    if isinstance(after_epoch, EarlyStopping):
        after_epoch.restore(session.result())
    done = session.result(ended=True, seconds=time.perf_counter() - start, engine=session.engine.name)
    judge(done)
    return done


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
        problem = Problem.of(model, guide, data, settings, num_data)
        with seeded(settings.seed, settings.place), settings.products(), training_mode(problem):
            self._session = Session(problem, settings)
            _ = self._session.fingerprint  # before its first step
            self._random = random_states(settings.place)
            self._modules = [module for module in modules_of(*problem.networks).values() if module.training]

    @property
    def steps_done(self) -> int:
        """The number of steps made so far."""
        return self._session.done

    @property
    def steps_per_epoch(self) -> int:
        """The number of minibatches in an epoch."""
        per_epoch: int = self._session.rows.per_epoch
        return per_epoch

    @property
    def engine(self) -> str:
        """The name of the engine that made the last step; the first step is always Pyro's."""
        return self._session.engine.name

    @property
    def fit(self) -> Fit:
        """The fit as it is now, in evaluation mode, with the losses of all steps so far.

        Its predictions and estimates do not change the training. It shares model and guide with the training, so later steps
        change it too; ``copy.deepcopy(training.fit)`` does not change.
        """
        return self._session.result(steps=self.steps_done, seconds=self._seconds, engine=self.engine)

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
        session = self._session
        first, end = session.done, session.done + count
        with self._in_context():
            if first == 0:
                session.first_step()
            session.engine.called(first)
            if session.done < end:
                session.choose_engine(max(1, self._expected - 1))
            with pyro.validation_enabled(False):
                while session.done < end:
                    session.advance(min(end, (session.done // CHECK_EVERY + 1) * CHECK_EVERY))
                    if session.done % CHECK_EVERY == 0:
                        session.check_finite()
        return StepLosses(*session.history[first:end, :2].clone().unbind(1))

    def state(self) -> dict[str, Tensor]:
        """A copy of everything that the next steps depend on.

        The parameters, buffers, optimiser, random state, place in the epoch, losses, and a description of the run, as
        tensors by name, which `torch.save` and safetensors can write. `load_state` continues from it to the same bits.

        Raises:
            ValueError: a step changes Python attributes of model or guide, which tensors cannot restore.
            FloatingPointError: a loss or a parameter is not finite. The message is that of `fit`.
        """
        with self._in_context():
            return {name: value.detach().clone() for name, value in self._session.state().items()}

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
        with self._in_context():
            self._session.load(state, "the state")

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
