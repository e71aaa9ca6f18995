"""Many independent fits at once.

    fit_replicates(models, guides, data, count=R)  =  [fit(models[r], guides[r], data[r], seed=seed + r) for r in range(R)]

as one step of stacked parameters (`pyrodrop.training.stack`). Replicates may differ in data of equal shapes, initial
weights, noise, minibatches, drop rates, precisions and scales of Gaussian priors; everything else is the same. Every
replicate updates the buffers of its own network, such as running statistics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pyrodrop import threads
from pyrodrop.arguments import count as whole_number
from pyrodrop.arguments import positive, shown
from pyrodrop.arguments import progress as checked_progress
from pyrodrop.arguments import seed as checked_seed
from pyrodrop.data import Data, Dataset
from pyrodrop.distributions.rebuilt import rebuilt
from pyrodrop.engines import Name as EngineName
from pyrodrop.networks.agreement import check_guide
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.training.autoguides import autoguides
from pyrodrop.training.blocks import Parts, train_in_blocks
from pyrodrop.training.fitted import Fit
from pyrodrop.training.minibatches import check_minibatches
from pyrodrop.training.options import names_checked
from pyrodrop.training.problem import Problem, restart, training_mode
from pyrodrop.training.runaway import warn_of_runaways
from pyrodrop.training.settings import (
    Estimator,
    KLWeight,
    LearningRate,
    LearningRateSchedule,
    Optimizer,
    Precision,
    Settings,
    Starts,
    adam,
)
from pyrodrop.training.spread import spreads
from pyrodrop.training.stack import Stack

_log = logging.getLogger("pyrodrop")


@dataclass
class Replicates(Sequence[Fit]):
    """R independent fits, as a sequence.

    Attributes:
        fits: one per replicate; a failed one has its parameters before the step that failed.
        failed: the number of that step for every replicate whose loss or gradient stopped being finite, by the replicate's
            number.
    """

    fits: list[Fit]
    failed: dict[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.fits)

    def __getitem__(self, index: Any) -> Any:
        return self.fits[index]

    def __iter__(self) -> Iterator[Fit]:
        return iter(self.fits)

    def predict(self, x: Tensor, num_samples: int = 1000, *, seed: int = 0) -> Prediction:
        """Predict with the equal mixture of all replicates that did not fail, as an ensemble.

        Args:
            x: points, ``[N, ...]``.
            num_samples: number of draws in all, at least one per replicate; each contributes an equal share, rounded up.
            seed: of the draws.

        Raises:
            TypeError: a number is no whole number, or the likelihood has no mixture of its distributions.
            ValueError: fewer draws than replicates, all replicates failed, or as `Fit.predict`.
        """
        members = [fit for number, fit in enumerate(self.fits) if number not in self.failed]
        if not members:
            raise ValueError(
                f"a prediction needs at least one replicate that did not fail; got {len(self.fits)} failed ones"
            )
        what = f"the number of draws in all, at least one for each of {len(members)} replicates,"
        num_samples, seed = whole_number(num_samples, "num_samples", what, least=len(members)), checked_seed(seed)
        share = -(-num_samples // len(members))
        parts = [fit.predict(x, share, seed=seed + number) for number, fit in enumerate(members)]
        law = _joined([part.law for part in parts])
        return Prediction(f=torch.cat([part.f for part in parts]), law=law, seed=seed)


@names_checked
@threads.training()
@torch.inference_mode(False)
@torch.enable_grad()
def fit_replicates(
    models: Callable[..., Any] | Sequence[Callable[..., Any]],
    guides: Callable[..., Any] | Sequence[Callable[..., Any]],
    data: Data | Sequence[Data],
    *,
    count: int,
    steps: int,
    batch_size: int | None = None,
    lr: LearningRate = 1e-3,
    optimizer: Optimizer = adam,
    lr_schedule: LearningRateSchedule | None = None,
    estimator: Estimator = "shared",
    kl_weight: KLWeight = 1.0,
    likelihood_power: float = 1.0,
    engine: EngineName = "auto",
    precision: Precision | None = None,
    starts: Starts = "model",
    memory: float | None = None,
    jobs: int | None = None,
    device: str | torch.device = "auto",
    seed: int = 0,
    progress: bool | None = None,
) -> Replicates:
    """Train independent fits as one, which is faster than one by one.

    Replicate r is the fit alone with ``seed + r``; see `pyrodrop.fit` for the arguments that are not described here. One
    whose loss or gradient stops being finite keeps its last parameters, and the others continue.

    Args:
        models: one model for all replicates, or a list or tuple of `count`.
        guides: one guide for all, or a list or tuple of `count`. A guide belongs to its model, so pass lists of both or of
            neither.
        data: one data set for all, or a list or tuple of `count` data sets of equal shapes.
        count: R, the number of replicates.
        steps, batch_size, lr, optimizer, lr_schedule, estimator, kl_weight, likelihood_power: as in `fit`.
        engine: ``traced``, ``compiled``, or ``auto``.
        precision: as in `fit`.
        starts: ``model`` to start from the weights that the models have, ``new`` to start each replicate from new ones, as
            deep ensembles do: replicate r from ``restart(model, guide, seed + r)``.
        memory: bytes that all replicates together may take; half of the free memory if None. Where that is not enough they
            are trained in turn, as many at a time as fit. With several processes it is that of all on this machine, or of
            each worker of a cluster.
        jobs: number of processes of this machine to train blocks of replicates in, one thread each. If None, the workers of
            a joblib backend that is active, such as a Dask cluster under ``joblib.parallel_config("dask")``; otherwise this
            process. Workers need this package, and the modules that model and guide are defined in. Any number of workers
            gives the same bits: those of this process with one thread, where replicates are so small that a block has
            several; larger ones are a block each, and equal them up to rounding.
        device: as in `fit`.
        seed: of the first replicate; replicate r has ``seed + r``.
        progress: as in `fit`.

    Raises:
        TypeError: an unknown argument, one of the wrong kind, or one of Pyro's autoguides.
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
    steps = whole_number(steps, "steps", "the number of gradient steps")
    settings = Settings(
        steps=steps, batch_size=batch_size, lr=lr, optimizer=optimizer, lr_schedule=lr_schedule, estimator=estimator,
        kl_weight=kl_weight, likelihood_power=likelihood_power, engine=engine, precision=precision, starts=starts,
        device=device, seed=seed,
    )  # fmt: skip
    return train_replicates(models, guides, data, settings, count, memory, progress, jobs)


def train_replicates(
    models: Any,
    guides: Any,
    data: Any,
    settings: Settings,
    count: int,
    memory: float | None,
    progress: bool | None,
    jobs: int | None = None,
) -> Replicates:
    """`fit_replicates` with its settings in one object."""
    if memory is not None:
        memory = positive(memory, "memory", "the number of bytes that all replicates together may take")
    checked_progress(progress)
    count = whole_number(count, "count", "the number of replicates")
    if settings.engine == "pyro":
        raise ValueError(
            "replicates are trained as one traced step: engine must be 'auto', 'traced' or 'compiled'; got 'pyro'"
        )
    seeds = [settings.seed + r for r in range(count)]
    away = spreads(jobs)
    made_of = _parts(models, guides, data, seeds)
    if away:
        fits, failed = train_in_blocks(_in_one_process, made_of, settings, memory, progress, jobs)
    else:
        fits, failed = _in_one_process(made_of, settings, memory, progress)
    for number, step in failed.items():
        _log.warning("replicate %d stopped at step %d: its loss or gradient was not finite", number, step)
    warn_of_runaways(*fits)
    return Replicates(fits, failed)


@threads.training()
@torch.inference_mode(False)
@torch.enable_grad()
def _in_one_process(
    made_of: Parts, settings: Settings, memory: float | None, progress: bool | None
) -> tuple[list[Fit], dict[int, int]]:
    """The fits of all replicates, and the last step of each that failed."""
    problems = _problems(made_of, settings)
    check_minibatches(settings.batch_size, problems[0].data.x, problems[0].model, problems[0].guide)
    with settings.products(), training_mode(*problems):
        return _train(problems, settings, made_of.seeds, memory, progress)


def _train(
    problems: Sequence[Problem], settings: Settings, seeds: Sequence[int], memory: float | None, progress: bool | None
) -> tuple[list[Fit], dict[int, int]]:
    """Train all replicates, as many at a time as fit into memory."""
    generators = [torch.Generator(settings.place).manual_seed(seed) for seed in seeds]
    chunk = Stack(problems[:1], generators[:1], settings).fitting(memory)
    if chunk < len(problems):
        _log.info("training %d of %d replicates at a time, limited by memory", chunk, len(problems))
    fits: list[Fit] = []
    failed: dict[int, int] = {}
    for first in range(0, len(problems), chunk):
        part = slice(first, first + chunk)
        done, broken = Stack(problems[part], generators[part], settings).train(seeds[part], progress)
        fits += done
        failed |= {first + number: step for number, step in broken.items()}
    return fits, failed


def _problems(made_of: Parts, settings: Settings) -> list[Problem]:
    """One problem per replicate."""
    pairs = [made_of.pair(r) for r in range(len(made_of))]
    if settings.starts == "new":
        pairs = [restart(*pair, own) for pair, own in zip(pairs, made_of.seeds, strict=True)]
    return [
        Problem.of(model, guide, own, settings.estimator, settings.place)
        for (model, guide), own in zip(pairs, made_of.sets, strict=True)
    ]


def _parts(models: Any, guides: Any, data: Any, seeds: Sequence[int]) -> Parts:
    """What the replicates are made of, from one model, guide and data set for all or a list of them."""
    count = len(seeds)
    models, guides = (list(value) if isinstance(value, tuple) else value for value in (models, guides))
    if any(autoguides(one) for one in (guides if isinstance(guides, list) else [guides])):
        raise TypeError(
            "replicates need guides with parameters of their own; those of an AutoGuide are in Pyro's global store"
        )
    sets = data_sets(data, count)
    for name, value in (("models", models), ("guides", guides)):
        if isinstance(value, list) and len(value) != count:
            raise ValueError(f"{count} replicates need as many {name}, or one for all; got a list of {len(value)}")
    if isinstance(models, list) != isinstance(guides, list):
        raise ValueError("a guide belongs to its model: pass lists of both, or one of each for all replicates")
    first = models[0] if isinstance(models, list) else models
    if not getattr(first, "batches_weights", True):
        raise ValueError(
            "replicates run the network for many weights at once, which torch.vmap cannot do for nn.LSTM, nn.GRU and "
            "nn.RNN; call nn.LSTMCell and its relatives step by step, or fit one by one"
        )
    _check_callable(models, guides)
    return Parts(
        list(zip(models, guides, strict=True)) if isinstance(models, list) else [(models, guides)], sets, seeds
    )


def _check_callable(models: Any, guides: Any) -> None:
    """Raise an error unless these are models and guides, or lists of them, that belong together."""
    each = [list(value) if isinstance(value, list) else [value] for value in (models, guides)]
    for name, values in zip(("models", "guides"), each, strict=True):
        for value in values:
            if not callable(value):
                raise TypeError(
                    f"{name} must be a Pyro {name[:-1]} for all, or a list of one for each; got {shown(value)}"
                )
    for model, guide in zip(*each, strict=True):
        check_guide(model, guide, "guides")


def data_sets(data: Any, count: int) -> list[Dataset]:
    """One data set per replicate, from one for all or a list or tuple of `count`.

    A tuple (x, y) is one data set, where x may be a tuple of tensors itself. It is a sequence of data sets where its parts
    are `Dataset`s or pairs.

    Raises:
        TypeError: a sequence of something else, or a list [x, y], which could be either.
        ValueError: another number of data sets.
    """
    if isinstance(data, Dataset) or not isinstance(data, list | tuple):
        return [Dataset.of(data)] * count
    if isinstance(data, tuple) and len(data) == 2 and not _is_data(data[1]):
        return [Dataset.of(data)] * count
    if not all(_is_data(one) for one in data):
        raise TypeError(
            "the data of replicates must be one data set for all, a Dataset or a tuple (x, y), or a list or tuple of data "
            f"sets, one for each; got a {type(data).__name__} of {', '.join(type(one).__name__ for one in data)}"
        )
    if len(data) != count:
        raise ValueError(
            f"{count} replicates need as many data sets, or one for all; got a {type(data).__name__} of {len(data)}"
        )
    return [Dataset.of(one) for one in data]


def _is_data(value: Any) -> bool:
    """Whether this can be a data set by itself: y of a pair is a tensor or an array, never a pair."""
    pair = isinstance(value, list | tuple) and len(value) == 2
    return isinstance(value, Dataset) or (pair and hasattr(value[1], "__array__"))


def _joined(laws: Sequence[Any]) -> Any:
    """Distributions of one class, concatenated along their first axis."""
    try:
        return rebuilt(lambda *values: torch.cat(values), *laws)
    except TypeError as error:
        raise TypeError(
            "replicates predict as a mixture of their distributions of y, which is made of the parameters of each: predict "
            f"with each fit by itself. {error}"
        ) from error
