"""Training a guide by stochastic variational inference.

    loss = likelihood_power * nll + kl_weight * kl(weights) + kl(hyperparameters)

Every step draws once from the guide, takes the gradient of the loss on a minibatch, and lets the optimiser move the
parameters of guide and model. With both factors 1 the loss is minus the ELBO. Minibatches run through a fresh permutation
of the data in every epoch.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor

from pyrodrop import threads
from pyrodrop.data import Dataset
from pyrodrop.devices import resolve, seeded, tf32_products
from pyrodrop.engines import NAMES, Pyro, choose
from pyrodrop.engines import Name as EngineName
from pyrodrop.names import known
from pyrodrop.networks.modes import evaluating
from pyrodrop.reparam import STRATEGIES
from pyrodrop.training.autoguides import autoguides
from pyrodrop.training.checkpoint import Checkpoint
from pyrodrop.training.fitted import Fit, describe
from pyrodrop.training.loop import Controls, LearningRate, Optimizer, Training, optimizer_of
from pyrodrop.training.minibatches import Minibatches, check_minibatches
from pyrodrop.training.problem import Problem, restart, training_mode
from pyrodrop.training.replicates import Replicates, Settings, fit_replicates
from pyrodrop.training.settings import (
    check_memory,
    checkpoint_every_of,
    data_sets,
    kl_weight_of,
    likelihood_power_of,
    lr_schedule_of,
    refuse_unknown,
)

Data = Dataset | tuple[Tensor, Tensor]
adam = functools.partial(torch.optim.Adam, fused=True)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "tf32": None}


@overload
def fit(
    model: Callable[..., Any], guide: Callable[..., Any], data: Data, *, replicates: None = None, **settings: Any
) -> Fit: ...


@overload
def fit(
    model: Callable[..., Any] | Sequence[Callable[..., Any]],
    guide: Callable[..., Any] | Sequence[Callable[..., Any]],
    data: Data | Sequence[Data],
    *,
    replicates: int,
    **settings: Any,
) -> Replicates: ...


@threads.training()  # type: ignore[misc]  # the overloads say what comes back, not every setting again
def fit(
    model: Any,
    guide: Any,
    data: Any,
    *,
    steps: int,
    batch_size: int | None = None,
    lr: LearningRate = 1e-3,
    optimizer: Optimizer = adam,
    lr_schedule: Callable[[int], float] | None = None,
    estimator: Literal["shared", "per_example", "local", "flipout"] = "shared",
    kl_weight: float | Callable[[float], float] = 1.0,
    likelihood_power: float = 1.0,
    engine: EngineName = "auto",
    precision: Literal["float32", "bfloat16", "tf32"] | None = None,
    replicates: int | None = None,
    starts: Literal["model", "new"] = "model",
    memory: float | None = None,
    device: str | torch.device = "auto",
    seed: int = 0,
    progress: bool | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int | None = None,
    after_epoch: Callable[[Fit, int], None] | None = None,
    **unknown: Any,
) -> Fit | Replicates:
    """Train a guide of a model on data.

    Steps are made in training mode: the network's submodules that were in it when the model was made (nn.BatchNorm) use the
    minibatch at hand and move their buffers, in every engine. The trained model is in evaluation mode.

    Works on copies: `model` and `guide` stay as they are, the trained ones are ``Fit.model`` and ``Fit.guide``, so one
    model serves many guides and the same call gives the same result. Two things are trained in place: parameters in Pyro's
    global store, and a guide that is or holds one of Pyro's autoguides, together with its model, which the autoguide holds
    by reference and has to be the `model` of this call.

    Args:
        model: a Pyro model ``model(x, y)``, and ``model(x, y, num_data=N)`` if it is to be trained on minibatches.
        guide: its guide, called with the same arguments.
        data: a `Dataset` or a pair (x, y), in their own units. Where the data carry a standardisation, a model of
            `pyrodrop.models` takes it over.
        steps: number of gradient steps.
        batch_size: rows of a minibatch; all rows if None.
        lr: learning rate, or a function from a parameter's name to it.
        optimizer: a `torch.optim` class, or anything called like one; Adam if left out.
        lr_schedule: factor of the learning rate at step 0, 1, ...: a function of the number of steps done, such as
            ``schedules.cosine(steps)``.
        estimator: how a minibatch shares noise, see `pyrodrop.reparam`: one weight draw for all of it (``shared``), one
            per example, noise on the activations (``local``: `torch.nn.Dropout` is that), or flipped signs per example. The
            expected gradient is the same, its variance is not. With one exception: under ``local``, noise that is the
            weights' and not the input units' (Gaussian posteriors, DropConnect, theta > 0) is drawn for every row of an
            example by itself, which in convolutions and for tokens is the objective of another posterior, over activations
            (``Fit.settings["noise_by_row"]`` names the weights). Where examples see each other, in a graph or by the
            statistics of BatchNorm in training mode, only ``shared`` is taken.
        kl_weight: factor of the weights' divergence in the loss, at least 0: a number, or a function of the epochs done,
            such as ``schedules.linear(20)``. Likelihood and hyperparameters keep theirs; `Fit.elbo` knows nothing of it.
        likelihood_power: Psaros' beta, positive: training is on the likelihood to that power. In the terms of tempered
            posteriors it is 1 / T; `Fit.elbo` has the likelihood itself.
        engine: who makes the steps, see `pyrodrop.engines`: ``pyro``, ``traced``, ``compiled``, or ``auto``, which weighs
            the work against the time of tracing and compiling. All draw the same noise; what cannot be traced is trained
            by Pyro, and the log of `pyrodrop` says why.
        precision: of matrix products: ``bfloat16`` for autocast, ``tf32`` for NVIDIA's shorter float32; divergences stay in
            the parameters' own dtype. None for that throughout.
        replicates: R, for as many independent fits in one, faster than one by one: replicate r is the fit alone with
            seed + r, from the weights that the model has, or of the r-th of a list where `model` and `guide`, or `data`,
            are lists or tuples of as many. See `pyrodrop.training.replicates`.
        starts: ``model`` to begin with the weights that the model has, ``new`` to begin with new ones, as deep ensembles
            do: the fit, or replicate r, is that of ``restart(model, guide, seed)``, with seed + r.
        memory: bytes that replicates may take together; half of what is free if None. More are trained in turn. Of
            replicates only.
        device: ``auto`` (a GPU if there is one), ``cpu``, ``cuda``, ``cuda:1`` ...
        seed: of minibatches and noise. The same seed on the same machine with as many threads gives the same bits;
            the caller's random state is left alone.
        progress: whether to show a progress bar; if None, where the output is a terminal.
        checkpoint: file to save the whole state of training to, every `checkpoint_every` steps, and to go on from if
            it exists: the result is that of a run that was never interrupted.
        checkpoint_every: number of steps from one saving to the next; 10,000 if None. With a checkpoint only.
        after_epoch: called after every epoch with the fit as it is then, in evaluation mode, and the number of epochs done,
            and on going on from a checkpoint at the end of an epoch. What it draws does not change the training; what it
            returns is not looked at.

    Raises:
        TypeError: an argument that there is not, or that is of another kind than asked for, such as a schedule of the
            learning rate for `kl_weight`.
        ValueError: before the first step, for data, shapes, settings or a device that cannot be trained with.
        RuntimeError: a step moves no parameter, as when a model reaches its network through a closure; or another thread
            trains: see `pyrodrop.threads`.
        FloatingPointError: the loss is no longer finite; of replicates, all losses.

    Returns:
        A `Fit`, or `Replicates`, a list of them.
    """
    refuse_unknown(unknown)
    if steps < 1:
        raise ValueError(f"steps is the number of gradient steps and must be at least 1; got {steps}")
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size is the number of rows of a minibatch and must be at least 1; got {batch_size}")
    controls = Controls(lr_schedule_of(lr_schedule), kl_weight_of(kl_weight), likelihood_power_of(likelihood_power))
    every = checkpoint_every_of(checkpoint_every, checkpoint)
    check_memory(memory, replicates)
    known(engine, NAMES, "engine")
    known(estimator, STRATEGIES, "estimator")
    known(starts, ("model", "new"), "starts")
    dtype = None if precision is None else _DTYPES[known(precision, _DTYPES, "precision")]
    device = resolve(device)
    products = tf32_products(precision == "tf32", device)
    about = {
        "steps": steps,
        "device": device.type,
        "estimator": estimator,
        "kl_weight": "scheduled" if callable(kl_weight) else kl_weight,
        "likelihood_power": likelihood_power,
        "precision": precision,
    }
    if replicates is not None:
        if checkpoint is not None:
            raise ValueError("replicates keep no checkpoint; got checkpoint and replicates both")
        if after_epoch is not None:
            raise ValueError("replicates are not looked at between epochs; got after_epoch and replicates both")
        if engine == "pyro":
            raise ValueError("replicates are one traced step: engine must be auto, traced or compiled; got 'pyro'")
        seeds = [seed + r for r in range(replicates)]
        problems = _problems(model, guide, data, seeds, estimator, device, starts == "new")
        check_minibatches(batch_size, problems[0].data.x, problems[0].model, problems[0].guide)
        common = Settings(steps, batch_size, lr, optimizer, controls, engine, dtype, device, progress, memory)
        with products, training_mode(*problems):
            return fit_replicates(problems, seeds, common, about)

    if starts == "new":
        model, guide = restart(model, guide, seed)
    problem = Problem.of(model, guide, data, estimator, device)
    batches = Minibatches(problem.data, batch_size, device)
    check_minibatches(batch_size, problem.data.x, problem.model, problem.guide)
    settings = {
        **about,
        "model": describe(problem.model),
        "guide": describe(problem.guide),
        "batch_size": batches.size,
        "num_data": len(problem.data),
        "data_fingerprint": problem.data.fingerprint,
        "noise_by_row": problem.noise_by_row(),
        "seed": seed,
    }
    start = time.perf_counter()
    with seeded(seed, device), products, training_mode(problem):
        training = training_of(problem, batches, controls, steps, lr, optimizer, engine, dtype)
        store = None if checkpoint is None else Checkpoint(Path(checkpoint), training, settings)
        if store is not None:
            if problem.changes:
                raise ValueError(
                    f"a checkpoint holds parameters and buffers of modules, and {problem.changes}: what an interrupted run "
                    "goes on from must be buffers (register_buffer); got a checkpoint with such a model or guide"
                )
            store.resume()

        def so_far() -> Fit:
            history = training.history[: training.done].cpu()
            return Fit(problem.model, problem.guide, problem.data, history, settings, device)

        def look(epochs: int) -> None:
            with evaluating(problem.model, problem.guide):
                after_epoch(so_far(), epochs)  # type: ignore[misc]  # called where there is one

        training.run(progress, store, every, None if after_epoch is None else look)
    settings |= {"seconds": time.perf_counter() - start, "engine": training.engine.name}
    return so_far()


def training_of(
    problem: Problem,
    batches: Minibatches,
    controls: Controls,
    steps: int,
    lr: LearningRate = 1e-3,
    optimizer: Optimizer = adam,
    engine: EngineName = "auto",
    precision: torch.dtype | None = None,
) -> Training:
    """The training of one problem, before its first step."""
    parameters = problem.parameters(batches.first(), precision)
    problem.try_(batches.samples(steps)[1:], precision)
    leaves = {name: parameter.unconstrained for name, parameter in parameters.items()}
    moved = optimizer_of(leaves, optimizer, lr)
    by_pyro = Pyro(*problem.trained, moved, precision)
    choice = functools.partial(choose, engine, by_pyro, parameters, problem.moving, problem.changes)
    title = describe(problem.guide).split("(")[0]
    return Training(
        leaves, batches, moved, controls, steps, first=by_pyro, choose=choice, title=title, buffers=problem.kept
    )


def _problems(
    model: Any, guide: Any, data: Any, seeds: Sequence[int], estimator: str, device: torch.device, anew: bool
) -> list[Problem]:
    """One problem a replicate, from one of each thing for all or a list."""
    count = len(seeds)
    if count < 1:
        raise ValueError(f"replicates is the number of independent fits and must be at least 1; got {count}")
    model, guide = (list(value) if isinstance(value, tuple) else value for value in (model, guide))
    if any(autoguides(one) for one in (guide if isinstance(guide, list) else [guide])):
        raise TypeError("replicates need guides with parameters of their own; an AutoGuide keeps its in Pyro's store")
    sets = data_sets(data, count)
    for name, value in (("models", model), ("guides", guide)):
        if isinstance(value, list) and len(value) != count:
            raise ValueError(f"{count} replicates need as many {name}, or one for all; got a list of {len(value)}")
    if isinstance(model, list) != isinstance(guide, list):
        raise ValueError("a guide belongs to its model: give lists of both, or one of each for all replicates")
    first = model[0] if isinstance(model, list) else model
    if not getattr(first, "batches_weights", True):
        raise ValueError(
            "replicates run the network for many weights at once, which torch.vmap cannot do for nn.LSTM, nn.GRU and "
            "nn.RNN; call nn.LSTMCell and its kin step by step, or fit one by one"
        )
    pairs = list(zip(model, guide, strict=True)) if isinstance(model, list) else [(model, guide)] * count
    if anew:
        pairs = [restart(*pair, own) for pair, own in zip(pairs, seeds, strict=True)]
    return [Problem.of(m, g, own, estimator, device) for (m, g), own in zip(pairs, sets, strict=True)]
