"""Regression and classification of tables: networks, a posterior and settings that need no tuning.

    f = b + B^T x + s N(x; W)              W_1 ~ N(0, r^2 / mean |x|^2),   W_l ~ N(0, 2 / K),   W_L ~ N(0, 2 t^2 / K)
    y ~ N(f, s^2 a v(x))                   or y ~ Categorical(softmax(N(x; W))); x and, in a regression, y are standardised

B, b is the ridge regression with the smallest error of rows that are left out one at a time, and s is that error. The
network N has K hidden units per layer and the prior standard deviation r t; it learns the residuals of the line.

The rows are divided into parts. For every pair (r, t) and every part, a network is trained without that part. The
prediction mixes all networks, the line alone, for outliers the line with noise as large as y, and, for values that repeat
and for skewed y, the y of known rows near x (`models.Neighbours`, of one column of y or of labels):

    p(y | x) = sum_c w_c mean_k p(y | x; network c without part k)

Beyond the range of the training data the network is constant in x. So is the line if it predicts ln y: otherwise an
erroneous x could lead to an arbitrarily large y.

Weights w and factors of the noise maximise the density of the rows that a network was not trained on, so that the
uncertainty is not learned from rows that the networks have fitted (stacking). That the mean of five networks errs less than
one of them is accounted for, except in a series: `pyrodrop.stacking`.

Rows whose neighbours are similar beyond what x explains, such as those of a time series, are left out in blocks of rows.
This is so if the ranks r, centred, of the residuals of n rows that were left out singly have

    z = sqrt(n) (sum_i r_i r_i+1 / sum_i r_i^2 + 1 / n) > 3.29

which has a probability of 1/2000 in an order without meaning: Wald & Wolfowitz (1943), An Exact Test for Randomness in the
Non-Parametric Case Based on Serial Correlation, https://doi.org/10.1214/aoms/1177731358. If then a column t of x rises or
falls with every row, network k of K stands around the line plus the trend of the residuals e of the last (K + 1 - k) / K of
the rows, which goes on beyond them; the network is constant beyond the rows it was trained on:

    b_k (t - t_N),   b_k = sum_i (t_i - mean t) e_i / sum_i (t_i - mean t)^2

The defaults were chosen on one half of 64 tables and evaluated on the other: docs/measured.md.
"""

from __future__ import annotations

import copy
import functools
import itertools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Unpack

import narwhals.stable.v2 as nw
import numpy as np
import torch
from torch import Tensor, nn

from pyrodrop.arrays import is_frame, labels_of
from pyrodrop.checks import count, counts, flag, instance, one_of, public, shown
from pyrodrop.checks import seed as checked_seed
from pyrodrop.data import Data, Dataset, Split
from pyrodrop.data.columns import read_frame
from pyrodrop.guides import BernoulliDropout, MeanField
from pyrodrop.likelihoods import (
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    HeteroscedasticLogNormal,
    Likelihood,
)
from pyrodrop.likelihoods.classes import number_of_classes
from pyrodrop.lines import LEAST, Line, logistic, ridge
from pyrodrop.models import MLP, Neighbours, WideAndDeep
from pyrodrop.models.neighbours import closeness, index_of
from pyrodrop.parts import Described
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.priors import Gaussian as GaussianPrior
from pyrodrop.scaling import Standardize, narrowed, varies
from pyrodrop.schedules import cosine
from pyrodrop.stacking import PRIOR_ROWS, Component, stacked
from pyrodrop.training.fit import fit, standardised
from pyrodrop.training.reasons import collected, say
from pyrodrop.training.replicates import Replicates, fit_replicates
from pyrodrop.training.result import Fit
from pyrodrop.training.settings import TrainingOptions

__all__ = ["Curve", "Recipe", "classifier", "curve", "regressor"]
public(__name__, __all__)


Posterior = Callable[[WideAndDeep], Callable[..., Any]]
dropout: Posterior = functools.partial(BernoulliDropout, drop_rate=0.01, mask_input=False)

_HIDDEN, _HIDDEN_OF_CLASSES, _BATCH, _LR, _DRAWS = (64, 64), (50,), 128, 1e-2, 10
_STEPS, _MOST_STEPS, _EPOCHS = 1000, 3000, 20  # one more for every row, and as many epochs if these are more
_MOST_ROWS = 5000  # of a line and of each part that is left out
_FEWEST, _PARTS, _MEMBERS = 10, 5, 5
_OF_Y, _OF_LOGITS = ((1.0, 2.0), (3.0, 3.0)), ((1.0, 2.0), (1.0, 8.0), (1.0, 32.0))  # r, t
_MOST_CLASSES = 10  # of whole numbers that `curve` takes for labels
_RELATED = 3.29  # standard deviations of the correlation of neighbouring residuals
_EXPLAINED = 0.03  # smaller residuals, in standard deviations of y, are those of a function without noise
_BLOCKS = 2  # of neighbouring rows, for each part
_KNOWN, _TRIED = 2000, 1000  # most rows whose y are predicted, and of these most rows on which bandwidths are chosen
_OF_INDEX, _OF_X = (0.05, 0.1, 0.2, 0.4, 0.8, math.inf), (0.1, 0.25, 0.5, 1.0, 2.0, math.inf)  # bandwidths b and c
_POWERS, _OF_LOGS, _MOST_COLUMNS = 100, 0.1, 100  # range of a column, and nats per row, at which its logarithm is taken
_PENALTIES = (1000.0, 100.0, 10.0, 1.0, 0.1, 0.01)  # of logistic regression
_SKEWED = 0.25  # nats per row by which a line of ln y predicts better than one of y

_log = logging.getLogger("pyrodrop")


@dataclass(frozen=True, repr=False)
class Recipe(Described):
    """Data, models, posterior and settings, as `regressor` and `classifier` choose them for a data set.

    Attributes:
        data: the data set, with its standardisation.
        models: the candidates: the same network with different pairs (r, t).
        posterior: makes the guide of a model.
        settings: arguments of `pyrodrop.fit`.
        order: places of the rows in time, ``[N]``, if the index of a pandas frame has dates; otherwise None.
    """

    data: Dataset
    models: tuple[WideAndDeep, ...]
    posterior: Posterior
    settings: Mapping[str, Any]
    order: Tensor | None = None

    @property
    def model(self) -> WideAndDeep:
        """The first of the models."""
        return self.models[0]

    @property
    def guide(self) -> Callable[..., Any]:
        """Its posterior, before training."""
        return self.posterior(self.model)

    def describe(self) -> str:
        priors, steps = f"{len(self.models)} priors", f"{self.settings['steps']} steps"
        return f"Recipe({self.model.describe()}, {priors}, {len(self.data)} rows, {steps})"

    def fit(
        self,
        members: int = _MEMBERS,
        *,
        groups: Literal["auto", "blocks"] | Sequence[Any] | np.ndarray[Any, Any] | Tensor | None = "auto",
        neighbours: bool = True,
        progress: bool | None = None,
        **changes: Unpack[TrainingOptions],
    ) -> Replicates:
        """Train each network without one part of the rows, and weight the networks by the rows they were not trained on.

        ``pyrodrop.fit(recipe.model, recipe.guide, recipe.data, **recipe.settings)`` trains one network on all rows. Its
        noise is learned from the rows that it fits, so with few rows it is too small.

        Args:
            members: number of networks of every prior, each without another of max(5, `members`) parts of the rows, at most
                one for each row.
            groups: one label per row, ``[N]``; rows with the same label are in the same part, so that the uncertainty of
                predictions is that for a new group. ``"blocks"`` are ten blocks of neighbouring rows, for series; lines
                then go on beyond the range of the training data, of ln y too, with the trends of the last rows.
                ``"auto"`` takes blocks where the index of a pandas frame has dates; where ln y is modelled and a column of
                x rises or falls with every row; and where residuals of neighbouring rows are related in a regression, for
                which the networks are trained a second time. The log says so. None takes single rows.
            neighbours: whether a regression of one column also predicts y of known rows near x. These functions are steps,
                which have no gradient in x.
            progress: as in `pyrodrop.fit`.
            changes: changes of `settings`. With other `steps`, the learning rate falls to 0 over these. `seed` (0 by
                default) also determines the parts and the initial weights.

        Returns:
            The networks with their weights in the mixture, `Replicates.weights`. In a regression, the line alone is in the
            mixture, too, as networks whose deep part is switched off, with two sizes of noise, and so is the logistic
            regression in a classification; last are those of `models.Neighbours`, if there are at least two members.

        Raises:
            ValueError: `groups` has another length, missing labels, too few groups, or too large a group; as
                `pyrodrop.fit_replicates`.
            TypeError, FloatingPointError: as `pyrodrop.fit_replicates`.
        """
        settings = self._with(changes, progress)
        flag(neighbours, "neighbours", "whether the y of rows near x are predicted")
        members = count(members, "members", "the number of networks of every prior", most=len(self.data))
        series = isinstance(groups, str)
        auto = series and one_of(groups, Literal["auto", "blocks"], "groups") == "auto"
        why = self._why_blocks() if auto else ""
        if auto and not why:
            mixed, relation = self._trained(settings, members, None, neighbours)
            if relation <= _RELATED:
                return mixed
            why = f"Residuals of neighbouring rows are related, by {relation:.1f} standard deviations of unrelated ones"
        if why:
            _log.warning("%s, so blocks of rows are left out; groups=None leaves out single rows.", why)
        groups = self._blocks(members) if series else groups
        return self._trained(settings, members, groups, neighbours, series=series)[0]

    def _why_blocks(self) -> str:
        """Why the order of the rows means something, before anything is trained; empty if it may not."""
        if self.order is not None:
            return "The index has dates"
        growing = isinstance(self.model.likelihood, HeteroscedasticLogNormal) and self._clock() is not None
        return "ln y is modelled, and a column of x rises or falls with every row" if growing else ""

    def _blocks(self, members: int) -> list[int]:
        """The block of neighbouring rows, or dates, of every row."""
        size = len(self.data)
        places = range(size) if self.order is None else self.order.tolist()
        blocks = min(_BLOCKS * max(members, _PARTS), size)
        return [place * blocks // size for place in places]

    def _clock(self) -> int | None:
        """The column of x that rises or falls with every row, such as the time; None if there is none."""
        x = self._x(self.data)
        steps = (x if self.order is None else x[self.order.argsort()]).diff(dim=0)
        columns = ((steps > 0).all(0) | (steps < 0).all(0)).nonzero()
        return int(columns[0]) if len(columns) else None

    def _with_trends(self, lines: list[Line]) -> list[Line]:
        """The lines of the networks of a series, with the trends of its last rows; the last line has that of the fewest."""
        clock, rows = self._clock(), torch.arange(len(self.data)) if self.order is None else self.order.argsort()
        if clock is None:
            return lines
        data = self.data.rows(rows[-_MOST_ROWS:])
        x, y = self._x(data), self._unit(self._observed(data))
        off, trended = y - ridge(x, y).at(x), []
        for k, line in zip(range(len(lines), 0, -1), lines, strict=True):
            last = slice(-max(_FEWEST, len(x) * k // len(lines)), None)
            along = x[last, clock] - x[last, clock].mean()
            trend = along @ off[last] / along.square().sum()
            slopes = line.slopes.index_add(0, torch.tensor([clock]), trend[None])
            trended.append(line._replace(slopes=slopes, intercept=line.intercept - trend * x[-1, clock]))
        return trended

    def _trained(
        self, settings: dict[str, Any], members: int, groups: Any, neighbours: bool, *, series: bool = False
    ) -> tuple[Replicates, float]:
        """The mixture, and by how much residuals of neighbouring rows are related; 0 for class labels."""
        training, left_out = _divided(
            len(self.data), max(members, _PARTS), members, checked_seed(settings["seed"]), groups
        )
        labels = isinstance(self.model.likelihood, Categorical)
        lines = self._lines_of_labels(training, left_out) if labels else [self._line(rows) for rows in training]
        models = [model for model in self.models for _ in training]
        if not labels:
            around = self._with_trends(lines) if series else lines
            models = [_around(copy.deepcopy(model), line) for model in self.models for line in around]
            for model, rows in zip(models, training * len(self.models), strict=True) if series else ():
                x = self.data.inputs(self.data.x[rows])  # type: ignore[misc]
                model.set_range(x.amin(0), x.amax(0))
                model.network.low[1], model.network.high[1] = -torch.inf, torch.inf  # type: ignore[index, operator]
        with collected() as messages:
            runs = fit_replicates(
                models,
                [self.posterior(model) for model in models],
                [self.data.rows(rows) for _ in self.models for rows in training],
                count=len(models),
                starts="new",
                **settings,
            )
        few = settings["steps"] < self.settings["steps"]
        for message in messages:  # not those about the quality of one network, for which the weights account
            if message.startswith("replicate") or (message.startswith("training") and (few or "diverged" in message)):
                say(message)
        return self._mixed(runs, left_out, lines, neighbours, series)

    def _with(self, changes: TrainingOptions, progress: bool | None) -> dict[str, Any]:
        """The settings of a call. The learning rate falls to 0 over its number of steps, unless `changes` has a schedule."""
        settings: dict[str, Any] = {**self.settings, **changes, "progress": progress}
        return {**settings, "lr_schedule": cosine(settings["steps"])} | changes

    def _line(self, rows: Tensor) -> Line:
        """The line through some of the rows, in standardised units."""
        data = self.data.rows(rows[:_MOST_ROWS])
        return ridge(self._x(data), self._unit(self._observed(data)))

    def _lines_of_labels(self, training: list[Tensor], left_out: list[Tensor]) -> list[Line]:
        """Logistic regressions, with the penalty under which labels of the rows that are left out are most probable."""
        network: Any = self.model.network
        parts, held_out = ([self.data.rows(rows[:_MOST_ROWS]) for rows in each] for each in (training, left_out))
        of_parts = [(self._x(data), data.y.cpu(), len(network.intercept)) for data in parts]
        lines = [[logistic(*part, penalty) for part in of_parts] for penalty in _PENALTIES]
        return max(lines, key=lambda each: float(torch.cat(self._of_labels(each, held_out)).sum()))

    def _of_labels(self, lines: list[Line], held_out: list[Dataset]) -> list[Tensor]:
        """The log probabilities of labels under the lines."""
        of_lines = [(line.at(self._x(data)), data.y.cpu()) for line, data in zip(lines, held_out, strict=True)]
        return [-nn.functional.cross_entropy(logits, y, reduction="none") for logits, y in of_lines]

    def _x(self, data: Dataset) -> Tensor:
        assert data.inputs is not None
        network: Any = self.model.network
        return network.seen(data.inputs(data.x.double()).cpu(), 1)  # type: ignore[no-any-return]

    def _observed(self, data: Dataset) -> Tensor:
        """The values with Gaussian noise, ``[n, T]``: y, or its logarithm; float64."""
        y = data.y.double().cpu()
        return y.log() if isinstance(self.model.likelihood, HeteroscedasticLogNormal) else y

    @property
    def _unit(self) -> Standardize:
        """The standardisation of the values with Gaussian noise."""
        if isinstance(self.model.likelihood, HeteroscedasticLogNormal):
            return copy.deepcopy(self.model.likelihood.of_log).double().cpu()
        assert self.data.targets is not None
        return copy.deepcopy(self.data.targets).double().cpu()

    def _mixed(
        self, runs: Replicates, left_out: list[Tensor], lines: list[Line], neighbours: bool, series: bool
    ) -> tuple[Replicates, float]:
        """The networks, the line, in a regression with two sizes of noise, and the neighbours, which do not forecast, with
        their weights in the mixture. And the relation of neighbouring residuals."""
        members = len(left_out)
        groups = [list(runs[c * members : (c + 1) * members]) for c in range(len(self.models))]
        left_out = [rows[: _MOST_ROWS // members] for rows in left_out]
        rows, part = torch.cat(left_out), torch.arange(members).repeat_interleave(torch.tensor([*map(len, left_out)]))
        every, held_out = self.data.rows(rows), [self.data.rows(each) for each in left_out]
        labels, predicted = isinstance(self.model.likelihood, Categorical), []
        of_lines = [lines] if labels else [lines, [line._replace(error=torch.ones_like(line.error)) for line in lines]]
        if labels:
            networks = [
                [fit.predict(d.x, _DRAWS, seed=0).log_density(d.y) for fit, d in zip(group, held_out, strict=True)]
                for group in groups
            ]
            components = [Component.of_density(each) for each in (*networks, self._of_labels(lines, held_out))]
        else:
            predicted = [[fit.predict(every.x, _DRAWS, seed=0) for fit in group] for group in groups]
            components = self._of_members(predicted, of_lines, every, part, series)
        weights, factors = stacked(components)
        relation = self._relation(predicted, rows, part)
        near: list[Fit] = []
        if neighbours and not series and members > 1 and self.data.y[0].numel() == 1:
            near, density = self._near(groups, held_out, part, components, weights, factors)
            components.append(Component.of_density([density], factors.shape[1]))
            weights, factors = stacked(components)
        for group, factor in zip(groups, [] if labels else factors, strict=False):
            for likelihood in (member.model.likelihood for member in group):  # type: ignore[attr-defined]
                likelihood.factor = (likelihood.factor.double().cpu() * factor).to(likelihood.factor)
        groups += [
            [_alone(fit, line, factor) for fit, line in zip(groups[0], each, strict=True)]
            for each, factor in zip(of_lines, factors[len(groups) :], strict=False)
        ]
        groups += [near] if near else []
        logs = [c.density(a) + w.log() for c, a, w in zip(components, factors, weights, strict=True)]
        density = torch.full((len(self.data),), torch.nan).index_copy(0, rows, torch.cat(logs).logsumexp(0).float())
        return replace(_joined(groups, weights, runs.failed), data=self.data, left_out=density), relation

    def _of_members(
        self, predicted: list[list[Prediction]], lines: list[list[Line]], every: Dataset, part: Tensor, alone: bool
    ) -> list[Component]:
        """The networks and lines at the rows that were left out of one of them each, the member `part`, ``[n]``. In a series
        they err `alone`: beyond the last row, errors of their mixture are not smaller as those between rows are."""
        unit, x, y, components = self._unit, self._x(every), self._observed(every), []
        for each in predicted:
            of_y: list[Any] = [p.distribution.base_dist for p in each]  # type: ignore[attr-defined]
            loc, scale = (torch.stack([getattr(d, name) for d in of_y]).double().cpu() for name in ("loc", "scale"))
            components.append(Component.of(loc, scale.square(), y, part, alone=alone))
        for of_lines in lines:
            at = torch.stack([unit.inverse(line.at(x))[None] for line in of_lines])
            scale = torch.stack([line.error * unit.scale for line in of_lines])[:, None, None]
            components.append(Component.of(at, scale.square().expand(at.shape), y, part, alone=alone))
        return components

    def _near(
        self, groups: list[list[Fit]], held_out: list[Dataset], part: Tensor, components: list[Component],
        weights: Tensor, factors: Tensor,
    ) -> tuple[list[Fit], Tensor]:  # fmt: skip
        """For every part, neighbours among the rows that were left out, whose index is the network with the largest weight;
        and the log density of these rows, of which the neighbours are those in other parts.

        Bandwidths b and c and the noise h maximise the density of the mixture in equal shares with the other components;
        their prior is proportional to (b c h)^2 up to 1, 2 and 1 standard deviations. h is at least the standard deviation
        of a uniform distribution as wide as the median distance of neighbouring different y. Of labels, h is the
        probability of a label at random.
        """
        labels, index = isinstance(self.model.likelihood, Categorical), groups[int(weights[: len(groups)].argmax())]
        each: list[Any] = [(member.model, member.guide.mean(), member.device) for member in index]  # type: ignore[attr-defined]
        ms = [of.outputs(mean, d.x.to(device)) for (of, mean, device), d in zip(each, held_out, strict=True)]
        m, x = index_of(torch.cat(ms).detach().double().cpu(), labels), torch.cat([self._x(d) for d in held_out])
        classes = len(each[0][0].network.intercept)
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        known, tried, scale = order[:_KNOWN], order[:_TRIED], 1.0
        if labels:
            y, least = torch.cat([data.y for data in held_out]).cpu(), 1e-3
        else:
            y, scale = self._unit(torch.cat([self._observed(data) for data in held_out]))[:, 0], float(self._unit.scale)
            known, gaps = known[y[known].argsort()], y.unique().diff()
            least = max(LEAST, float(gaps.median()) / math.sqrt(12)) if len(gaps) else 1.0
        widths = torch.logspace(math.log10(least), max(0.0, math.log10(least)), 16).double()

        def peaks(rows: Tensor, h: Tensor) -> Tensor:
            if labels:
                return h / classes + (1 - h) * (y[rows, None] == y[known])[..., None]
            z = (y[rows, None] - y[known])[..., None] / h
            return (z.square() / -2).exp() / (h * math.sqrt(2 * math.pi))

        def density(rows: Tensor, b: float, c: float, at: Tensor) -> Tensor:
            logs = closeness(m[rows], x[rows], m[known], x[known], b, c)
            shares = logs.masked_fill(part[rows, None] == part[known], -torch.inf).softmax(-1)
            return torch.einsum("nj,njh->nh", shares.to(at), at)

        of_others = [c.density(a) + w.log() for c, a, w in zip(components, factors, weights, strict=True)]
        others = (torch.cat(of_others).logsumexp(0)[tried, None].exp() * scale).clamp(min=1e-300)
        at, found = peaks(tried, widths).float(), []
        for b, c in itertools.product(_OF_INDEX, _OF_X):
            gained = (others + density(tried, b, c, at)).log().sum(0)
            gained += PRIOR_ROWS * (widths * min(b, 1.0) * min(c / 2, 1.0)).log()
            found.append((float(gained.max()), b, c, widths[gained.argmax()]))
        _, b, c, h = max(found, key=lambda each: each[0])
        blocks = torch.arange(len(x)).split(_TRIED)
        densities = torch.cat([density(rows, b, c, peaks(rows, h[None]))[:, 0] for rows in blocks])

        f = torch.stack([y[known], torch.zeros(len(known))], 1)
        if labels:
            f = (h / classes + (1 - h) * nn.functional.one_hot(y[known], classes)).log()
        near = []
        for member, (of, mean, device) in zip(index, each, strict=True):
            likelihood: Any = copy.deepcopy(of.likelihood)
            if not labels:
                likelihood.factor = (h.square() / likelihood.variance_at_zero).to(likelihood.factor)
            widths_of = [x.shape[1], *(layer.out_features for layer in of.network.deep.layers)]
            model = Neighbours(widths_of, len(known), likelihood=likelihood, logs=of.network.logs)
            model.standardize(self.data)
            state = of.network.state_dict() | {name: of.free[name] for name in of.free} | mean
            model.set_rows(state, x=x[known], m=m[known], f=f, near=torch.tensor([b, c]))
            guide = MeanField(model, 1.0).to(device).eval()
            near.append(replace(member, model=model.to(device).eval(), guide=guide))
        return near, densities.clamp(min=1e-300).log() - math.log(scale)

    def _relation(self, predicted: list[list[Prediction]], rows: Tensor, part: Tensor) -> float:
        """The relation of the residuals of networks, at neighbouring rows that were left out; 0 of labels. The mean of y is
        that of all priors in equal shares: the prior with the largest weight may follow neighbouring rows too closely."""
        if len(self.data) < 3 * _FEWEST or not predicted:
            return 0.0
        means = torch.stack([torch.stack([p.mean.double().cpu() for p in each]) for each in predicted]).mean(0)
        y = self.data.y.double().cpu()
        off = y[rows] - means[part, torch.arange(len(rows))]
        large = off.square().mean(0).sqrt() > _EXPLAINED * y.std(0, correction=0)
        return max((related(column, rows) for column, some in zip(off.T, large, strict=True) if some), default=0.0)


def regressor(
    data: Any,
    *,
    target: Any = None,
    categories: Sequence[Any] = (),
    posterior: Posterior = dropout,
    hidden: Sequence[int] = _HIDDEN,
) -> Recipe:
    """A regression of one or several columns of numbers on a table of numbers.

    The model is a line plus a network with two hidden layers of 64 ReLU units and 1 % dropout. The noise is Gaussian with a
    variance that depends on x. It is noise of ln y if all y are positive and a line for ln y predicts better by a quarter of
    a nat per row. Training takes 1,000 steps plus one per row, at most 3,000, or 20 epochs if these are more, with
    minibatches of at most 128 rows. `Recipe.fit` trains ten networks, each without a fifth of the rows, and chooses their
    mixture on the rows left out. If rows are not independent (several rows per person), pass it `groups`. Blocks of rows are
    left out by themselves where the order of the rows means something, as in a series.

    Args:
        data: a data frame of pandas, polars or pyarrow; a `Dataset`; or a pair (x, y) of numbers, x ``[N, D]``, y ``[N]`` or
            ``[N, T]``; of a `Split`, the training data are used. Data that are not standardised yet are standardised.
        target, categories: of a frame, the name of the column of y or a list of names, and names of columns of numbers that
            are categories. All other columns are inputs. Text is a category, sparse columns become dense. Missing numbers
            are replaced by the median of their column, and x also has a column that is 1 where they are missing; missing
            categories are a category of their own. In rows to predict, gaps in a column that had none are replaced by its
            median or its most frequent category. ``recipe.data.columns`` describes this, and predictions take frames.
        posterior: makes the guide of a model, such as ``guides.MeanField``; MC dropout by default.
        hidden: numbers of units of the hidden layers.

    Raises:
        TypeError: x is no single table of numbers; an argument is of another type; a column of a frame has dates, or values
            of several types.
        ValueError: there are fewer than 10 rows; no column of x varies; y are class labels; a column of y is constant and
            its noise is learned; `hidden` is empty; text has too many values for categories.

    Example:
        >>> import torch, pyrodrop
        >>> x = torch.linspace(-1, 1, 100)[:, None]
        >>> recipe = pyrodrop.recipes.regressor((x, 300 + 50 * x))
        >>> runs = recipe.fit(steps=30)
        >>> recipe.model.describe(), len(runs), runs.predict(x, 50).mean.shape
        ('WideAndDeep(4288 weights at 3 sites, HeteroscedasticGaussian(link=softplus))', 25, torch.Size([100, 1]))
    """
    instance(categories, list | tuple, "categories", "a list of names of columns")
    order, data = order_of(data), _table(data, target, categories)
    if _classes(data):
        raise ValueError("data must have a y of numbers; got class labels: use recipes.classifier(data)")
    y = _real(data.y[:, None] if data.y.dim() == 1 else data.y)
    if y.dim() != 2:
        raise ValueError(f"data must have columns of y, [N] or [N, T]; got shape {list(y.shape)}")
    data = standardised(data.with_values(y=y))
    same = (y == y[0]).all(0)
    if bool(same.any()):
        raise ValueError(
            f"data must have a y that varies, of which the noise is learned; got {float(y[0][same][0]):g} in all {len(y)} "
            "rows"
        )
    return _recipe(data, _noise(data), _OF_Y, posterior, hidden, y.shape[1], order)


def classifier(
    data: Any,
    *,
    target: Any = None,
    categories: Sequence[Any] = (),
    posterior: Posterior = dropout,
    hidden: Sequence[int] = _HIDDEN_OF_CLASSES,
) -> Recipe:
    """A classification of the rows of a table of numbers.

    The network has one hidden layer of 50 ReLU units and no line; the prior standard deviation of its logits is 2, 8 or 32
    (15 networks). Logistic regressions are in the mixture by themselves. Everything else is as for `regressor`.

    Args:
        data: as for `regressor`, with y ``[N]``, labels. The classes are those of the frame, or 0 to max(y), of which 0 and
            at least one other label must occur.
        target, categories: as for `regressor`; all values of the target are classes.
        posterior, hidden: as for `regressor`.

    Raises:
        TypeError: x is no single table of numbers.
        ValueError: there are fewer than 10 rows, no column of x varies, or y are no class labels from 0.
    """
    instance(categories, list | tuple, "categories", "a list of names of columns")
    order, data = order_of(data), _table(data, target, [*categories, *([] if target is None else [target])])
    if data.columns is not None and data.columns.classes is None:
        raise ValueError(
            f"data must have class labels as y; got the numbers of {data.columns.targets[0]!r}: if they are classes, name "
            f"the column, from_frame(df, {data.columns.targets[0]!r}, categories=[{data.columns.targets[0]!r}])"
        )
    y = Categorical().as_target(data.y)
    if y.dim() != 1:
        raise ValueError(f"data must have one label per row as y, [N]; got shape {list(y.shape)}")
    classes = len(_classes(data)) or number_of_classes(y)
    data, targets = standardised(data.with_values(y=y)), max(classes, 2)
    return _recipe(data, Categorical(), _OF_LOGITS, posterior, hidden, targets, order)


@dataclass(frozen=True, repr=False)
class Curve(Described):
    """What `curve` chooses for a data set.

    Attributes:
        data: the data set.
        model: the network, whose priors and noise are chosen by `fit`.
    """

    data: Dataset
    model: MLP

    def fit(self, steps: int | None = None, *, progress: bool | None = None, **options: Unpack[TrainingOptions]) -> Fit:
        """Train it, by 3,000 steps (200 of class labels) with lr 0.01 unless others are given; see `pyrodrop.fit`."""
        return fit(self.model, self.data, steps=steps, progress=progress, **options)

    def describe(self) -> str:
        return f"Curve({self.model.describe()}, {len(self.data)} rows)"


def curve(
    data: Data | Split,
    *,
    hidden: Sequence[int] = (100,),
    activation: str | Callable[[Tensor], Tensor] = "tanh",
    seed: int = 0,
) -> Curve:
    """A curve, a surface or a small table: a network whose uncertainty is nearly that of the exact posterior.

    The priors and the noise are those of `priors.from_gp`. The last layer has its exact posterior given the layers below,
    of class labels Laplace's approximation of it: `guides.ExactLastLayer`. Noise is as large at all x: for another, for many
    columns or classes and for more rows take `regressor` or `classifier`.

    Args:
        data: as for `regressor`, with at most 10,000 rows; y are real numbers, or labels, whole numbers from 0 to at most 9
            or the classes of a data frame.
        hidden: numbers of units of the hidden layers.
        activation: of the hidden units, as of `models.MLP`.
        seed: of the initial weights.

    Raises:
        TypeError, ValueError: as `regressor`; `Curve.fit`: as `priors.from_gp`, or there are more than 10,000 rows.

    Example:
        >>> import torch, pyrodrop
        >>> x = torch.linspace(-1, 1, 40)[:, None]
        >>> run = pyrodrop.recipes.curve((x, torch.sin(4 * x))).fit(steps=100)
        >>> run.guide.describe(), run.predict(x, 50).mean.shape
        ('ExactLastLayer(MeanField)', torch.Size([40, 1]))
    """
    data = _table(data)
    real = not _classes(data) and data.y.is_floating_point()
    y = data.y if real else Categorical().as_target(data.y)
    outputs = y[0].numel() if real else max(2, len(_classes(data)) or number_of_classes(y))
    if not real and not _classes(data) and outputs > _MOST_CLASSES:
        raise ValueError(
            f"y must be real numbers, or labels of at most {_MOST_CLASSES} classes; got whole numbers up to {outputs - 1}: "
            "pass y.float() if they are numbers, or declare the classes, Dataset.from_frame(df, target, categories=[target])"
        )
    widths = [data.x.shape[1], *counts(hidden, "hidden", "the numbers of units of the hidden layers"), outputs]
    noise: Likelihood = Gaussian() if real else Categorical()
    model = MLP(widths, activation, prior=GaussianPrior(), likelihood=noise, seed=seed)
    return Curve(data.with_values(y=y), model)


def _classes(data: Dataset) -> tuple[Any, ...]:
    """The classes of y that a frame declares."""
    return () if data.columns is None else data.columns.classes or ()


def _table(data: Any, target: Any = None, categories: Sequence[Any] = ()) -> Dataset:
    """The data as a `Dataset` whose x is a table of real numbers. A frame's gaps are filled, and its text is categories."""
    if is_frame(data):
        if target is None:
            raise TypeError("target must name the column of y of a data frame; got None")
        data = Dataset._of_frame(data, *read_frame(data, target, categories))
    elif target is not None:
        raise TypeError(f"target names a column of a data frame; got {shown(target)} for {shown(data)}")
    data = Dataset.of(data.train if isinstance(data, Split) else data)
    x = data.x
    if not isinstance(x, Tensor) or x.dim() != 2:
        got = f"{x.dtype} of shape {list(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
        raise TypeError(
            f"data must have a table of real numbers as x, [N, D]; got {got}: recipes have no network for it, but "
            "models.from_module makes a model of any"
        )
    if len(data) < _FEWEST:
        raise ValueError(f"data must have at least {_FEWEST} rows, parts of which are left out; got {len(data)}")
    data = data.with_values(x=_real(x))
    if not bool(varies(data.x).any()):
        raise ValueError(
            f"data must have a column of x that varies, or there is nothing to learn from; got {x.shape[1]} constant columns"
        )
    return data


def _real(values: Tensor) -> Tensor:
    """Columns of real numbers; whole numbers and bools are converted."""
    return values if values.is_floating_point() else narrowed(values.double())


def _noise(data: Dataset) -> Likelihood:
    """Noise of y, or of ln y if a line predicts ln y better, by its error in rows left out one at a time."""
    rows = data.rows(slice(0, _MOST_ROWS))
    assert data.inputs is not None
    x, y = data.inputs(rows.x.double()).cpu(), rows.y.double().cpu()
    if bool((data.y > 0).all()):
        gain = (ridge(x, y).error / ridge(x, y.log()).error).log() - y.log().mean(0)
        if float(gain.mean()) > _SKEWED:
            return HeteroscedasticLogNormal("softplus")
    return HeteroscedasticGaussian("softplus")


def _logs(x: Tensor, zeros: Tensor, y: Tensor) -> dict[int, float]:
    """Columns of which a logarithm explains y better, and what is subtracted of each before the logarithm is taken.

    A column is tried if its values are not negative and the positive ones range over two powers of ten. Its logarithm is
    taken if ridge regression on all columns, or on these and the square and the cube of this one, predicts rows that are
    left out one at a time better by a tenth of a nat. With zeros, the smallest positive value is added before.

    Args:
        x: ``[N, D]``, standardised; zeros: where 0 is in these units, ``[D]``.
        y: ``[N, T]``.
    """

    def error(x: Tensor, column: int) -> float:
        powers = torch.stack([x[:, column] ** power for power in (2, 3)], 1)
        wider = torch.cat([x, Standardize.of(powers)(powers)], 1)
        return min(float(ridge(each, y[:_TRIED]).error.log().mean()) for each in (x, wider))

    found = {}
    for column in range(x.shape[1] if x.shape[1] <= _MOST_COLUMNS else 0):
        values = x[:, column] - zeros[column]
        least = values[values > 0].min() if bool((values > 0).any()) else torch.inf
        if bool(values.min() < 0) or len(values.unique()) <= _FEWEST or bool(values.max() < _POWERS * least):
            continue
        added = max(LEAST, float(least) if bool((values == 0).any()) else 0.0)
        logs = (values + added).log()[:_TRIED, None]
        changed = x[:_TRIED].clone()
        changed[:, column : column + 1] = Standardize.of(logs)(logs)
        if error(x[:_TRIED], column) - error(changed, column) > _OF_LOGS:
            found[column] = float(zeros[column]) - added
    return found


def _recipe(
    data: Dataset,
    likelihood: Likelihood,
    scales: tuple[tuple[float, float], ...],
    posterior: Posterior,
    hidden: Sequence[int],
    targets: int,
    order: Tensor | None,
) -> Recipe:
    instance(posterior, Callable, "posterior", "a function that makes the guide of a model, such as guides.MeanField")
    assert data.inputs is not None
    x = data.inputs(data.x)
    widths = counts(hidden, "hidden", "the numbers of units of the hidden layers")
    if not widths:
        raise ValueError("hidden must have at least one layer; got none")
    y: Tensor = nn.functional.one_hot(data.y, targets) if isinstance(likelihood, Categorical) else data.y
    y = y.log() if isinstance(likelihood, HeteroscedasticLogNormal) else y
    wide = data.inputs(data.x.double()).cpu()
    logs = _logs(wide, data.inputs(torch.zeros_like(data.x[:1]).double())[0].cpu(), y.double().cpu())
    columns, zeros = list(logs), torch.tensor([*logs.values()]).double()
    of_logs = (wide[:, columns] - zeros).log()
    loc = of_logs.mean(0)
    spread = (of_logs - loc).square().mean(0).sqrt()
    wide[:, columns] = (of_logs - loc) / spread
    first = float(wide.square().sum(1).mean().rsqrt())
    between = {f"deep.layers.{n}.*": GaussianPrior(math.sqrt(2 / width)) for n, width in enumerate(widths[:-1], 1)}
    models = tuple(
        WideAndDeep(
            [x.shape[1], *widths, likelihood.outputs(targets)],
            prior={
                "deep.layers.0.*": GaussianPrior(r * first), **between, "*": GaussianPrior(t * math.sqrt(2 / widths[-1]))
            },
            likelihood=copy.deepcopy(likelihood),
            logs=columns,
        )
        for r, t in scales
    )  # fmt: skip
    for model in models:
        bounded = isinstance(likelihood, HeteroscedasticLogNormal | Categorical)
        model.likelihood.start(data.y)  # of all rows, not of the parts
        model.set_range(
            x.amin(0), x.amax(0), of_line=bounded, of_logs=torch.stack([zeros, loc, spread]) if columns else None
        )
    steps = max(min(_STEPS + len(data), _MOST_STEPS), _EPOCHS * math.ceil(len(data) / _BATCH))
    settings = {
        "steps": steps, "batch_size": _even(len(data) - len(data) // _PARTS), "lr": _LR, "lr_schedule": cosine(steps),
        "estimator": "local", "seed": 0, "engine": "traced" if steps <= _MOST_STEPS else "auto",
    }  # fmt: skip
    return Recipe(data, models, posterior, settings, order)


def _even(rows: int) -> int:
    """The size of minibatches of nearly equal size, as many as there are minibatches of `_BATCH` rows."""
    return math.ceil(rows / math.ceil(rows / _BATCH))


def _divided(size: int, parts: int, members: int, seed: int, groups: Any = None) -> tuple[list[Tensor], list[Tensor]]:
    """The rows to train on, equally many, and those that are left out, of every member."""
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    part = torch.arange(size) // (size // parts) if groups is None else _parts_of_groups(groups, size, parts)[order]
    fewest = min(int((part != k).sum()) for k in range(members))
    if fewest < size / 2:
        raise ValueError(
            f"groups must leave half of the {size} rows to every network; got a group that leaves {fewest}"
        )
    return [order[part != k][:fewest] for k in range(members)], [order[part == k] for k in range(members)]


def _parts_of_groups(groups: Any, size: int, parts: int) -> Tensor:
    """The part of every row, ``[N]``: a group is in one. Groups are dealt, the largest first, each to the smallest part."""
    places: dict[Any, int] = {}  # labels of several types have no order
    group = np.array([places.setdefault(label, len(places)) for label in labels_of(groups, size, "groups")])
    rows = np.bincount(group)
    if len(rows) < parts:
        raise ValueError(f"groups must have at least {parts} values, one for each part of the rows; got {len(rows)}")
    sizes, chosen = np.zeros(parts, int), np.empty(len(rows), int)
    for each in np.argsort(-rows, kind="stable"):
        chosen[each] = sizes.argmin()
        sizes[chosen[each]] += rows[each]
    return torch.from_numpy(chosen[group])


def related(residuals: Tensor, rows: Tensor) -> float:
    """The serial correlation of the ranks of residuals ``[n]`` of rows with these numbers, in its standard deviations."""
    rows, order = rows[residuals.isfinite()].sort()
    _, place, ties = np.unique(residuals[residuals.isfinite()][order], return_inverse=True, return_counts=True)
    ranks = torch.from_numpy((ties.cumsum() - (ties - 1) / 2)[place])  # the mean rank of equal ones
    ranks = (ranks - ranks.mean()) / ranks.std(correction=0)
    products = (ranks[:-1] * ranks[1:])[rows.diff() == 1]
    return float((products.mean() + 1 / len(ranks)) * math.sqrt(len(products))) if len(products) else 0.0


def order_of(frame: Any) -> Tensor | None:
    """The places of the rows of a pandas frame in time, ``[N]``, if its index has dates; otherwise None."""
    pandas = nw.dependencies.get_pandas()
    index = frame.index if nw.dependencies.is_pandas_dataframe(frame) else None
    if index is None or not isinstance(index, pandas.DatetimeIndex | pandas.PeriodIndex):
        return None
    return torch.from_numpy(np.argsort(np.argsort(index, kind="stable")))


def _joined(groups: Sequence[Sequence[Fit]], weights: Tensor, failed: dict[int, int]) -> Replicates:
    """The fits of all groups, each with its part of the weight of the group."""
    fits = [fit for group in groups for fit in group]
    each = [float(w) / len(group) for w, group in zip(weights, groups, strict=True) for _ in group]
    return Replicates(fits, failed, each)


def _around(model: Any, line: Line, factor: Tensor | float = 1.0, *, alone: bool = False) -> WideAndDeep:
    """The model, changed in place, around a line, or as the line alone. In a regression the variance of the noise at outputs
    of 0 starts at that of the line, or stays there without the network, times the factor."""
    assert isinstance(model, WideAndDeep)
    model.set_line(line.slopes, line.intercept, line.error, alone=alone)
    likelihood: Any = model.likelihood
    if not isinstance(likelihood, Categorical):
        variance = line.error.square() * factor / (likelihood.variance_at_zero if alone else 1.0)
        likelihood.factor = variance.to(likelihood.factor)
    return model


def _alone(fit: Fit, line: Line, factor: Tensor) -> Fit:
    """A fit of the line, without its network."""
    model, guide = copy.deepcopy((fit.model, fit.guide))
    return replace(fit, model=_around(model, line, factor, alone=True), guide=guide)
