"""The report that `pyrodrop.Fit.report` returns: scores of a fit beside those of simple predictors, and advice.

    constant        mean and variance of y, or the frequencies of the classes
    ridge           for real y: ridge regression of standardised columns, by the smallest leave-one-out error
    random forest   scikit-learn's, if installed; for real y with the variance of its out-of-bag errors as noise
    GP              a Gaussian process with a squared-exponential kernel and one length scale per column, for one column of y

They are fitted to at most 2,000 training rows (GP: 500). Unless x is a table of real numbers, only the constant is shown.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from pyro.distributions import Normal
from torch import Tensor

from pyrodrop import metrics
from pyrodrop.analysis.comparison.khat import LIMIT
from pyrodrop.analysis.comparison.loo import loo
from pyrodrop.analysis.gp import GaussianProcess, GaussianProcessClassifier
from pyrodrop.arrays import is_frame
from pyrodrop.changes import evaluating
from pyrodrop.checks import Inputs, mapped
from pyrodrop.data import Dataset, Split
from pyrodrop.guides import ExactLastLayer
from pyrodrop.guides.ensemble import Ensemble
from pyrodrop.guides.guide import Guide
from pyrodrop.likelihoods import Categorical, Gaussian, HeteroscedasticGaussian, StudentT, per_row
from pyrodrop.lines import ridge
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.reading.read import Reading
from pyrodrop.scaling import Standardize
from pyrodrop.threads import exclusive
from pyrodrop.training.reasons import reason
from pyrodrop.training.replicates import Replicates
from pyrodrop.training.result import Fit, rows_of

_MOST, _GP_ROWS, _DRAWS, _KHAT_DRAWS, _KHAT_ROWS = 2000, 500, 300, 200, 10_000
_FEWEST = 10  # rows to learn from and to be judged on
_BETTER, _LITTLE = (
    0.1,
    0.01,
)  # nats per row by which another predictor, or evaluation mode, must be better to be advised
_REAL, _CLASSES = ("log_density", "rmse", "coverage_95"), ("log_density", "accuracy", "ece")
_LEVELS = (0.85, 0.99)  # of the share of rows in 95 % intervals


@dataclass(frozen=True, repr=False)
class Report:
    """A fit compared with simple predictors; printed, a page in Markdown.

    Attributes:
        scores: of every predictor by name, on the same rows: ``log_density`` in nats per row, and ``rmse`` and
            ``coverage_95``, or ``accuracy`` and ``ece``.
        facts: other findings, such as rates and Pareto k-hat, by name.
        advice: what to try next, the most important first, with a page of the documentation.
    """

    scores: Mapping[str, Mapping[str, float]]
    facts: Mapping[str, str]
    advice: tuple[str, ...]

    def __str__(self) -> str:
        columns = list(next(iter(self.scores.values())))
        rows = [["", *(column.replace("_", " ") for column in columns)], ["---"] * (len(columns) + 1)]
        rows += [[name, *(f"{row[column]:.3g}" for column in columns)] for name, row in self.scores.items()]
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        facts = "\n".join(f"- {name}: {fact}" for name, fact in self.facts.items())
        tries = "\n".join(f"{number}. {each}" for number, each in enumerate(self.advice, 1)) or "Nothing looks wrong."
        return f"# Report of a fit\n\n{table}\n\n{facts}\n\n## What to try\n\n{tries}\n"

    __repr__ = _repr_markdown_ = __str__


@exclusive()
def report(fit: Fit | Replicates, held_out: Any, seed: int) -> Report:
    """The report that `Fit.report` returns; its docstring describes the arguments."""
    train = fit.data if isinstance(fit, Replicates) else rows_of(fit, "report")
    if isinstance(fit, Reading) and isinstance(held_out, Split):
        train = held_out.train
    if train is None and (not isinstance(fit, Reading) or held_out is None):
        raise ValueError(
            "report needs the training data, which a loaded fit, or one that read them, does not have, nor have replicates "
            "without a recipe; a reading takes rows, report((x, y))"
        )
    learn: Dataset | None = train
    if held_out is None and train is not None:
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
        learn, judge = train.rows(order[len(train) // 5 :]), train.rows(order[: len(train) // 5])
    elif train is not None and is_frame(held_out):
        judge = train.like(held_out)
    else:
        judge = Dataset.of(held_out.test if isinstance(held_out, Split) else held_out)
    likelihood = getattr(fit.fits[0].model if isinstance(fit, Replicates) else fit.model, "likelihood", None)
    labels = isinstance(likelihood, Categorical) and judge.y.dim() == 1
    if not labels and not isinstance(likelihood, Gaussian | HeteroscedasticGaussian | StudentT):
        name = "no likelihood" if likelihood is None else likelihood.describe()
        raise TypeError(
            f"report needs real y with Gaussian or Student's t noise, or one class label per row; got {name}"
        )
    sizes = [len(rows) for rows in (learn, judge) if rows is not None]
    if min(sizes) < _FEWEST:
        got = " and ".join(map(str, sizes))
        raise ValueError(f"report needs at least {_FEWEST} rows to learn from and as many to be judged on; got {got}")
    of = _of_labels if labels else _of_numbers
    predicted = fit.predict(judge.x, _DRAWS, seed=seed)
    scores, facts, advice = {"the fit": of(predicted, judge.y)}, {"rows": f"{len(judge)} held out"}, list[str]()
    if isinstance(fit, Reading):
        without = _without_masks(fit, judge.x)
        scores["in evaluation mode"] = of(without, judge.y)
        advice += _of_masks(predicted.log_density(judge.y) - without.log_density(judge.y))
    if learn is not None:
        learn = learn.rows(torch.linspace(0, len(learn) - 1, min(len(learn), _MOST)).long())
        scores |= {name: of(each, judge.y) for name, each in _beside(learn, judge, labels, seed)}
        facts["rows"] += f", {len(learn)} of the training data for the others"
    if held_out is None:
        facts["rows"] = f"{len(judge)} that the fit has seen and the others have not; pass others, report((x, y))"
    k_hat_q = math.nan
    if isinstance(fit, Replicates):
        facts |= {name: fact for name, fact in fit.facts().items() if fact}
    elif train is not None and not isinstance(fit, Reading):
        if (worth := fit.worth) is not None:
            facts["log density of training rows"] = str(worth)
        k_hat_q, facts["Pareto k-hat"] = _k_hat(fit, train, seed)
        facts |= _rates(fit.guide)
        advice += _of_training(fit)
    if isinstance(fit, Fit) and fit.certificate is not None:
        facts["bands"] = f"{fit.certificate.finding} ([Can I trust this band?](docs/trust.md))"
    return Report(scores, facts, (*advice, *_advice(scores, k_hat_q, seen=held_out is None)))


def _without_masks(reading: Reading, x: Inputs) -> Prediction:
    """The prediction of the network in evaluation mode."""
    model: Any = reading.model
    with torch.no_grad(), evaluating(model, reading.guide):
        there = mapped(lambda part: part.to(reading.device), x)
        output = model.masked(reading.guide.mean(), {}, there)[None].cpu()  # type: ignore[attr-defined]
        likelihood, targets = (copy.deepcopy(part).cpu() for part in (model.likelihood, model.targets))
        distribution, f = likelihood(output, targets), likelihood.location(output, targets)
    return Prediction(f=f, distribution=per_row(distribution, 2), seed=0)


def _of_masks(gain: Tensor) -> Iterator[str]:
    """Whether dropout makes the predictions of rows worse; `gain` are differences of their log densities."""
    mean, error = float(gain.mean()), float(gain.std() / math.sqrt(len(gain)))
    if mean < -max(2 * error, _LITTLE):
        yield (
            f"In evaluation mode, without dropout, the network predicts better, by {-mean:.2g} ± {error:.1g} nats per row: "
            "predict so, or train it with a lower drop rate."
        )


def _of_training(fit: Fit) -> Iterator[str]:
    sentence, page = reason(fit)
    if sentence:
        yield f"{sentence[0].upper()}{sentence[1:]} ([Symptoms](docs/symptoms.md#{page}))."
    wide = sentence.startswith(("the fit is no better", "the fit predicts worse"))
    if wide and _takes_an_exact_layer(fit):
        yield (
            "guides.ExactLastLayer has the exact posterior of the last layer, and learns the noise from its evidence, which "
            "takes little time with so few rows ([Choosing](docs/choosing.md#an-exact-last-layer))."
        )


def _of_numbers(predicted: Any, y: Tensor) -> dict[str, float]:
    scores = metrics.regression_scores(predicted, y)
    return {name: scores[name] for name in _REAL}


def _of_labels(predicted: Any, y: Tensor) -> dict[str, float]:
    scores = metrics.classification_scores(predicted, y)
    return {name: scores[name] for name in _CLASSES}


def _beside(learn: Dataset, judge: Dataset, labels: bool, seed: int) -> Iterator[tuple[str, Any]]:
    """Names and predictions of the simple predictors: class probabilities, or Gaussian noise around a mean."""
    y = learn.y.detach().cpu()
    classes = 1 + int(max(y.max(), judge.y.max())) if labels else 0
    if labels:
        share = (torch.bincount(y.long(), minlength=classes) + 1).double() / (len(y) + classes)
        yield "constant", share.expand(len(judge), classes)
    else:
        y = y.double().reshape(len(y), -1)
        yield "constant", _gaussian(y.mean(0).expand(len(judge), -1), (y - y.mean(0)).square().mean(0), judge)
    x, at = learn.x, judge.x
    if not isinstance(x, Tensor) or not isinstance(at, Tensor) or x.dim() != 2 or not x.is_floating_point():
        return
    x, at = x.detach().cpu().double(), at.detach().cpu().double()
    if not labels:
        unit = Standardize.of(x)
        line = ridge(unit(x), y)
        yield "ridge regression", _gaussian(line.at(unit(at)), line.error.square(), judge)
    if find_spec("sklearn") is not None:
        from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

        kind = RandomForestClassifier if labels else RandomForestRegressor
        forest = kind(300, oob_score=True, min_samples_leaf=2, random_state=seed)
        forest.fit(x.numpy(), y.numpy() if labels or y.shape[1] > 1 else y[:, 0].numpy())
        if labels:
            probabilities = torch.full((len(at), classes), 0.5 / len(y), dtype=torch.float64)
            probabilities[:, forest.classes_] += torch.as_tensor(forest.predict_proba(at.numpy()))
            yield "random forest", probabilities / probabilities.sum(1, keepdim=True)
        else:
            off = y - torch.as_tensor(forest.oob_prediction_).reshape(y.shape)
            mean = torch.as_tensor(forest.predict(at.numpy())).reshape(len(at), -1)
            yield "random forest", _gaussian(mean, off.square().mean(0), judge)
    few = torch.linspace(0, len(x) - 1, min(len(x), _GP_ROWS)).long()
    x, y = x[few], y[few]
    if labels:
        process: Any = GaussianProcessClassifier((x, y), "squared-exponential", classes=classes, progress=False)
        yield "Gaussian process", process.predict(at, _DRAWS, seed=seed)
    elif y.shape[1] == 1:
        process = GaussianProcess((x, y), "squared-exponential", progress=False)
        yield "Gaussian process", process.predict(at, 1, seed=seed, joint=False)


def _gaussian(mean: Tensor, variance: Tensor, judge: Dataset) -> Prediction:
    """A prediction with one Gaussian per value of y, in the shape of y."""
    sd = variance.clamp(min=1e-300).sqrt().expand_as(mean)
    shape = (1, *judge.y.shape) if judge.y.dim() > 1 else (1, len(judge), 1)
    f = mean.reshape(shape)
    return Prediction(f, Normal(f, sd.reshape(shape)).to_event(len(shape) - 2))


def _rates(guide: Any) -> dict[str, str]:
    """The range of rates or alphas."""
    rates = guide.rates() if isinstance(guide, Guide | Ensemble) else {}
    if not rates:
        return {}
    values = torch.cat([torch.as_tensor(rate).detach().flatten().double().cpu() for rate in rates.values()])
    kind = "learned" if guide.rate_kind.learned else "given"
    return {f"{kind} {guide.rate_kind.name}": f"{float(values.min()):.3g} to {float(values.max()):.3g}"}


def _k_hat(fit: Fit, train: Dataset, seed: int) -> tuple[float, str]:
    """k-hat of q, NaN if it is not known, and a text for the report."""
    if len(train) > _KHAT_ROWS:
        return math.nan, f"not computed of more than {_KHAT_ROWS} rows"
    try:
        estimate = loo(fit, num_samples=_KHAT_DRAWS, force=True, seed=seed)
    except (TypeError, ValueError) as error:  # draws without a density
        return math.nan, f"not known: {error}"
    if estimate.reason or estimate.k_hat_q is None:
        return math.nan, estimate.reason
    return (
        estimate.k_hat_q,
        f"{estimate.k_hat_q:.2f} of q, {estimate.k_hat:.2f} of the worst row; reliable below {LIMIT}",
    )


def _advice(scores: Mapping[str, Mapping[str, float]], k_hat_q: float, *, seen: bool) -> Iterator[str]:
    """What to try next."""
    ours = scores["the fit"]
    best = max(scores, key=lambda name: scores[name]["log_density"])
    if best != "in evaluation mode" and scores[best]["log_density"] > ours["log_density"] + _BETTER:
        more = scores[best]["log_density"] - ours["log_density"]
        yield f"The {best} is better by {more:.3g} nats per row: take it, or see [Choosing](docs/choosing.md)."
    inside = ours.get("coverage_95", math.nan)
    if not seen and inside < _LEVELS[0]:
        yield (
            f"{inside:.0%} of the rows are in 95 % intervals: use metrics.conformal with held-out rows "
            "([Symptoms](docs/symptoms.md#too-certain-of-its-labels-or-of-its-intervals))."
        )
    if not seen and inside > _LEVELS[1]:
        yield f"{inside:.0%} of the rows are in 95 % intervals ([Symptoms](docs/symptoms.md#the-band-is-far-too-wide))."
    if k_hat_q > LIMIT:
        yield (
            f"k-hat of q is {k_hat_q:.2f}: draws of this posterior cannot be weighted to be exact, nor give a leave-one-out "
            "density. Compare by rows that are held out ([Judging](docs/judging.md))."
        )


def _takes_an_exact_layer(fit: Fit) -> bool:
    """Whether `ExactLastLayer` applies and is not used yet: few rows, Gaussian noise and a linear last layer."""
    linear = fit.worth is not None and fit.worth.point is not None
    few = fit.settings["num_data"] <= _MOST
    gaussian = type(getattr(fit.model, "likelihood", None)) is Gaussian
    return linear and few and gaussian and not isinstance(fit.guide, ExactLastLayer)
