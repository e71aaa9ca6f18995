"""Many independent fits at once.

    fit_replicates(models, guides, data, count=R)  ~  [fit(models[r], guides[r], data[r], seed=seed + r) for r in range(R)]

in distribution, as steps of stacked parameters (`pyrodrop.training.stacked`). Replicates of a stack may differ in data,
initial weights, noise, minibatches, drop rates, precisions and scales of Gaussian priors; everything else is the same. Those
whose tensors have other shapes, such as networks of another width or data of another size, are another stack, which trains
after the first. Every replicate updates the buffers of its own network, such as running statistics.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from pyrodrop import threads
from pyrodrop.checks import Progress, checked, shown
from pyrodrop.checks import count as whole_number
from pyrodrop.checks import seed as checked_seed
from pyrodrop.data import Data, Dataset
from pyrodrop.failed import Failed
from pyrodrop.files import under
from pyrodrop.guides.ensemble import Ensemble
from pyrodrop.guides.exact_last_layer import ExactLastLayer
from pyrodrop.guides.guide import Guide
from pyrodrop.likelihoods import Categorical, HeteroscedasticLogNormal
from pyrodrop.models.network import NetworkModel
from pyrodrop.models.wide_and_deep import WideAndDeep
from pyrodrop.parts import Card, number
from pyrodrop.prediction.agreement import check_guide
from pyrodrop.prediction.posterior import Member, Posterior
from pyrodrop.prediction.stored import Stored
from pyrodrop.threads import outside
from pyrodrop.training.problem import Problem, training_mode
from pyrodrop.training.reasons import judge, odd_rows, shape_of
from pyrodrop.training.result import Fit, restoring
from pyrodrop.training.settings import Settings, Starts, TrainingOptions, with_options

_log = logging.getLogger("pyrodrop")
_MANY = 40  # draws for each component, at which one of them is at most 2.5 % of all


@dataclass(repr=False)
class Replicates(Posterior, Sequence[Fit]):
    """R independent fits, as a sequence.

    Attributes:
        fits: one per replicate; a failed one has its parameters before the step that failed.
        failed: for every replicate whose loss or gradient stopped being finite, the number of that step, counted from 0, by
            the replicate's number.
        weights: of all fits in predictions, not negative, with the sum 1; None for equal weights of those that did not fail.
        data: all rows, of a recipe; None of others and after loading.
        left_out: of a recipe, the log density of every row, of ln y where it is modelled, under its mixture, as the network
            of every prior that was not trained on the row lets one expect (`pyrodrop.stacking`), ``[N]``, NaN of rows
            beyond the first 5,000.
    """

    fits: list[Fit]
    failed: dict[int, int] = field(default_factory=dict)
    weights: list[float] | None = None
    data: Dataset | None = None
    left_out: Tensor | None = None
    kind = "replicates"
    report = Fit.report

    def facts(self) -> dict[str, str]:
        """What a recipe's mixture consists of, what it is of, and what is odd about the rows, in words."""
        weighted = zip(self.fits, self.weights or [1 / len(self)] * len(self), strict=True)
        groups = [[*group] for _, group in itertools.groupby(weighted, lambda pair: pair[1])]  # of one weight each
        groups.sort(key=lambda group: -len(group) * group[0][1])
        density, model = self.left_out, self.fits[0].model
        likelihood: Any = type(model.likelihood)  # type: ignore[attr-defined]
        modelled = {Categorical: "classes", HeteroscedasticLogNormal: "ln y"}.get(likelihood, "y")
        return {
            "mixture": ", ".join(f"{len(group) * group[0][1]:.0%} {_named(group[0][0])}" for group in groups),
            "models": modelled,
            "left out": "" if density is None else f"log density of {modelled} {float(density.nanmean()):.2f} per row",
            "odd rows": "" if density is None else odd_rows(density),
            "y": "" if self.data is None or likelihood is Categorical else shape_of(self.data.y),
        }

    def card(self) -> Card:
        ends = [float(fit.losses[-max(1, len(fit.losses) // 10) :].mean()) for fit in self.fits if len(fit.losses)]
        facts = self.fits[0].card().facts if self.fits else {}
        if ends:
            facts["loss"] = f"{number(min(ends))} to {number(max(ends))} in the last tenth of the steps"
        facts["failed"] = ", ".join(f"number {r} at step {step}" for r, step in self.failed.items())
        if self.weights is not None:
            kept = {name: facts[name] for name in ("training", "failed")}
            return Card(f"A mixture of {len(self.fits)} fits", self.facts() | kept)
        return Card(f"{len(self.fits)} replicates, the first of which is", facts)

    def __len__(self) -> int:
        return len(self.fits)

    def __getitem__(self, index: Any) -> Any:
        return self.fits[index]

    def _members(self, count: int, seed: int, name: str) -> list[Member]:
        working = [fit for number, fit in enumerate(self.fits) if number not in self.failed]
        if not working:
            raise ValueError(
                f"a prediction needs at least one replicate that did not fail; got {len(self.fits)} failed ones"
            )
        what = f"the number of draws in all, at least one for each of {len(working)} replicates,"
        draws = whole_number(count, name, what, least=len(working) if self.weights is None else 1)
        chosen, shares = working, [-(-draws // len(working))] * len(working)
        if self.weights is not None:
            chosen, shares = self.fits, _shares(self.weights, draws)
        numbered = enumerate((fit, share) for fit, share in zip(chosen, shares, strict=True) if share)
        return [(fit, share, checked_seed(seed) + number) for number, (fit, share) in numbered]

    def stored(self) -> Stored:
        fits = [fit.stored() for fit in self.fits]
        tensors = {f"{r}.{name}": value for r, fit in enumerate(fits) for name, value in fit.tensors.items()}
        about = {
            "fits": [fit.about for fit in fits],
            "failed": {str(r): step for r, step in self.failed.items()},
        }
        tensors |= {} if self.left_out is None else {"left_out": self.left_out}
        return Stored(tensors, about if self.weights is None else {**about, "weights": self.weights})

    @classmethod
    def load(
        cls,
        path: str | Path,
        models: Sequence[Callable[..., Any]] | None = None,
        guides: Sequence[Callable[..., Any]] | None = None,
        *,
        device: str | torch.device = "auto",
    ) -> Replicates:
        """Read saved replicates, as `Fit.load` does one. Everything in the file is checked before any of them changes.

        Args:
            path: of the file.
            models, guides: built like the saved ones, one for each replicate, in their order; None for what the file
                describes.
            device: as of `Fit.load`.

        Raises:
            ValueError: the file has another number of replicates, or as `Fit.load`.
            OSError: the file cannot be read; the message names it.
        """
        return restored(Stored.read(path), models, guides, device)


def _shares(weights: Sequence[float], draws: int) -> list[int]:
    """Draws of every fit, by Webster's method. Fits in a row with equal weights are a component. Each has at least one of
    many draws, since tails of the mixture may be those of a component of little weight; few draws are by weight alone."""
    sizes = [len([*group]) for _, group in itertools.groupby(weights)]
    wanted = np.add.reduceat(weights, np.cumsum([0, *sizes[:-1]]))
    shares, first = np.zeros(len(sizes), int), 1e-9 if draws >= _MANY * len(sizes) else 0.5
    for _ in range(draws):
        shares[np.argmax(wanted / np.where(shares, shares + 0.5, first))] += 1
    each = zip(shares.tolist(), sizes, strict=True)
    return [share // size + (member < share % size) for share, size in each for member in range(size)]


def _named(fit: Fit) -> str:
    """What a component of a recipe's mixture is."""
    model: Any = fit.model
    if not isinstance(model, WideAndDeep):
        return type(model).__name__.lower()
    if bool(model.network.deep_is_on):  # type: ignore[arg-type]
        scales = [prior.scale for prior in model.priors.values()]  # type: ignore[attr-defined]
        return f"networks with priors of sd {scales[0]:.2g} to {scales[-1]:.2g}"
    noise: Any = model.likelihood
    if isinstance(noise, Categorical):
        return "the line"
    return f"the line with noise of {float((noise.factor.mean() * noise.variance_at_zero).sqrt()):.2g} sd"


def restored(
    stored: Stored,
    models: Sequence[Callable[..., Any]] | None,
    guides: Sequence[Callable[..., Any]] | None,
    device: str | torch.device = "auto",
) -> Replicates:
    """Replicates that were read from a file, put into models and guides once all are checked."""
    stored.check_kind("replicates")
    about, where = stored.record, stored.where
    fits, steps = about.records("fits"), about.record("failed")
    count = len(fits)
    failed = {r: steps.whole(str(r)) for r in range(count) if str(r) in steps.content}
    if len(failed) < len(steps.content):
        raise Failed(f"{where} must have steps of {count} replicates as failed, by their numbers")
    weights = about.numbers("weights", count) if "weights" in about.content else None
    if weights is not None and (min(weights) < 0 or abs(sum(weights) - 1) > 1e-6):
        raise Failed(f"{where} must have weights with the sum 1 that are not negative")
    pairs = [[None] * count if parts is None else list(parts) for parts in (models, guides)]
    for name, parts in zip(("models", "guides"), pairs, strict=True):
        if len(parts) != count:
            raise ValueError(
                f"{where} has {count} replicates, each of which needs a model and a guide; got {len(parts)} {name}"
            )
    if (density := stored.tensors.get("left_out")) is not None and not (
        density.dim() == 1 and density.is_floating_point()
    ):
        raise Failed(f"{where} must have log densities of rows that are left out, [N]; got shape {list(density.shape)}")
    each = [
        Stored(under(f"{r}.", stored.tensors), fit.content, f"{where}, replicate {r},") for r, fit in enumerate(fits)
    ]
    put = [restoring(Fit, one, model, guide, device) for one, model, guide in zip(each, *pairs, strict=True)]
    return Replicates([load() for load in put], failed, weights, left_out=density)


@with_options
@checked
@threads.exclusive()
@outside("fit_replicates")
@torch.inference_mode(False)
@torch.enable_grad()
def fit_replicates(
    models: NetworkModel | Sequence[NetworkModel],
    guides: Callable[..., Any] | Sequence[Callable[..., Any]],
    data: Data | list[Any],
    *,
    count: int,
    steps: int,
    starts: Starts = "model",
    progress: Progress = None,
    **options: Unpack[TrainingOptions],
) -> Replicates:
    """Train independent fits together, which is faster than one by one for small networks.

    A replicate is equal in distribution to the fit alone, and independent of the others: its noise and its minibatches are
    its own. The same call gives the same result; with another `count` it draws other random numbers. See
    `pyrodrop.fit` for the arguments that are not described here. A replicate whose loss or gradient stops being finite keeps
    its last finite parameters, and the others continue. Replicates whose tensors have the same shapes train together, as
    many at a time as half of the free memory holds; those of other shapes train after them.

    Args:
        models: one model of `pyrodrop.models` for all replicates, or a list or tuple of `count`. Networks of the same widths
            and `seed` start from the same weights: give each its own seed.
        guides: one guide of `pyrodrop.guides` for all, or a list or tuple of `count`. A guide belongs to its model, so pass
            lists of both or of neither.
        data: one data set for all, a `Dataset` or a pair (x, y), or a list of `count` data sets.
        count: R, the number of replicates.
        steps, batch_size, lr, optimizer, lr_schedule, estimator, kl_weight: as in `fit`.
        engine: ``traced``, ``compiled``, or ``auto``.
        starts: ``model`` to start from the weights that the models have, ``new`` to start each replicate from new ones, as
            deep ensembles do: replicate r from ``model.reset_parameters()``, with what its priors draw
            (`Prior.initial`), and ``guide.restart(model)``, both from the seed ``seed + r``.
        device: as in `fit`.
        seed: of noise and minibatches; new weights of replicate r are those of ``seed + r``, which its settings name.
        progress: as in `fit`.

    Raises:
        TypeError: an unknown argument, one of the wrong kind, or a Pyro program, which `fit` trains one by one.
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
    from pyrodrop.training.stacked import train_stacks

    settings = Settings(steps=whole_number(steps, "steps", "the number of gradient steps"), starts=starts, **options)
    count = whole_number(count, "count", "the number of replicates")
    if settings.engine == "pyro" or settings.objective is not None:
        raise ValueError(
            "replicates are trained as one traced step of the ELBO: engine must be 'auto', 'traced' or 'compiled', and "
            f"objective None; got {settings.engine!r} and {shown(settings.objective)}"
        )
    if isinstance(models, list | tuple) != isinstance(guides, list | tuple):
        raise ValueError("a guide belongs to its model: pass lists of both, or one of each for all replicates")
    pairs = [*zip(_each(models, count, "models"), _each(guides, count, "guides"), strict=True)]
    sets = [Dataset.of(own) for own in _each(data, count, "data sets")]
    for model, guide in {(id(model), id(guide)): (model, guide) for model, guide in pairs}.values():
        _check(model, guide)
    seeds = [settings.seed + r for r in range(count)]
    problems: list[Problem] = []
    known: dict[Any, Problem] = {}
    for (model, guide), own, seed in zip(pairs, sets, seeds, strict=True):
        start, like = seed if starts == "new" else None, known.get((id(model), id(guide)))
        problems.append(Problem.of(model, guide, own, settings, start=start, like=like))
        known.setdefault((id(model), id(guide)), problems[-1])
    with settings.products(), training_mode(*problems):
        fits, failed = train_stacks(problems, settings, seeds, progress)
    if len(failed) == count:
        first = min(failed, key=lambda replicate: failed[replicate])
        raise FloatingPointError(
            f"All {count} replicates failed, replicate {first} first: its loss or gradient stopped being finite at step "
            f"{failed[first]}. Try a smaller learning rate, a smaller initial scale, or standardised data"
        )
    for r, step in failed.items():
        _log.warning("replicate %d stopped at step %d: its loss or gradient was not finite", r, step)
    judge(*fits, failed=failed)
    return Replicates(fits, failed)


def _each(value: Any, count: int, name: str) -> list[Any]:
    """One value for each replicate, from one for all or a list."""
    several = isinstance(value, list) or (isinstance(value, tuple) and name != "data sets")  # a tuple (x, y) is one
    values = list(value) if several else [value] * count
    if len(values) != count:
        raise ValueError(f"{count} replicates need as many {name}, or one for all; got a list of {len(values)}")
    return values


def _check(model: Any, guide: Any) -> None:
    """Raise an error for a model and a guide that cannot be trained as replicates."""
    if not isinstance(model, NetworkModel) or not isinstance(guide, Guide | Ensemble | ExactLastLayer):
        raise TypeError(
            "replicates need a model of pyrodrop.models and a guide of pyrodrop.guides, or lists of one for each; got "
            f"{shown(model)} and {shown(guide)}: fit a Pyro program by pyrodrop.fit, one by one"
        )
    if not model.batches_weights:
        raise ValueError(
            "replicates run the network for many weights at once, which torch.vmap cannot do for this one; fit one by one"
        )
    check_guide(model, guide, "guides")
