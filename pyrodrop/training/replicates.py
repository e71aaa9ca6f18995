"""Many independent fits at once.

    fit_replicates(models, guides, data, count=R)  ~  [fit(models[r], guides[r], data[r], seed=seed + r) for r in range(R)]

in distribution, as steps of stacked parameters (`pyrodrop.training.stacked`). Replicates of a stack may differ in data,
initial weights, noise, minibatches, drop rates, precisions and scales of Gaussian priors; everything else is the same. Those
whose tensors have other shapes, such as networks of another width or data of another size, are another stack, which trains
after the first. Every replicate updates the buffers of its own network, such as running statistics.
"""

from __future__ import annotations

import logging
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Unpack

import torch
from torch import nn

from pyrodrop import threads
from pyrodrop.changes import modules_of
from pyrodrop.checks import MOST, Progress, checked, real, shown
from pyrodrop.checks import count as whole_number
from pyrodrop.data import Data, Dataset, Keywords
from pyrodrop.devices import available
from pyrodrop.models.network import NetworkModel
from pyrodrop.prediction.agreement import check_guide
from pyrodrop.threads import outside
from pyrodrop.training.fitted_replicates import Replicates
from pyrodrop.training.jobs import run_each, workers
from pyrodrop.training.problem import Problem, autoguides, training_mode
from pyrodrop.training.settings import Settings, Starts, TrainingOptions, with_options
from pyrodrop.training.worth import judge

__all__ = ["Replicates", "data_sets", "fit_replicates"]

_log = logging.getLogger("pyrodrop")


class Replicate(NamedTuple):
    """What one replicate is made of. Others may share its model, guide and data."""

    model: Any
    guide: Any
    data: Dataset | Keywords
    seed: int


@with_options
@checked
@threads.exclusive()
@outside("fit_replicates")
@torch.inference_mode(False)
@torch.enable_grad()
def fit_replicates(
    models: Callable[..., Any] | Sequence[Callable[..., Any]],
    guides: Callable[..., Any] | Sequence[Callable[..., Any]],
    data: Data | Mapping[str, Any] | Sequence[Data | Mapping[str, Any]],
    *,
    count: int,
    steps: int,
    memory: float | None = None,
    jobs: int | None = None,
    starts: Starts = "model",
    progress: Progress = None,
    **options: Unpack[TrainingOptions],
) -> Replicates:
    """Train independent fits together, which is faster than one by one for small networks.

    A replicate is equal in distribution to the fit alone, and independent of the others: its noise and its minibatches are
    its own. The same call gives the same result; with another `count`, `memory` or `jobs` it draws other random numbers. See
    `pyrodrop.fit` for the arguments that are not described here. A replicate whose loss or gradient stops being finite keeps
    its last finite parameters, and the others continue. Replicates whose tensors have the same shapes train together; those
    of other shapes (networks of another width, data of another size) train after them.

    Args:
        models: one model for all replicates, or a list or tuple of `count`. Networks of the same widths and `seed` start
            from the same weights: give each its own seed.
        guides: one guide for all, or a list or tuple of `count`. A guide belongs to its model, so pass lists of both or of
            neither.
        data: one data set for all, or a list or tuple of `count` data sets; or mappings of keyword arguments of a Pyro
            program, which differ in the values of tensors alone.
        count: R, the number of replicates.
        steps, batch_size, lr, optimizer, lr_schedule, estimator, kl_weight: as in `fit`.
        engine: ``traced``, ``compiled``, or ``auto``.
        starts: ``model`` to start from the weights that the models have, ``new`` to start each replicate from new ones, as
            deep ensembles do: replicate r from ``restart(model, guide, seed + r)``, which draws anchors (`priors.Anchored`)
            and prior functions (`models.WithPriorFunction`), too.
        memory: bytes that all replicates together may take; half of the free memory if None. If that is not enough, they
            train in turn, as many at a time as fit. It is shared by all processes of this machine; on a cluster, each worker
            has as much.
        jobs: number of processes that train a share of the replicates each, with one thread. If None, the workers of a
            joblib backend that is active, such as a Dask cluster under ``joblib.parallel_config("dask")``; otherwise this
            process. Workers need this package, and the modules that model and guide are defined in.
        device: as in `fit`.
        seed: of noise and minibatches; new weights of replicate r are those of ``seed + r``, which its settings name.
        progress: as in `fit`.

    Raises:
        TypeError: an unknown argument, one of the wrong kind, or one autoguide for several replicates.
        ValueError: before the first step, for settings, data or networks that cannot be trained as replicates.
        RuntimeError: as `fit`.
        FloatingPointError: no replicate has a finite loss.

    Example:
        >>> import torch, pyrodrop
        >>> from pyrodrop import guides, likelihoods, models, priors
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> model = models.MLP([1, 8, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(10.0))
        >>> many = pyrodrop.fit_replicates(model, guides.Point(model), (x, x**2), count=3, steps=5, starts="new")
        >>> len(many), many.predict(x, 3).f.shape
        (3, torch.Size([3, 20, 1]))
    """
    settings = Settings(steps=whole_number(steps, "steps", "the number of gradient steps"), starts=starts, **options)
    if memory is not None:
        memory = real(memory, "memory", "the number of bytes that all replicates together may take", above=0)
    count = whole_number(count, "count", "the number of replicates")
    if settings.engine == "pyro":
        raise ValueError(
            "replicates are trained as one traced step: engine must be 'auto', 'traced' or 'compiled'; got 'pyro'"
        )
    shares = min(count, workers(jobs))
    replicates = _replicates(models, guides, data, [settings.seed + r for r in range(count)])
    if shares > 1:
        done = _in_processes(replicates, settings, memory, progress, jobs, shares)
    else:
        done = _in_one_process(replicates, settings, memory, progress)
    if len(done.failed) == count:
        first = min(done.failed, key=lambda replicate: done.failed[replicate])
        raise FloatingPointError(
            f"All {count} replicates failed, replicate {first} first: its loss or gradient stopped being finite at step "
            f"{done.failed[first]}. Try a smaller learning rate, a smaller initial scale, or standardised data. Replicate "
            f"{first} alone is a fit with seed + {first}"
        )
    for number, step in done.failed.items():
        _log.warning("replicate %d stopped at step %d: its loss or gradient was not finite", number, step)
    judge(*done, failed=done.failed)
    return done


@threads.exclusive()
@torch.inference_mode(False)
@torch.enable_grad()
def _in_one_process(
    replicates: Sequence[Replicate], settings: Settings, memory: float | None, progress: bool | None
) -> Replicates:
    """Train all replicates in this process."""
    from pyrodrop.training.stacked import train_stacks

    problems: list[Problem] = []
    known: dict[Any, Problem] = {}
    for model, guide, data, seed in replicates:
        start, like = seed if settings.starts == "new" else None, known.get((id(model), id(guide)))
        problems.append(Problem.of(model, guide, data, settings, start=start, like=like, copies=True))
        known.setdefault((id(model), id(guide)), problems[-1])
    seeds = [replicate.seed for replicate in replicates]
    if any(
        not (problem.in_place or problem.networks) and modules_of(problem.model, problem.guide) for problem in problems
    ):
        _log.info("replicates train copies of the program's networks, which each fit has at fit.model and fit.guide")
    with settings.products(), training_mode(*problems):
        return train_stacks(problems, settings, seeds, memory, progress)


def _in_processes(
    replicates: Sequence[Replicate],
    settings: Settings,
    memory: float | None,
    progress: bool | None,
    jobs: int | None,
    number: int,
) -> Replicates:
    """Train all replicates, in this number of shares."""
    from pyrodrop.training.stacked import merged

    autos = [auto for replicate in replicates for auto in autoguides(replicate.guide)]
    if autos:
        raise ValueError(
            f"jobs must be None for autoguides, which lose their model on the way to another process; got jobs={jobs} and "
            f"an {type(autos[0]).__name__}"
        )
    if jobs is not None:
        memory = min(memory or 0.5 * available(settings.place), MOST) / jobs
    shares = [range(first, len(replicates), number) for first in range(number)]
    trained = run_each(
        _share,
        [([replicates[r] for r in share], settings, memory) for share in shares],
        jobs=jobs,
        title=f"{len(replicates)} replicates",
        unit="share",
        progress=progress,
    )
    done = merged(zip(shares, trained, strict=True))
    return replace(done, fits=[replace(fit, data=each.data) for fit, each in zip(done, replicates, strict=True)])


def _share(replicates: Sequence[Replicate], settings: Settings, memory: float | None) -> Replicates:
    """Train a share; the fits are returned without their data, which need not be sent back."""
    done = _in_one_process(replicates, settings, memory, False)
    return replace(done, fits=[replace(fit, data=None) for fit in done])


def _replicates(models: Any, guides: Any, data: Any, seeds: Sequence[int]) -> list[Replicate]:
    """The replicates of these seeds, from one model, guide and data set for all or a list of them."""
    count = len(seeds)
    several = {"models": isinstance(models, list | tuple), "guides": isinstance(guides, list | tuple)}
    models, guides = (
        list(values) if isinstance(values, list | tuple) else [values] * count for values in (models, guides)
    )
    _check_autoguides(models, guides)
    sets = data_sets(data, count)
    for name, values in (("models", models), ("guides", guides)):
        if len(values) != count:
            raise ValueError(f"{count} replicates need as many {name}, or one for all; got a list of {len(values)}")
    # a function has no parameters that replicates would share
    if several["models"] != several["guides"] and not (several["guides"] and isinstance(models[0], types.FunctionType)):
        raise ValueError("a guide belongs to its model: pass lists of both, or one of each for all replicates")
    for model, guide in {(id(m), id(g)): (m, g) for m, g in zip(models, guides, strict=True)}.values():
        for name, value in (("models", model), ("guides", guide)):
            if not callable(value):
                raise TypeError(
                    f"{name} must be a Pyro {name[:-1]} for all, or a list of one for each; got {shown(value)}"
                )
        if isinstance(model, NetworkModel) and not model.batches_weights:
            raise ValueError(
                "replicates run the network for many weights at once, which torch.vmap cannot do for this one; fit one by "
                "one"
            )
        check_guide(model, guide, "guides")
    return [Replicate(*each) for each in zip(models, guides, sets, seeds, strict=True)]


def _check_autoguides(models: Sequence[Any], guides: Sequence[Any]) -> None:
    """Raise a TypeError for autoguides, which are trained in place with their models, unless there is one for each."""
    if not any(autoguides(guide) for guide in {id(guide): guide for guide in guides}.values()):
        return
    modules = [model for model in models if isinstance(model, nn.Module)]
    for name, values in (("models", modules), ("guides", guides)):
        if len(set(map(id, values))) < len(values):
            raise TypeError(
                "an AutoGuide is trained in place, together with the model that it refers to, so replicates need a model "
                f"and a guide of that model each: pass lists of both; got the same one for several in {name}"
            )


def data_sets(data: Any, count: int) -> list[Dataset | Keywords]:
    """One data set per replicate, from one for all or a list or tuple of `count`.

    A tuple (x, y) is one data set, where x may be a tuple of tensors itself. It is a sequence of data sets where its parts
    are `Dataset`s, pairs or mappings of keyword arguments.

    Raises:
        TypeError: a sequence of something else, or a list [x, y], which could be either.
        ValueError: another number of data sets.
    """
    is_pair = isinstance(data, tuple) and len(data) == 2 and not _is_data(data[1])
    if is_pair or isinstance(data, Dataset | Mapping) or not isinstance(data, list | tuple):
        return [_data_set(data)] * count
    if not all(map(_is_data, data)):
        raise TypeError(
            "the data of replicates must be one data set for all, a Dataset or a tuple (x, y), or a list or tuple of data "
            f"sets, one for each; got a {type(data).__name__} of {', '.join(type(each).__name__ for each in data)}"
        )
    if len(data) != count:
        raise ValueError(
            f"{count} replicates need as many data sets, or one for all; got a {type(data).__name__} of {len(data)}"
        )
    return [_data_set(each) for each in data]


def _data_set(value: Any) -> Dataset | Keywords:
    """One data set; `Problem.of` knows whether observations may be missing."""
    return Keywords(value) if isinstance(value, Mapping) else Dataset.of(value, missing=True)


def _is_data(value: Any) -> bool:
    """Whether this can be a data set by itself: y of a pair is a tensor or an array, never a pair."""
    pair = isinstance(value, list | tuple) and len(value) == 2
    return isinstance(value, Dataset | Mapping) or (pair and hasattr(value[1], "__array__"))
