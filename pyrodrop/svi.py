"""Training a guide by stochastic variational inference.

    loss = temperature * nll + kl_weight * kl(weights) + kl(hyperparameters)

Every step draws once from the guide, takes the gradient of the loss on a minibatch, and lets the optimiser move the
parameters of guide and model. With both factors 1 the loss is minus the ELBO. Minibatches run through a fresh permutation
of the data in every epoch.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import torch
from pyro.infer.autoguide import AutoGuide
from torch import Tensor

from pyrodrop.checkpoint import Checkpoint
from pyrodrop.data import Dataset
from pyrodrop.devices import resolve, seeded, tf32_products
from pyrodrop.fitted import Fit, describe
from pyrodrop.minibatches import Minibatches, check_num_data
from pyrodrop.names import known
from pyrodrop.problem import Problem, restart
from pyrodrop.reparam import STRATEGIES
from pyrodrop.replicates import Replicates, Settings, fit_replicates
from pyrodrop.stepper import NAMES, Pyro, choose
from pyrodrop.stepper import Name as EngineName
from pyrodrop.training import Controls, LearningRate, Optimizer, Training, optimizer_of

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


def fit(  # type: ignore[misc]  # the overloads say what comes back, not every setting again
    model: Any,
    guide: Any,
    data: Any,
    *,
    steps: int,
    batch_size: int | None = None,
    lr: LearningRate = 1e-3,
    optimizer: Optimizer = adam,
    schedule: Callable[[int], float] | None = None,
    estimator: Literal["shared", "per_example", "local", "flipout"] = "shared",
    kl_weight: float | Callable[[float], float] = 1.0,
    temperature: float = 1.0,
    engine: EngineName = "auto",
    precision: Literal["float32", "bfloat16", "tf32"] | None = None,
    replicates: int | None = None,
    memory: float | None = None,
    device: str | torch.device = "auto",
    seed: int = 0,
    progress: bool | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 10_000,
    after_epoch: Callable[[Fit, int], None] | None = None,
) -> Fit | Replicates:
    """Train a guide of a model on data.

    Works on copies: `model` and `guide` stay as they are, the trained ones are ``Fit.model`` and ``Fit.guide``, so one
    model serves many guides and the same call gives the same result. Pyro's autoguides, and whatever else keeps its
    parameters in Pyro's global store, are trained in place.

    Args:
        model: a Pyro model ``model(x, y)``, and ``model(x, y, num_data=N)`` if it is to be trained on minibatches.
        guide: its guide, called with the same arguments.
        data: a `Dataset` or a pair (x, y), in their own units. Where the data carry a standardisation, a model of
            `pyrodrop.models` takes it over.
        steps: number of gradient steps.
        batch_size: rows of a minibatch; all rows if None.
        lr: learning rate, or a function from a parameter's name to it.
        optimizer: a `torch.optim` class, or anything called like one; Adam if left out.
        schedule: factor of the learning rate at step 0, 1, ...
        estimator: how a minibatch shares noise, see `pyrodrop.reparam`: one weight draw for all of it (``shared``), one an
            example, noise on the activations (``local``: `torch.nn.Dropout` is that), or flipped signs. The expected
            gradient is the same, its variance is not.
        kl_weight: factor of the weights' divergence in the loss, at least 0: a number, or a function of the epochs done,
            such as ``schedules.linear(20)``. Likelihood and hyperparameters keep theirs; `Fit.elbo` knows nothing of it.
        temperature: Psaros' beta, positive: the likelihood to that power, whose posterior is tempered.
        engine: who makes the steps, see `pyrodrop.stepper`: ``pyro``, ``traced``, ``compiled``, or ``auto``, which weighs
            the work against the time of tracing and compiling. All draw the same noise; what cannot be traced is trained
            by Pyro, and the log of `pyrodrop` says why.
        precision: of matrix products: ``bfloat16`` for autocast, ``tf32`` for NVIDIA's shorter float32; divergences stay in
            the parameters' own dtype. None for that throughout.
        replicates: R, for as many independent fits in one, faster than one by one: replicate r is the fit alone with
            seed + r, of ``restart(model, guide, seed + r)``, or of the r-th of a list where `model` and `guide`, or
            `data`, are lists. See `pyrodrop.replicates`.
        memory: bytes that replicates may take together; half of what is free if None. More are trained in turn.
        device: ``auto`` (a GPU if there is one), ``cpu``, ``cuda``, ``cuda:1`` ...
        seed: of minibatches and noise. The same seed on the same machine with as many threads gives the same bits;
            the caller's random state is left alone.
        progress: whether to show a progress bar; if None, where the output is a terminal.
        checkpoint: file to save the whole state of training to, every `checkpoint_every` steps, and to go on from if
            it exists: the result is that of a run that was never interrupted.
        after_epoch: called after every epoch with the fit as it is then and the number of epochs done, and on going on
            from a checkpoint at the end of an epoch. What it draws does not change the training; what it returns is not
            looked at.

    Raises:
        ValueError: before the first step, for data, shapes, settings or a device that cannot be trained with.
        RuntimeError: a step moves no parameter, as when a model reaches its network through a closure.
        FloatingPointError: the loss is no longer finite; of replicates, all losses.

    Returns:
        A `Fit`, or `Replicates`, a list of them.
    """
    if steps < 1:
        raise ValueError(f"steps is the number of gradient steps and must be at least 1; got {steps}")
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size is the number of rows of a minibatch and must be at least 1; got {batch_size}")
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(
            f"temperature is the power of the likelihood and must be positive and finite; got {temperature}"
        )
    weight = kl_weight if callable(kl_weight) else (lambda _: float(kl_weight))
    if not (math.isfinite(weight(0.0)) and weight(0.0) >= 0):
        raise ValueError(
            f"kl_weight is the factor of the divergence and must be finite and at least 0; got {weight(0.0)}"
        )
    known(engine, NAMES, "engine")
    known(estimator, STRATEGIES, "estimator")
    dtype = None if precision is None else _DTYPES[known(precision, _DTYPES, "precision")]
    device = resolve(device)
    products = tf32_products(precision == "tf32", device)
    controls = Controls(schedule, weight, temperature)
    about = {
        "steps": steps,
        "device": device.type,
        "estimator": estimator,
        "kl_weight": "scheduled" if callable(kl_weight) else kl_weight,
        "temperature": temperature,
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
        problems = _problems(model, guide, data, seeds, estimator, device)
        for problem in problems[:1]:
            check_num_data(
                min(batch_size or len(problem.data), len(problem.data)), len(problem.data), problem.model, problem.guide
            )
        common = Settings(steps, batch_size, lr, optimizer, controls, engine, dtype, device, progress, memory)
        with products:
            return fit_replicates(problems, seeds, common, about)

    problem = Problem.of(model, guide, data, estimator, device)
    batches = Minibatches(problem.data, batch_size, device)
    check_num_data(batches.size, len(problem.data), problem.model, problem.guide)
    settings = {
        **about,
        "model": describe(problem.model),
        "guide": describe(problem.guide),
        "batch_size": batches.size,
        "num_data": len(problem.data),
        "seed": seed,
    }
    start = time.perf_counter()
    with seeded(seed, device), products:
        training = training_of(problem, batches, controls, steps, lr, optimizer, engine, dtype)
        store = None if checkpoint is None else Checkpoint(Path(checkpoint), training, settings)
        if store is not None:
            store.resume()

        def so_far() -> Fit:
            history = training.history[: training.done].cpu()
            return Fit(problem.model, problem.guide, problem.data, history, settings, device)

        look = None if after_epoch is None else lambda epochs: after_epoch(so_far(), epochs)
        training.run(progress, store, checkpoint_every, look)
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
    leaves = {name: parameter.unconstrained for name, parameter in parameters.items()}
    moved = optimizer_of(leaves, optimizer, lr)
    by_pyro = Pyro(*problem.trained, moved, precision)
    choice = functools.partial(choose, engine, by_pyro, parameters)
    title = describe(problem.guide).split("(")[0]
    return Training(leaves, batches, moved, controls, steps, first=by_pyro, choose=choice, title=title)


def _problems(
    model: Any, guide: Any, data: Any, seeds: Sequence[int], estimator: str, device: torch.device
) -> list[Problem]:
    """One problem a replicate, from one of each thing for all or a list."""
    count = len(seeds)
    if count < 1:
        raise ValueError(f"replicates is the number of independent fits and must be at least 1; got {count}")
    if isinstance(guide, AutoGuide):
        raise TypeError("replicates need guides with parameters of their own; an AutoGuide keeps its in Pyro's store")
    model, guide = (list(value) if isinstance(value, tuple) else value for value in (model, guide))
    for name, value in (("models", model), ("guides", guide), ("data sets", data)):
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
    sets = data if isinstance(data, list) else [Dataset.of(data)] * count
    pairs = (
        list(zip(model, guide, strict=True)) if isinstance(model, list) else [restart(model, guide, s) for s in seeds]
    )
    return [Problem.of(m, g, own, estimator, device) for (m, g), own in zip(pairs, sets, strict=True)]
