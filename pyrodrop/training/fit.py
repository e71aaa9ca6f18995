"""Training a guide by stochastic variational inference.

    loss = nll + kl_weight * kl(weights) + kl(hyperparameters)

Every step draws once from the guide, computes the gradient of the loss on a minibatch, and updates the parameters of guide
and model. With the factor 1 the loss is minus the ELBO. Every epoch visits the rows of the data in a new random order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import torch

from pyrodrop import threads
from pyrodrop.arguments import count
from pyrodrop.arguments import progress as checked_progress
from pyrodrop.data import Data
from pyrodrop.devices import seeded
from pyrodrop.module_states import evaluating
from pyrodrop.surroundings import outside
from pyrodrop.training.advice import TRIAL, warn_of_unfinished
from pyrodrop.training.after_epoch import AfterEpoch, is_true
from pyrodrop.training.checkpoint import Checkpoint, StateFile
from pyrodrop.training.early_stopping import EarlyStopping
from pyrodrop.training.options import TrainingOptions, with_options
from pyrodrop.training.problem import training_mode
from pyrodrop.training.result import Fit
from pyrodrop.training.run import Run, problem_of
from pyrodrop.training.settings import Settings
from pyrodrop.training.worth import keep_worth


@with_options
@threads.exclusive()
@outside("fit")
@torch.inference_mode(False)
@torch.enable_grad()
def fit(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    data: Data | Mapping[str, Any] | Iterable[Any],
    *,
    steps: int,
    num_data: int | None = None,
    progress: bool | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
    after_epoch: Callable[[Fit, Any], object] | None = None,
    **options: Unpack[TrainingOptions],
) -> Fit:
    """Train a guide of a model on data.

    The trained model and guide, ``Fit.model`` and ``Fit.guide``, are copies in evaluation mode: a model serves many guides,
    and the same call gives the same result. Two things are trained in place: parameters in Pyro's global store, and Pyro's
    autoguides with the model that they were made of, which must be `model`. Data may be read a minibatch at a time
    (docs/loaders.md).

    Args:
        model: a Pyro model ``model(x, y)``, or ``model(x, y, num_data=N)`` if it is to be trained on minibatches.
        guide: its guide, called with the same arguments.
        data: a pair (x, y) in their own units; a `Dataset`, whose standardisation a model of `pyrodrop.models` takes over; a
            mapping of arguments of another Pyro program, whose plates may take subsamples and whose epoch is a step; or an
            iterable of minibatches, such as a `DataLoader`.
        steps: number of gradient steps.
        num_data: rows of the data set behind a loader; None for a DataLoader that visits each of them once per epoch.
        batch_size: rows per minibatch; all rows if None.
        lr: learning rate, or a function from a parameter's name to its learning rate.
        optimizer: a `torch.optim` class or a function with the same arguments; Adam by default.
        lr_schedule: factor of the learning rate by the number of steps done, such as ``schedules.cosine(steps)``.
        estimator: how the examples of a minibatch share noise, see `pyrodrop.reparam`: one weight draw for all (``shared``),
            one each (``per_example``), noise on the activations (``local``, as `torch.nn.Dropout`), or random signs
            (``flipout``). The expected gradient is the same, except that ``local`` in convolutions and on tokens has that of
            another posterior for noise of weights. Only ``shared`` works where an example's output depends on others.
        kl_weight: factor of the KL divergence of the weights in the loss, at least 0: a number, or a function of the number
            of epochs done, such as ``schedules.linear(20)``. It does not apply to hyperparameters, nor to `Fit.elbo`.
        objective: a loss of Pyro in place of minus the ELBO with closed-form divergences, such as ``TraceEnum_ELBO()`` or
            ``RenyiELBO(alpha=0, num_particles=k)``, with the random numbers of ``pyro.infer.SVI``; or an `AlphaDivergence`.
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
            or a handler of Pyro (`pyrodrop.surroundings`).
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
    settings = Settings(steps=count(steps, "steps", "the number of gradient steps"), **options)
    saving = Checkpoint.of(checkpoint)
    checked_progress(progress)
    calls = AfterEpoch.of(after_epoch)
    problem = problem_of(model, guide, data, settings, num_data)
    start = time.perf_counter()
    with seeded(settings.seed, settings.place), settings.products(), training_mode(problem):
        run = Run.of(problem, settings)
        if isinstance(after_epoch, EarlyStopping):
            with evaluating(problem.model, problem.guide):
                after_epoch.begin(run.fit(), saving)
        kept = None if saving is None else StateFile(saving, run.record, run.identity, run.state()).resume()
        try:
            run.loop.run(
                progress,
                None if kept is None else kept.save,
                0 if saving is None else saving.every,
                None if calls is None else replace(calls, function=_with_fit(calls, run)),
            )
        except FloatingPointError as error:
            raise FloatingPointError(f"{error}{'' if kept is None else kept.where()}") from None
    if isinstance(after_epoch, EarlyStopping):
        after_epoch.restore(run.fit())
    done = run.fit(seconds=time.perf_counter() - start, engine=run.loop.engine.name)
    if len(done.history) >= TRIAL:
        keep_worth(done)
    warn_of_unfinished(done)
    return done


def _with_fit(calls: AfterEpoch, run: Run) -> Callable[[float], bool]:
    """`after_epoch` as a function of the number of epochs alone."""

    def call(epochs: float) -> bool:
        with evaluating(run.problem.model, run.problem.guide):
            return is_true(calls.function(run.fit(), epochs))

    return call
