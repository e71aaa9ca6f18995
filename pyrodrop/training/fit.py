"""Training a guide by stochastic variational inference.

    loss = likelihood_power * nll + kl_weight * kl(weights) + kl(hyperparameters)

Every step draws once from the guide, computes the gradient of the loss on a minibatch, and updates the parameters of guide
and model. With both factors 1 the loss is minus the ELBO. Every epoch visits the rows of the data in a new random order.
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
from pyrodrop.training.options import StepOptions, with_options
from pyrodrop.training.problem import training_mode
from pyrodrop.training.ranks import join
from pyrodrop.training.result import Fit
from pyrodrop.training.run import Run, problem_of
from pyrodrop.training.settings import Settings
from pyrodrop.training.worth import keep_worth


@with_options
@threads.training()
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
    **options: Unpack[StepOptions],
) -> Fit:
    """Train a guide of a model on data.

    Training runs in training mode: submodules that were in it when the model was made, such as nn.BatchNorm, normalise by
    the minibatch and update their buffers, with every engine. The trained model is in evaluation mode.

    The trained model and guide, ``Fit.model`` and ``Fit.guide``, are copies; `model` and `guide` do not change, so one model
    can be fitted with many guides and the same call gives the same result. Two things are trained in place: parameters in
    Pyro's global store, and a guide that is or contains one of Pyro's autoguides, together with its model. An autoguide
    refers to its model, which must be the `model` of this call.

    Several processes train together (``torchrun --nproc-per-node 4 train.py``) if all of them make the same call. Every
    minibatch is divided between them: `batch_size` counts the rows of all ranks, so the same call makes as many steps on any
    number of ranks. Every rank reads its own rows and draws noise of its own. Each estimates the whole loss, and one
    all-reduce per step takes the mean of their gradients: by nccl on GPUs, by gloo otherwise. Parameters and buffers start
    from those of rank 0. Layers that normalise over the rows of a minibatch, such as nn.BatchNorm, do so over those of a
    rank; floating-point buffers that a step updates, such as running statistics, are averaged with the gradients, and others
    must not depend on the rows. Rank 0 shows progress and reads and writes the checkpoint; every rank returns the same fit.
    A rank that fails ends the job.

    Data that are read a minibatch at a time need not fit into memory. Rows of a `torch.utils.data.Dataset` or a
    `numpy.memmap` are read by their numbers, in the order and with the noise of tensors: the same call has the same bits,
    several ranks read their own rows, and a run continues from a checkpoint. A loader makes the minibatches itself; in epoch
    e, torch's, Python's and NumPy's generators, and those of a DataLoader, have states for it that depend on `seed` and e
    alone, and ``set_epoch(e)`` of whatever has it is called. A run that continues begins the epoch again in which it was
    interrupted, unless the loader has ``state_dict`` and ``load_state_dict``. A minibatch is a pair (x, y), or a mapping
    with y as y, label, labels, target or targets. Values are checked when they are read. A likelihood that starts from
    y, such as `likelihoods.Gaussian()`, starts from that of a sample, 256 rows or the first minibatch, and so from
    another number than for tensors. x and y are not standardised: pass ``data.Dataset(...).standardized()`` of some rows
    to ``model.standardize`` before. `Fit.settings` names the source. An augmentation
    changes the likelihood (Wenzel et al. 2020, https://arxiv.org/abs/2002.02405, appendix K).

    Args:
        model: a Pyro model ``model(x, y)``, or ``model(x, y, num_data=N)`` if it is to be trained on minibatches.
        guide: its guide, called with the same arguments.
        data: a `Dataset` or a pair (x, y), in their own units. A model of `pyrodrop.models` takes over the standardisation
            of a `Dataset`. Or, for a Pyro program with other arguments, a mapping of these: every step calls
            ``guide(**data)`` and ``model(**data)``, whose plates take subsamples, and an epoch is a step. Or data that are
            read a minibatch at a time: a `torch.utils.data.Dataset`, or a pair of arrays of which one is a `numpy.memmap`,
            whose rows are read in the order of tensors; a `torch.utils.data.DataLoader`, or another iterable of minibatches,
            which makes the minibatches itself and is iterated once per epoch. See above.
        steps: number of gradient steps.
        num_data: number of rows of the data set behind a loader, which may be left out for a DataLoader that visits every
            row once per epoch. More rows in an epoch are refused, except where a sampler of a DataLoader draws them.
        batch_size: rows per minibatch, of all ranks together; all rows if None.
        accumulate: k, to evaluate every minibatch in k parts, one after the other, where it does not fit into memory. Their
            gradients are averaged before the step, weighted by rows. Every part draws noise of its own. Layers that
            normalise over the rows of a minibatch do so over those of a part, and every part updates their running
            statistics.
        lr: learning rate, or a function from a parameter's name to its learning rate.
        optimizer: a `torch.optim` class or a function with the same arguments; Adam by default.
        lr_schedule: factor of the learning rate as a function of the number of steps done, such as
            ``schedules.cosine(steps)``.
        estimator: how the examples of a minibatch share noise, see `pyrodrop.reparam`: one weight draw for all of them
            (``shared``), one per example (``per_example``), noise on the activations (``local``, as `torch.nn.Dropout`), or
            random signs per example (``flipout``). The expected gradient is the same, its variance is not. One exception:
            under ``local``, noise that belongs to weights and not to input units (Gaussian posteriors, DropConnect,
            theta > 0) is drawn independently for every row of an example. For convolutions and tokens this is the objective
            of another posterior, over activations (``Fit.settings["noise_by_row"]`` names the weights). Where the output of
            one example depends on the others, in a graph or through BatchNorm in training mode, only ``shared`` is allowed.
        kl_weight: factor of the KL divergence of the weights in the loss, at least 0: a number, or a function of the number
            of epochs done, such as ``schedules.linear(20)``. It does not apply to hyperparameters, nor to `Fit.elbo`.
        likelihood_power: power of the likelihood in the loss, positive: beta of Psaros et al. (2023), 1 / T of tempered
            posteriors. It does not apply to `Fit.elbo`.
        objective: a loss object of Pyro that is minimised in place of minus the ELBO with closed-form divergences, such as
            ``pyro.infer.Trace_ELBO(num_particles=4)``, ``TraceEnum_ELBO()`` for discrete sites that are summed out, or
            ``RenyiELBO(alpha=0, num_particles=k)``, the bound of k importance-weighted draws, for all rows at once under the
            estimator ``shared``; or `pyrodrop.AlphaDivergence`. It estimates and differentiates as under ``pyro.infer.SVI``,
            with the same random numbers; `Fit.losses` has its values, and `Fit.elbo` stays the ELBO of the guide.
        engine: how the steps are computed, see `pyrodrop.compiled`: ``pyro``, ``traced``, ``compiled``, or ``auto``, which
            weighs the work against the time for tracing and compiling. All draw the same noise. Models that cannot be traced
            are trained with ``pyro``, and the logger `pyrodrop` says why.
        precision: of matrix products: ``bfloat16`` for autocast, ``tf32`` for TensorFloat-32 on NVIDIA GPUs; KL divergences
            keep the dtype of the parameters. None for that dtype throughout, also of convolutions on a GPU.
        starts: ``model`` to start from the weights that the model has, ``new`` to start from new ones: those of
            ``restart(model, guide, seed)``.
        device: ``auto`` (a GPU if there is one), ``cpu``, ``cuda``, ``cuda:1`` ...
        distributed: whether to train together with the other ranks of `torch.distributed`, which make the same call. None:
            with those of the default process group, or those that ``torchrun`` has started; otherwise alone. False: alone.
            True: an error if there is no group. See below.
        seed: of minibatches and noise. The same seed gives the same bits on the same machine with the same number of
            threads; the caller's random state does not change.
        progress: whether to show a progress bar; if None, where the output is a terminal.
        checkpoint: file to save the state of the training to, every 10,000 steps and at the end, and to continue from if it
            exists; or a `Checkpoint`, which says how often. See there for what may differ from the run that wrote the file.
        after_epoch: called as ``after_epoch(fit, epoch)`` after every epoch, with the fit in evaluation mode and the number
            of epochs done; also when a run continues from a checkpoint at the end of an epoch. Its random draws do not
            change the training, which ends where it returns True. With several ranks, called on each of them, and rank 0
            ends the training. An object with an attribute ``every`` is called after so many steps, None for an epoch, and
            after the last one, such as `EarlyStopping`.

    Raises:
        TypeError: an unknown argument, or one of the wrong kind, such as a schedule of the learning rate for `kl_weight`.
        ValueError: before the first step, for data, shapes, settings or a device that cannot be trained with, and for a
            guide of another model, a checkpoint of another run or a damaged one, a rank whose model, guide, data or
            arguments are not those of rank 0; before a step at which a schedule is negative, NaN or infinite.
        RuntimeError: the first step changes no parameter, as when a model reaches its network through a closure; another
            thread trains for ten minutes: see `pyrodrop.threads`; the call is inside a block that would change what it
            computes, such as ``torch.autocast``, ``torch.device("meta")`` or a handler of Pyro: see `pyrodrop.surroundings`;
            or, from torch, another rank has ended.
        FloatingPointError: the loss or a parameter is no longer finite. The message says the step, a parameter that is not
            finite, and the file to continue from. With several ranks, all of them raise it.
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
    ranks = join(settings.distributed, settings.place)
    settings = replace(settings, device=ranks.device)
    problem = problem_of(model, guide, data, settings, ranks.size, num_data)
    start = time.perf_counter()
    with seeded(ranks.noise_seed(settings.seed), settings.place), settings.products(), training_mode(problem):
        run = Run.of(problem, settings, ranks)
        if isinstance(after_epoch, EarlyStopping):
            with evaluating(problem.model, problem.guide):
                after_epoch.begin(run.fit(), saving)
        run.align()
        kept = None if saving is None else StateFile(saving, run.record, run.identity, run.state()).resume()
        try:
            run.loop.run(
                progress if ranks.first else False,
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
    if ranks.first:
        warn_of_unfinished(done)
    return done


def _with_fit(calls: AfterEpoch, run: Run) -> Callable[[float], bool]:
    """`after_epoch` as a function of the number of epochs alone; rank 0 decides whether the training ends."""

    def call(epochs: float) -> bool:
        with evaluating(run.problem.model, run.problem.guide):
            ends = is_true(calls.function(run.fit(), epochs))
        return run.ranks.of_first(ends)

    return call
