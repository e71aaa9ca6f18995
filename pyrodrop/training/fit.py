"""Training a guide by stochastic variational inference.

    loss = nll + kl_weight * kl(weights) + kl(hyperparameters)

Every step draws once from the guide, computes the gradient of the loss on a minibatch, and
updates the parameters of guide and model. With the factor 1 the loss is minus the ELBO. Every epoch visits the rows of the
data in a new random order.

Where no guide is given, the scales of the priors and the noise maximise the evidence of the network's Gaussian process
(`priors.from_gp`). The last layer of real y has its exact posterior, and that of class labels Laplace's approximation of it
(`guides.ExactLastLayer`). Where more than two classes have more than 400 weights there, all weights have a
`guides.MeanField`, by local noise.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import pyro
import torch
from torch import Tensor

from pyrodrop import threads
from pyrodrop.checks import Progress, checked, shown
from pyrodrop.checks import count as whole_number
from pyrodrop.data import Data, Dataset
from pyrodrop.devices import denormals_flushed, random_states, seeded, set_random_states
from pyrodrop.guides import ExactLastLayer, MeanField
from pyrodrop.guides.guide import Guide
from pyrodrop.likelihoods import Categorical, Gaussian
from pyrodrop.models import NetworkModel
from pyrodrop.priors.fitted import FittedPriors, from_gp
from pyrodrop.scaling import Standardize
from pyrodrop.threads import outside
from pyrodrop.training.checkpoint import Checkpoint
from pyrodrop.training.problem import Problem, training_mode
from pyrodrop.training.reasons import judge
from pyrodrop.training.result import Fit
from pyrodrop.training.session import CHECK_EVERY, Session, check_after_epoch
from pyrodrop.training.settings import Settings, TrainingOptions, with_options

_EXPECTED_STEPS = 10_000
STEPS, STEPS_OF_LABELS, LR = 3000, 200, 1e-2
_ROWS = 10_000  # of a fit without a guide: every step computes all
_WEIGHTS = 400  # of the last layer, whose precision matrix of several classes is factorised at each step
_log = logging.getLogger("pyrodrop")


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

    ``fit(model, data)`` is for a network under Gaussian noise or class labels that ends in an nn.Linear, and at most 10,000
    rows, all of which every step computes. It replaces priors and noise by those of `priors.from_gp`, standardises data that
    are not, and trains `guides.ExactLastLayer` by 3,000 steps, or 200 of class labels, which are slower; lr 0.01, unless you
    pass others. Of three or more classes with more than 400 weights in the last layer it trains `guides.MeanField`,
    estimator ``local``. `recipes.curve` makes the network, too.

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
            one each (``per_example``), or noise on the activations (``local``, as `torch.nn.Dropout`). The expected gradient
            is the same, except that ``local`` in convolutions and on tokens has that of another posterior for noise of
            weights. Only ``shared`` works where an example's output depends on others.
        kl_weight: factor of the KL divergence of the weights in the loss, at least 0: a number, or a function of the number
            of epochs done, such as ``schedules.linear(20)``. It does not apply to hyperparameters, nor to `Fit.elbo`.
        objective: a loss of Pyro in place of minus the ELBO with closed-form divergences, such as ``TraceEnum_ELBO()`` or
            ``RenyiELBO(alpha=0, num_particles=k)``, with the random numbers of ``pyro.infer.SVI``.
        average: share of the steps at the end, from 0 (none) to 1, over which the parameters are averaged: the fit has their
            means (Polyak & Juditsky 1992, https://doi.org/10.1137/0330046; as figure 1a of Kingma et al. 2015). Positive
            ones are averaged as they are trained, by their logarithms. Not with a checkpoint.
        engine: how steps are computed, see `pyrodrop.compiled`: ``pyro``, ``traced``, ``compiled``; ``auto`` weighs the work
            against the time for compiling. All draw the same noise. What cannot be traced is trained with ``pyro``.
        device: ``auto`` (a GPU if there is one), ``cpu``, ``cuda``, ``cuda:1`` ...
        seed: of minibatches and noise: the same bits on one machine with as many threads. The caller's random state stays.
        progress: whether to show a progress bar; if None, where the output is a terminal.
        checkpoint: file to save the state to, every 10,000 steps and at the end, and to continue from; or a `Checkpoint`.
        after_epoch: called as ``after_epoch(fit, epoch)`` after every epoch or after as many steps as its attribute
            ``every``. Its random draws do not affect training, which ends if it returns True.

    Raises:
        TypeError: an unknown argument, or one of the wrong kind.
        ValueError: before the first step, what cannot be trained with, such as a guide of another model, a checkpoint of
            another run; later, a schedule that is negative, NaN or infinite.
        RuntimeError: the first step changes no parameter; a later call of a program reads a parameter that the first did
            not; the call is inside of ``torch.autocast`` or a handler of Pyro (`pyrodrop.threads`).
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
    settings = Settings(steps=whole_number(steps, "steps", "the number of gradient steps"), **options)
    saving = Checkpoint.of(checkpoint)
    check_after_epoch(after_epoch)
    if settings.average and saving is not None:
        raise ValueError(f"average must be 0 with a checkpoint, which has no means; got {settings.average}")
    problem = Problem.of(model, guide, data, settings, num_data)
    start = time.perf_counter()
    with seeded(settings.seed, settings.place), settings.products(), training_mode(problem):
        session = Session(problem, settings)
        if saving is not None:
            session.open(saving)
        session.run(progress, after_epoch)
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
        >>> prediction = training.fit.predict(x, 10)
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
            self._random = random_states(settings.place)

    @property
    def steps_done(self) -> int:
        """The number of steps made so far."""
        return self._session.done

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
        session, place, start = self._session, self._settings.place, time.perf_counter()
        first, end = session.done, session.done + count
        with (
            threads.exclusive(),
            outside("a step of Training"),
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.random.fork_rng([place] if place.type == "cuda" else []),
            self._settings.products(),
            denormals_flushed(),
            training_mode(session.problem),
        ):
            set_random_states(self._random, place)
            try:
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
            finally:
                self._random = random_states(place)
                self._seconds += time.perf_counter() - start
        return StepLosses(*session.history[first:end, :2].clone().unbind(1))


def by_default(model: Any, data: Any, seed: int = 0) -> tuple[FittedPriors, Guide, Dataset]:
    """The network under fitted priors, its guide, and the data, standardised unless they are.

    Raises:
        TypeError: `data` is missing, or the model is no network under a `Gaussian` or `Categorical`.
        ValueError: there are more than 10,000 rows; as `priors.from_gp`.
    """
    if not isinstance(data, Dataset | tuple):
        raise TypeError(
            "data must be a Dataset or a pair (x, y), in fit(model, data) or fit(model, guide, data, steps=...); got "
            f"{shown(data)}"
        )
    if not isinstance(model, NetworkModel) or type(model.likelihood) not in (Gaussian, Categorical):
        raise TypeError(
            "guide must be given, fit(model, guide, data, steps=...), unless the model is a network of pyrodrop.models "
            f"under a likelihoods.Gaussian or likelihoods.Categorical; got {shown(model)}"
        )
    data = Dataset.of(data)
    if len(data) > _ROWS:
        raise ValueError(
            f"guide must be given for data of more than {_ROWS:,} rows, such as guides.BernoulliDropout(model, 0.05): the "
            f"guide without one, guides.ExactLastLayer, computes all rows at each step; got {len(data):,} rows"
        )
    data = standardised(data)
    fitted = from_gp(model, data, seed=seed)
    last = fitted.model.weight_sites()[list(fitted.prior)[-1]]
    large = len(last) > 2 and last.numel() + len(last) > _WEIGHTS
    of_labels = isinstance(fitted.likelihood, Categorical)
    guide: Any = MeanField(fitted.model) if of_labels and large else ExactLastLayer(fitted.model)
    _log.info(
        "no guide was given: priors and noise of priors.from_gp, and guides.%s; dropout posteriors are given as "
        "fit(model, guides.BernoulliDropout(model, 0.05), data, steps=...)",
        guide.describe(),
    )
    return fitted, guide, data


def settings_for(guide: Any, steps: int | None, options: TrainingOptions) -> tuple[int, TrainingOptions]:
    """The number of steps and the options of a fit without a guide, unless the caller gives others."""
    if isinstance(guide, MeanField):
        return STEPS if steps is None else steps, {"lr": LR, "estimator": "local", **options}
    usual = STEPS_OF_LABELS if guide.of_labels else STEPS  # each has several of Newton's method
    return usual if steps is None else steps, {"lr": LR, **options}


def standardised(data: Dataset) -> Dataset:
    """The data with a standardisation of x, and of y if it is real, unless they have one already."""
    targets = data.targets or (Standardize.of(data.y) if data.y.is_floating_point() else None)
    return data.with_values(inputs=data.inputs or Standardize.of_inputs(data.x), targets=targets)
