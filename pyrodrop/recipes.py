"""Regression and classification of tables: a network, a posterior and settings that nobody has to tune.

    f = W_2 relu(W_1 x + b_1) + b_2        W_1 ~ N(0, r^2 / mean |x|^2),   W_2 ~ N(0, 2 s^2 / K)       K hidden units
    y ~ N(f, 1 / tau)                      or y ~ Categorical(softmax(f)); x and, in a regression, y are standardised

so that f(x) has the standard deviation r s under the prior at an x of mean length; layers between have W ~ N(0, 2 / K).
With one hidden layer r is 1. How sure the predictions may be is not learned from the training rows, which the network has
fitted: r, s and tau are those under which rows that it was not trained on have the largest log density, r and s of a few
pairs. Noise that depends on x is learned, and its variance is then multiplied by the factor that is best for these rows.
Tenths of the data are left out, one after the other, until these have 100 rows or are all. The network is then trained on
all rows, with these values fixed. Warnings say where ridge regression predicts the rows that are left out better, and where
R2 of the training rows is below 0.

The defaults were found on one half of 16 tables and judged on the other: docs/recipes.md.
"""

from __future__ import annotations

import copy
import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor

from pyrodrop.arguments import counts, function, instance
from pyrodrop.arguments import seed as checked_seed
from pyrodrop.cards import Described
from pyrodrop.data import Data, Dataset, Split
from pyrodrop.data.dataset import standardisation_of
from pyrodrop.guides import BernoulliDropout
from pyrodrop.likelihoods import Categorical, Gaussian, HeteroscedasticGaussian, Likelihood
from pyrodrop.models import MLP
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.priors import Gaussian as GaussianPrior
from pyrodrop.scaling import Standardize, narrowed, varies
from pyrodrop.schedules import cosine
from pyrodrop.training.advice import TRIAL, collected, say
from pyrodrop.training.fit import fit
from pyrodrop.training.options import TrainingOptions
from pyrodrop.training.replicates import Replicates, fit_replicates
from pyrodrop.training.result import Fit
from pyrodrop.training.worth import keep_worth

__all__ = ["Recipe", "classifier", "regressor"]

_log = logging.getLogger("pyrodrop")

Posterior = Callable[[MLP], Callable[..., Any]]
dropout: Posterior = functools.partial(BernoulliDropout, drop_rate=0.02, mask_input=False)

_HIDDEN, _BATCH, _LR, _DRAWS = 50, 128, 1e-2, 200
_LENGTH, _LENGTH_DEEP = (2000, 20), (5000, 60)  # steps and epochs, whichever are more
_NARROW = 0.7  # share of held-out rows in 95 % intervals
_MARGIN = 0.01  # nats per row
_RIDGE_ROWS = 5000
_SCORED, _FEW_DRAWS = 20_000, 16  # training rows, and draws of each network, of which R2 is computed
_PARTS, _HELD_OUT = 10, 100  # parts of the data, and rows to be held out, if there are as many
_OF_Y, _OF_LOGITS, _DEEP = (
    ((1.0, 0.5), (1.0, 2.0)),
    ((1.0, 2.0), (1.0, 8.0), (1.0, 32.0)),
    ((1.0, 1.0), (3.0, 3.0)),
)  # r, s


@dataclass(frozen=True, repr=False)
class Recipe(Described):
    """What `regressor` and `classifier` make of a data set.

    Attributes:
        data: the data set, with its standardisation.
        models: the candidates that held-out rows choose from: the same network with another r and s each.
        posterior: makes the guide of a model.
        settings: arguments of `pyrodrop.fit`.
    """

    data: Dataset
    models: tuple[MLP, ...]
    posterior: Posterior
    settings: Mapping[str, Any]

    @property
    def model(self) -> MLP:
        """The first of the models, before tau or s is chosen."""
        return self.models[0]

    @property
    def guide(self) -> Callable[..., Any]:
        """Its posterior, before training."""
        return self.posterior(self.model)

    def describe(self) -> str:
        priors, steps = f"{len(self.models)} priors to choose from", f"{self.settings['steps']} steps"
        return f"Recipe({self.model.describe()}, {priors}, {len(self.data)} rows, {steps})"

    def fit(self, *, progress: bool | None = None, **changes: Unpack[TrainingOptions]) -> Fit:
        """Choose on rows that are held out, and train on all rows.

        ``pyrodrop.fit(recipe.model, recipe.guide, recipe.data, **recipe.settings)`` trains without choosing: tau is then
        learned from the training rows, and is too large where these are few.

        Args:
            progress: as in `pyrodrop.fit`.
            changes: of `settings`. With other `steps` the learning rate falls to 0 over these. `seed`, 0 by default, is also
                that of the rows that are held out and of first weights.

        Raises:
            TypeError, ValueError, FloatingPointError: as `pyrodrop.fit`.
        """
        settings = self._with(changes, progress)
        model, factor = self._chosen(settings)
        run = fit(model, self.posterior(model), self.data, **settings)
        _widen(run, factor)
        self._warn_of_negative_r2(run, settings["steps"])
        return run

    def fit_replicates(
        self, count: int, *, progress: bool | None = None, **changes: Unpack[TrainingOptions]
    ) -> Replicates:
        """As `fit`, with several networks that start from other weights, whose predictions are mixed as an ensemble's.

        Args:
            count: the number of networks.
            progress, changes: as of `fit`.

        Raises:
            TypeError, ValueError, FloatingPointError: as `pyrodrop.fit_replicates`.
        """
        settings = self._with(changes, progress)
        model, factor = self._chosen(settings)
        runs = fit_replicates(model, self.posterior(model), self.data, count=count, **settings)
        for run in runs:
            _widen(run, factor)
        self._warn_of_negative_r2(runs, settings["steps"])
        return runs

    def _with(self, changes: TrainingOptions, progress: bool | None) -> dict[str, Any]:
        """The settings of a call. However many steps it has, the learning rate has come down to 0 after the last of them."""
        settings: dict[str, Any] = {**self.settings, **changes, "progress": progress}
        return {**settings, "lr_schedule": cosine(settings["steps"])} | changes

    def _chosen(self, settings: dict[str, Any]) -> tuple[MLP, float]:
        """The model under which rows that are held out have the largest log density, and the factor of its noise."""
        training, held_out = _divided(len(self.data), checked_seed(settings["seed"]))
        pairs = [(model, place) for model in self.models for place in range(len(held_out))]
        with collected():  # warnings of trials; the fits on all rows have their own
            fits = fit_replicates(
                [model for model, _ in pairs],
                [self.posterior(model) for model, _ in pairs],
                [self.data.rows(training[place]) for _, place in pairs],
                count=len(pairs),
                **settings,
            )
        judged = [
            self._judged(fits[k * len(held_out) : (k + 1) * len(held_out)], held_out) for k in range(len(self.models))
        ]
        best = max(range(len(judged)), key=lambda k: judged[k][0])
        density, factor, inside = judged[best]
        model = copy.deepcopy(self.models[best])
        rows, learns = sum(map(len, held_out)), _learns_noise(self.model)
        if learns and isinstance(model.likelihood, Gaussian):
            model.likelihood, factor = Gaussian(1 / factor), 1.0
        if inside < _NARROW:
            _log.info(
                "95 %% intervals with a precision that is learned on the training rows hold %.0f %% of %d held-out rows: "
                "the precision of this fit is that of the held-out rows, and should not be learned from so few",
                *(100 * inside, rows),
            )
        _log.info("%s of the models is best, with the log density %.3f on %d held-out rows", best, density, rows)
        by_ridge = _density_of_ridge(self.data, training, held_out) if learns else -math.inf
        if by_ridge > density + _MARGIN:
            say(
                f"ridge regression predicts rows that are left out better than this network: its log density of {rows} of "
                f"them is {by_ridge:.4g} per row, the network's {density:.4g}. Prefer it where rows are few or y is nearly "
                "linear in x; where y has outliers or is a count, give the network the likelihood"
            )
        return model, factor

    def _judged(self, fits: list[Fit], held_out: list[Tensor]) -> tuple[float, float, float]:
        """The mean log density of the rows that each fit was not trained on, the factor of the noise that makes it largest,
        and the share of these rows in 95 % intervals with the learned noise. The factor is of the variance, in a `Gaussian`
        of 1."""
        data = [self.data.rows(rows) for rows in held_out]
        predicted = [run.predict(rows.x, _DRAWS, seed=0) for run, rows in zip(fits, data, strict=True)]
        y = [rows.y for rows in data]
        if _learns_noise(self.model):
            ends = [p.interval(0.95) for p in predicted]
            inside = torch.cat([(low <= rows) & (rows <= high) for (low, high), rows in zip(ends, y, strict=True)])
            constant = isinstance(self.model.likelihood, Gaussian)
            return *_best_noise(predicted, y, constant), float(inside.float().mean())
        density = torch.cat([p.log_density(rows) for p, rows in zip(predicted, y, strict=True)]).mean()
        return float(density), 1.0, 1.0

    def _warn_of_negative_r2(self, run: Fit | Replicates, steps: int) -> None:
        """Warn if R2 of the training rows is below 0: then the mean of y predicts them better than the network."""
        if steps < TRIAL or not self.data.y.is_floating_point():
            return
        rows = torch.linspace(0, len(self.data) - 1, min(len(self.data), _SCORED)).long()
        data = self.data.rows(rows)
        draws = _FEW_DRAWS * (1 if isinstance(run, Fit) else len(run))
        y, mean = data.y.double().cpu(), run.predict(data.x, draws, seed=0).mean.double().cpu()
        off = (y - mean).square()
        r2 = 1 - float(off.sum() / (y - y.mean()).square().sum())
        if not r2 >= 0:
            worst = int(off.nan_to_num(torch.inf).argmax())
            say(
                f"R2 of the training rows is {r2:.3g}: the mean of y predicts them better than this network does. Row "
                f"{int(rows[worst])} has y = {float(y[worst]):.4g} and the mean {float(mean[worst]):.4g}: look for what is "
                "special in its x, or take likelihoods.Gaussian(), whose noise does not depend on x"
            )


def regressor(
    data: Data | Split,
    *,
    posterior: Posterior = dropout,
    hidden: Sequence[int] = (_HIDDEN,),
    likelihood: Likelihood | None = None,
) -> Recipe:
    """A regression of one column of numbers on a table of numbers.

    One hidden layer of 50 ReLU units with dropout of 2 % of them, 2,000 steps or 20 epochs, whichever is more, with
    minibatches of 128 rows, and Gaussian noise of the same precision everywhere. This precision, and whether f has .5 or
    2 times the standard deviation of y under the prior, is chosen on held-out rows (see `Recipe.fit`). Rows are taken to
    be independent: of time series, and of rows in groups, the predictions are too sure. Several hidden layers have at
    least 5,000 steps and 60 epochs, and f has 1 or 9 times the standard deviation of y under the prior, 3 by the first
    and 3 by the last layer.

    Args:
        data: a `Dataset` or a pair (x, y), x ``[N, D]``, y ``[N]`` or ``[N, 1]``, of real or whole numbers, such as
            `Dataset.from_frame` makes; of a `Split` the training part. What is not standardised yet is standardised, as by
            `Dataset.standardized`.
        posterior: makes the guide of a model, such as ``guides.MeanField``; MC dropout by default.
        hidden: numbers of units of the hidden layers.
        likelihood: of y; ``likelihoods.Gaussian()`` by default. Noise that depends on x,
            ``likelihoods.HeteroscedasticGaussian("softplus")``, has its variance multiplied by the factor that is best for
            held-out rows. Any other likelihood has the noise that it learns or that is given.

    Raises:
        TypeError: x is no single table of numbers; an argument is something else.
        ValueError: there are fewer than 10 rows, or several columns of y; no column of x varies; y are class labels, or all
            the same where the precision of Gaussian noise is learned; whole numbers differ by less than float32 rounds them.

    Example:
        >>> import torch, pyrodrop
        >>> x = torch.linspace(-1, 1, 100)[:, None]
        >>> recipe = pyrodrop.recipes.regressor((x, 300 + 50 * x))
        >>> run = recipe.fit(steps=30)
        >>> recipe.model.describe(), run.predict(x, 10).mean.shape
        ('MLP(100 weights at 2 sites, Gaussian(precision=1, learned))', torch.Size([100, 1]))
    """
    data = _table(data)
    if data.columns is not None and data.columns.classes is not None:
        raise ValueError("data must have a y of numbers; got class labels: use recipes.classifier(data)")
    y = _real(data.y[:, None] if data.y.dim() == 1 else data.y)
    if y.dim() != 2 or y.shape[1] != 1:
        raise ValueError(
            f"data must have one column of y, [N] or [N, 1]; got shape {list(y.shape)}: make a recipe for each column"
        )
    likelihood = Gaussian() if likelihood is None else likelihood
    instance(likelihood, Likelihood, "likelihood", "a Likelihood, such as likelihoods.HeteroscedasticGaussian()")
    if isinstance(likelihood, Gaussian) and likelihood.learned and bool((y == y[0]).all()):
        raise ValueError(
            f"data must have a y that varies, of which the noise is learned; got {float(y[0]):g} in all {len(y)} rows"
        )
    return _recipe(_standardised(data, y), likelihood, None, posterior, hidden)


def classifier(data: Data | Split, *, posterior: Posterior = dropout, hidden: Sequence[int] = (_HIDDEN,)) -> Recipe:
    """A classification of the rows of a table of numbers.

    As `regressor`, with class labels; the standard deviation of the logits under the prior is 2, 8 or 32.

    Args:
        data: as for `regressor`, with y ``[N]``, whole numbers from 0; as many classes as the frame has, or as occur.
        posterior, hidden: as for `regressor`.

    Raises:
        TypeError: x is no single table of numbers.
        ValueError: there are fewer than 10 rows, no column of x varies, or y are no class labels.
    """
    data = _table(data)
    if data.columns is not None and data.columns.classes is None:
        raise ValueError(
            f"data must have class labels as y; got the numbers of {data.columns.targets[0]!r}: if they are classes, name "
            f"the column, from_frame(df, {data.columns.targets[0]!r}, categories=[{data.columns.targets[0]!r}])"
        )
    y = Categorical().as_target(data.y)
    classes = int(y.max()) + 1 if data.columns is None or data.columns.classes is None else len(data.columns.classes)
    return _recipe(_standardised(data, y), Categorical(), _OF_LOGITS, posterior, hidden, max(classes, 2))


def _table(data: Data | Split) -> Dataset:
    """The data as a `Dataset` whose x is a table of real numbers."""
    data = Dataset.of(data.train if isinstance(data, Split) else data)
    x, codes = data.x, data.columns is not None and data.columns.encode == "codes"
    if not isinstance(x, Tensor) or x.dim() != 2 or codes:
        kind = "codes of categories" if codes else "" if not isinstance(x, Tensor) else str(x.dtype)
        got = f"{kind} of shape {list(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
        raise TypeError(
            f"data must have a table of real numbers as x, [N, D]; got {got}: recipes have no network for it, but "
            "models.from_module makes a model of any"
        )
    if len(data) < _PARTS:
        raise ValueError(f"data must have at least {_PARTS} rows, of which tenths are held out; got {len(data)}")
    data = data.with_values(x=_real(x))
    if not bool(varies(data.x).any()):
        raise ValueError(
            f"data must have a column of x that varies, or there is nothing to learn from; got {x.shape[1]} constant columns"
        )
    return data


def _real(values: Tensor) -> Tensor:
    """Columns of real numbers; whole numbers and bools as such."""
    return values if values.is_floating_point() else narrowed(values.double())


def _standardised(data: Dataset, y: Tensor) -> Dataset:
    """The data with this y, standardised where they are not: x, and y if they are real numbers."""
    targets = data.targets or (standardisation_of(y) if y.is_floating_point() else None)
    return data.with_values(y=y, inputs=data.inputs or Standardize.of_inputs(data.x), targets=targets)


def _recipe(
    data: Dataset,
    likelihood: Likelihood,
    scales: tuple[tuple[float, float], ...] | None,
    posterior: Posterior,
    hidden: Sequence[int],
    targets: int = 1,
) -> Recipe:
    function(posterior, "posterior", "a function that makes the guide of a model, such as guides.MeanField")
    assert data.inputs is not None
    x = data.inputs(data.x)
    widths = counts(hidden, "hidden", "the numbers of units of the hidden layers")
    if not widths:
        raise ValueError("hidden must have at least one layer; got none")
    first = float(x.square().sum(1).mean().rsqrt())
    between = {f"layers.{n}.*": GaussianPrior(math.sqrt(2 / width)) for n, width in enumerate(widths[:-1], 1)}
    models = tuple(
        MLP(
            [x.shape[1], *widths, likelihood.outputs(targets)],
            prior={
                "layers.0.*": GaussianPrior(r * first), **between, "*": GaussianPrior(s * math.sqrt(2 / widths[-1]))
            },
            likelihood=copy.deepcopy(likelihood),
        )
        for r, s in scales or (_OF_Y if len(widths) == 1 else _DEEP)
    )  # fmt: skip
    least, epochs = _LENGTH if len(widths) == 1 else _LENGTH_DEEP
    steps = max(least, epochs * math.ceil(len(data) / _BATCH))
    settings = {
        "steps": steps, "batch_size": min(_BATCH, len(data)), "lr": _LR, "lr_schedule": cosine(steps),
        "estimator": "local", "starts": "new", "seed": 0,
    }  # fmt: skip
    return Recipe(data, models, posterior, settings)


def _divided(size: int, seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """The rows to train on and those that are held out, of every part."""
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    each = size // _PARTS
    count = min(_PARTS, math.ceil(_HELD_OUT / each))
    held_out = [order[k * each : (k + 1) * each] for k in range(count)]
    return [torch.cat([order[: k * each], order[(k + 1) * each :]]) for k in range(count)], held_out


def _best_noise(predicted: list[Prediction], y: list[Tensor], constant: bool) -> tuple[float, float]:
    """The largest mean log density of y, ``[n, 1]`` each, under the mixture of N(f_t, a v_t), and its factor a.

    v_t is the variance of the noise, or 1 if it is constant. By expectation maximisation over the draw t that y is of: a is
    the mean of (y - f_t)^2 / v_t, with weights proportional to the densities. It ends where it changes by less than a
    thousandth.
    """
    pairs = list(zip(predicted, y, strict=True))
    off = torch.cat([(rows - p.f).square()[..., 0] for p, rows in pairs], 1).double()
    v = (
        torch.ones_like(off)
        if constant
        else torch.cat([p.distribution.variance[..., 0] for p in predicted], 1).double()
    )
    factor, before = (off / v).mean(), torch.tensor(math.inf)
    while (factor / before - 1).abs() > 1e-3:
        density = -(off / (factor * v) + (factor * v).log() + math.log(2 * math.pi)) / 2
        before, factor = factor, (density.softmax(0) * off / v).sum(0).mean()
    density = -(off / (factor * v) + (factor * v).log() + math.log(2 * math.pi)) / 2
    return float((density.logsumexp(0) - math.log(len(off))).mean()), float(factor)


def _learns_noise(model: MLP) -> bool:
    """Whether the noise is Gaussian and not given, so that held-out rows choose it."""
    noise = model.likelihood
    return isinstance(noise, HeteroscedasticGaussian) or (isinstance(noise, Gaussian) and noise.learned)


def _density_of_ridge(data: Dataset, training: list[Tensor], held_out: list[Tensor]) -> float:
    """The mean log density of held-out rows under ridge regression with the best of some penalties, and the best noise.

    It is trained on at most `_RIDGE_ROWS` rows, so that large tables cost little time and memory.
    """
    inputs = data.inputs
    assert inputs is not None
    penalties, errors = torch.logspace(-4, 6, 21, dtype=torch.float64), []
    for rows, left in zip(training, held_out, strict=True):
        rows = rows[:_RIDGE_ROWS]
        x, y = inputs(data.x[rows].double()).cpu(), data.y[rows].double().cpu()
        middle, mean = x.mean(0), y.mean(0)
        u, s, v = torch.linalg.svd(x - middle, full_matrices=False)
        weights = v.T @ (s[:, None] / (s[:, None] ** 2 + penalties) * (u.T @ (y - mean)))
        f = mean + (inputs(data.x[left].double()).cpu() - middle) @ weights
        errors.append((data.y[left].cpu() - f).square())
    return float(-(torch.cat(errors).mean(0).min().log() + math.log(2 * math.pi) + 1) / 2)


def _widen(run: Fit, factor: float) -> None:
    """Multiply the variance of noise that depends on x by a factor."""
    likelihood = getattr(run.model, "likelihood", None)
    if isinstance(likelihood, HeteroscedasticGaussian):
        likelihood.factor.mul_(factor)
        if "worth" in run.settings:
            keep_worth(run)
