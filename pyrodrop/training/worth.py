"""What a fit is worth: the log density of its training data beside predictors that need no training, and one warning.

    fit       mean_n ln 1/S sum_s p(y_n | x_n, W_s),   W_s ~ q           S = 16, at most 1000 rows
    constant  p(y_n | c),   c of the largest likelihood: mean and variance, or frequencies of classes
    ridge     N(y_n; m_n, s v_n),   m_n = y_n - [A^-1 y]_n / [A^-1]_nn,   v_n = 1 / [A^-1]_nn,   A = K + r I
    gp        the same for another K
    point     the same for the last layer of the network, at the means of the weights, or at their initial values

All but the fit and the constant predict each row from the other rows (Rasmussen & Williams, 2006,
http://gaussianprocess.org/gpml, eq. 5.10 to 5.12), so a fit below them has not learned what is in its data, or is less
certain than the data allow. K is 1 + phi phi' / D, where phi are the D columns of x, or inputs of the last layer; of the GP
it is 1 + exp(-|x - x'|^2 / (2 D l^2)), all columns standardised. l and r, on grids, and s are those of the largest density.
Class labels are one-hot in place of y: then r is that of the smallest squared error, and the probabilities are softmax(b m),
with the b on a grid of the largest density.

After training, the first of `REASONS` that applies is logged. They use only the nll of the losses, because a growing weight
of the KL divergence raises the loss, whatever was learned.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from typing import Any

import pyro.distributions as dist
import torch
import torch.nn.functional as F
from torch import Tensor

from pyrodrop.changes import evaluating
from pyrodrop.checks import HasPosterior, mapped, parts
from pyrodrop.compression.kept import Prunes
from pyrodrop.data import Dataset
from pyrodrop.data.loader import Loader
from pyrodrop.guides.ensemble import Ensemble, members_of
from pyrodrop.guides.exact_last_layer import ExactLastLayer
from pyrodrop.guides.guide import Guide
from pyrodrop.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    LogNormal,
    Poisson,
    StudentT,
)
from pyrodrop.models.network import NetworkModel, mixes_examples
from pyrodrop.networks.last_map import LastMap
from pyrodrop.parts import Described
from pyrodrop.prediction.predict import draw_functions
from pyrodrop.prediction.prediction import Prediction

_log = logging.getLogger("pyrodrop")

_DRAWS, _MOST, _FEWEST = 16, 1000, 20  # rows
_SHARE = 500  # rows of training steps for each that is predicted, which is about a hundredth of the work
_CHEAP = 3e7  # rows times weights that are predicted in any case, a few hundredths of a second
_FEW, _WIDE, _CLASSES = 200, 100, 20  # rows where a matrix of all of them is needed, columns, classes
_REAL = (Gaussian, HeteroscedasticGaussian, StudentT)


@dataclass(frozen=True, repr=False)
class Worth(Described):
    """Mean log densities of rows of the training data, in nats per row; None where there is no closed form.

    Attributes:
        fit: of the predictive distribution of the fit.
        constant: of a constant, with the noise or the frequencies of classes of the largest likelihood.
        ridge, gp: of ridge regression and of a Gaussian process, which predict every row from the others; of tables with
            real y or class labels.
        point: of the network at the guide's means, or at its initial weights, with a last layer that is refitted to the
            other rows and noise of the largest likelihood.
        values: number of values of y in a row.
    """

    fit: float
    constant: float | None = None
    ridge: float | None = None
    gp: float | None = None
    point: float | None = None
    values: int = 1

    def describe(self) -> str:
        beside = {"constant": self.constant, "ridge": self.ridge, "GP": self.gp, "point": self.point}
        words = ", ".join(f"{name} {value:.2f}" for name, value in beside.items() if value is not None)
        return f"{self.fit:.2f} ({words})" if words else f"{self.fit:.2f}"


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


def worth_of(fit: Any) -> Worth | None:
    """The worth of a fit on rows of its training data, or of a minibatch of a loader.

    None for a Pyro program; without training data, as after loading; if a hundredth of the training's work is too little
    for 20 rows, or for all rows of a network that needs them at once; and if `predict` has no finite density. The caller's
    random state does not change.
    """
    data = fit.data.sample if isinstance(fit.data, Loader) else fit.data
    if not isinstance(fit.model, NetworkModel) or not isinstance(data, Dataset):
        return None
    size = _affordable(fit, data)
    if size < min(len(data), _FEWEST) or (size < len(data) and mixes_examples(fit.model, data.x)):
        return None
    rows = data.rows(torch.linspace(0, len(data) - 1, size).long())
    try:
        predicted = draw_functions(fit.model, fit.guide, rows.x, _DRAWS, seed=0, device=fit.device)
        assert isinstance(predicted, Prediction)
        ours = predicted.log_density(rows.y).detach().double().cpu()
    except (TypeError, ValueError, RuntimeError) as error:  # a trained fit is not lost because it cannot predict
        _log.info("the log density of the training data is not known: %s", error)
        return None
    if len(ours) < size or not bool(ours.isfinite().all()):  # a row without any observation is left out
        return None
    density = float(ours.mean())
    values = {n: density + float((theirs - ours[at]).mean()) for n, at, theirs in _beside(fit, data, rows)}
    finite = {name: value for name, value in values.items() if math.isfinite(value)}
    return Worth(density, **finite, values=rows.y[0].numel())


def of_record(record: Mapping[str, Any]) -> Worth | None:
    """The worth of a fit from its settings; None if these lack it, as after fewer than 100 steps."""
    known = record.get("worth")
    return Worth(**known) if isinstance(known, Mapping) and set(known) == set(Worth.__annotations__) else None


def _affordable(fit: Any, data: Dataset) -> int:
    """The number of rows to predict."""
    seen = len(fit.history) * min(fit.settings.get("batch_size", len(data)), len(data))
    weights = sum(value.numel() for value in fit.model.state_dict().values())
    table = all(part.dim() == 2 and part.is_floating_point() for part in parts(data.x))
    places = 1 if table else max(part[0].numel() for part in parts(data.x))  # that a weight may be applied at
    return min(len(data), _MOST, max(seen // _SHARE, int(_CHEAP / (weights * places))))


def _beside(fit: Any, data: Dataset, rows: Dataset) -> Iterator[tuple[str, Tensor, Tensor]]:
    """The predictors that a fit is compared with: name, indices of the rows predicted, and their log densities."""
    y, likelihood = rows.y.detach().cpu(), fit.model.likelihood
    y = y if isinstance(likelihood, Categorical) else y.double().reshape(len(y), -1)
    every = torch.arange(len(y))
    if (of_constant := constant(likelihood, data.y, y)) is not None:
        yield "constant", every, of_constant
    real = isinstance(likelihood, _REAL) and not has_one_value(y)
    labels = isinstance(likelihood, Categorical) and y.dim() == 1 and int(y.max()) < _CLASSES
    if len(y) < _FEWEST or not (real or labels):
        return
    few = torch.linspace(0, len(y) - 1, min(len(y), _FEW)).long()
    x = rows.x
    if isinstance(x, Tensor) and x.dim() == 2 and x.is_floating_point():
        x = x.detach().cpu().double()
        at = every if x.shape[1] <= _WIDE else few
        yield "ridge", at, by_features([x[at]], y[at])
        yield "gp", few, by_process(x[few], y[few])
    if features := _features(fit, rows):
        at = every if features[0].shape[1] <= _WIDE else few
        yield "point", at, by_features([phi[at] for phi in features], y[at])


def _features(fit: Any, rows: Dataset) -> list[Tensor]:
    """Inputs of the last layer ``[n, K]``, at the initial values of the weights and at their means.

    Empty if the outputs of the network are not those of a linear layer that is called on one vector per row.
    """
    model, guide = fit.model, members_of(fit.guide)[0]
    initial = model.weight_sites()
    weights = [initial]
    if isinstance(guide, HasPosterior):
        weights.append({name: guide.posterior(name).mean.detach() for name in initial})
    features = []
    with torch.no_grad(), evaluating(model, fit.guide):
        x = mapped(lambda part: part.to(fit.device), rows.x)
        for values in weights:
            with LastMap() as seen:
                output = model.outputs(values, x)
            linear = seen.last.linear() if seen.last else None
            if seen.last and linear and linear[0].dim() == 2 and torch.equal(seen.last.result, output):
                features.append(linear[0].cpu().double())
    return features


_LENGTHS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
_RATIOS = torch.logspace(-6, 3, 19, dtype=torch.float64)
_SLOPES = torch.logspace(-1, 1, 9, dtype=torch.float64)


def constant(likelihood: Likelihood, data: Tensor, y: Tensor) -> Tensor | None:
    """Log densities of rows under the best constant; None if it has no closed form, or a column of y does not vary.

    Args:
        data: y of all rows, for the frequencies of labels.
        y: of the rows whose densities are returned, ``[n, ...]``, for mean and variance.

    Returns:
        ``[n]``, in float64.
    """
    if isinstance(likelihood, Categorical):
        labels = data.detach().long().flatten().cpu()
        return (torch.bincount(labels).double() / len(labels)).log()[y.long()].reshape(len(y), -1).sum(1)
    y = y.double()
    if has_one_value(y):
        return None
    if isinstance(likelihood, LogNormal):
        density = dist.LogNormal(y.log().mean(0), y.log().std(0, correction=0)).log_prob(y)
    elif isinstance(likelihood, Gaussian | HeteroscedasticGaussian):
        density = dist.Normal(y.mean(0), y.std(0, correction=0)).log_prob(y)
    elif isinstance(likelihood, Bernoulli | Poisson):
        density = (dist.Bernoulli if isinstance(likelihood, Bernoulli) else dist.Poisson)(y.mean(0)).log_prob(y)
    else:
        return None
    return density.reshape(len(y), -1).sum(1)


def has_one_value(y: Tensor) -> bool:
    """Whether y are real numbers with a column that has one value in all rows."""
    return y.is_floating_point() and bool((y == y[0]).reshape(len(y), -1).all(0).any())


def by_features(features: Sequence[Tensor], y: Tensor) -> Tensor:
    """Log densities of rows ``[n]``, under the best of several sets of features ``[n, K]``; y as of `left_out`."""
    with_one = (torch.cat([torch.ones_like(phi[:, :1]), _standardised(phi)], 1) for phi in features)
    factors = (torch.linalg.svd(phi, full_matrices=False) for phi in with_one)
    return left_out(((s.square(), u) for u, s, _ in factors), y)


def by_process(x: Tensor, y: Tensor) -> Tensor:
    """Log densities of rows ``[n]`` under a Gaussian process of x ``[n, D]``; y as of `left_out`."""
    square = torch.cdist(_standardised(x), _standardised(x)).square()
    return left_out((torch.linalg.eigh(1 + torch.exp(-square / (2 * length**2))) for length in _LENGTHS), y)


def left_out(kernels: Iterable[tuple[Tensor, Tensor]], y: Tensor) -> Tensor:
    """Log densities of rows ``[n]``, each predicted from the others, under the best of the kernels and ratios.

    Args:
        kernels: eigenvalues ``[k]`` and eigenvectors ``[n, k]`` of each K, in float64; the other eigenvalues are 0.
        y: real numbers ``[n, D]`` in float64, of which every column varies, or class labels ``[n]``.
    """
    labels = None if y.is_floating_point() else y.long()
    target = y if labels is None else F.one_hot(labels).double()
    scale = target.std(0, correction=0) if labels is None else torch.ones_like(target[0])
    target = (target - target.mean(0)) / scale
    densities = []
    for w, u in kernels:
        inverse = 1 / (w.clamp(min=0)[:, None] + _RATIOS)
        inside = u.T @ target
        beyond = (1 - u.square().sum(1)).clamp(min=0)
        diagonal = (u.square() @ inverse + beyond[:, None] / _RATIOS)[..., None]
        solved = torch.einsum("nk,kr,kc->nrc", u, inverse, inside) + (target - u @ inside)[:, None] / _RATIOS[:, None]
        off = solved / diagonal
        if labels is None:
            s = (off.square() * diagonal).mean(0).clamp(min=1e-20)
            densities.append(_best(dist.Normal(0.0, (s / diagonal).sqrt() * scale).log_prob(off * scale).sum(-1)))
        else:
            off = off[:, int(off.square().mean((0, 2)).argmin())]
            logits = (target - off)[:, None] * _SLOPES[:, None]
            chosen = labels[:, None, None].expand(-1, len(_SLOPES), 1)
            densities.append(_best(logits.log_softmax(-1).gather(-1, chosen)[..., 0]))
    return _best(torch.stack(densities, 1))


def _best(densities: Tensor) -> Tensor:
    """The column of ``[n, R]`` with the largest mean."""
    return densities[:, int(densities.mean(0).nan_to_num(-math.inf).argmax())]


def _standardised(x: Tensor) -> Tensor:
    """Columns of mean 0 and standard deviation 1, divided by the root of their number."""
    return (x - x.mean(0)) / x.std(0, correction=0).clamp(min=1e-12) / math.sqrt(x.shape[1])


TRIAL = 100  # steps: a training with fewer is a trial, which is not expected to have learned
_SMALL = 1e-3  # a rate or alpha; nats per value of y

_collecting: ContextVar[list[str] | None] = ContextVar("_collecting", default=None)


@contextmanager
def collected() -> Iterator[list[str]]:
    """Collect the messages about fits that are trained in this block instead of logging them."""
    messages: list[str] = []
    outer = _collecting.set(messages)
    try:
        yield messages
    finally:
        _collecting.reset(outer)


def say(message: str) -> None:
    """Log a warning about a fit, unless messages are collected."""
    messages = _collecting.get()
    if messages is None:
        _log.warning("%s", message)
    else:
        messages.append(message)


def judge(*fits: Any, failed: Collection[int] = ()) -> None:
    """Put the worth of a single fit into its settings, which are saved, and log at most one warning about all fits: how many
    need one, and the first reason for the first of these.

    Args:
        failed: numbers of the fits to leave out, because their loss or gradient stopped being finite.
    """
    trained = {number: fit for number, fit in enumerate(fits) if number not in failed and len(fit.history) >= TRIAL}
    if len(fits) == 1 and trained and (worth := worth_of(fits[0])) is not None:
        fits[0].settings["worth"] = asdict(worth)
        _log.info("log density of the training data: %s", worth)
    reasons = {number: next(filter(None, (look(fit) for look in REASONS)), "") for number, fit in trained.items()}
    unfinished = {number: reason for number, reason in reasons.items() if reason}
    for number, reason in [*unfinished.items()][:1]:
        title, _, text = reason.partition(": ")
        where = f"{len(unfinished)} of {len(fits)} replicates, of which number {number}: " if len(fits) > 1 else ""
        say(f"{title}: {where}{text}")


def rises(fit: Any) -> str:
    """A warning if the nll has risen: the median of the last tenth of the steps is above the first by more than 1 nat per
    row, more than after a start from trained weights, or by 4 / sqrt(batch size), since few rows vary more."""
    nll, rows, tenth, unit = _nll(fit)
    rise = float(nll[-tenth:].median() - nll[0]) / rows if tenth else 0.0
    if rise <= max(1.0, 4 / math.sqrt(fit.settings.get("batch_size", rows))):
        return ""
    return (
        f"training has diverged: the loss has risen, by {rise:.2g} {unit} from the first step to the last {tenth}: take a "
        "smaller lr, standardise x and y, and train anew"
    )


def still_falls(fit: Any) -> str:
    """A warning if the mean nll of the last tenth of the steps is below that of the tenth before, by more than 0.05 nats per
    row, a twentieth of the whole fall and four standard errors; not if training was ended before all steps."""
    nll, rows, tenth, unit = _nll(fit)
    if not tenth or len(nll) < (fit.settings.get("steps") or 0):
        return ""
    first, before, last = nll[:tenth], nll[-2 * tenth : -tenth], nll[-tenth:]
    fall, whole = float(before.mean() - last.mean()), float(first.mean() - last.mean())
    error = math.sqrt(float(before.var() + last.var()) / tenth)
    if fall <= max(0.05 * rows, 0.05 * whole, 4 * error):
        return ""
    return (
        f"training may not be done: the loss still falls, by {fall / rows:.2g} {unit} in the last {tenth} of {len(nll)} "
        "steps: train for more steps, or with a higher lr"
    )


def point_estimate(fit: Any) -> str:
    """A warning if all learned rates or alphas are below 1/1000: the posterior is a point up to rounding."""
    guide: Any = fit.guide
    if not isinstance(guide, Guide | Ensemble) or isinstance(guide, Prunes) or not guide.rate_kind.learned:
        return ""
    largest = max((float(torch.as_tensor(rate).max()) for rate in guide.rates().values()), default=1.0)
    if not largest < _SMALL:
        return ""
    return (
        f"the fit is a point estimate: every learned {guide.rate_kind.name} is below {_SMALL:g}, the largest is "
        f"{largest:.2g}. Set the rate (guides.BernoulliDropout), or learn variances of weights (guides.MeanField)"
    )


def no_better_than_a_constant(fit: Any) -> str:
    """A warning if the log density is not above a constant's by 1/1000 nat per value of y. Where it was not computed after
    training, as of replicates, it is if -nll of the last steps, a lower bound, is not above by 1/100 nat per row."""
    worth, likelihood = of_record(fit.settings), fit.model.likelihood if isinstance(fit.model, NetworkModel) else None
    if worth is None and likelihood is not None and isinstance(fit.data, Dataset):
        y = fit.data.y.detach().cpu()
        best = constant(likelihood, y, y)
        nll = float(fit.history[-max(1, len(fit.history) // 10) :, 0].double().mean())
        if best is not None and nll > -float(best.sum()) - 0.01 * len(fit.data):
            worth = worth_of(fit)
    if worth is None or worth.constant is None or worth.fit > worth.constant + _SMALL * worth.values:
        return ""
    if not _standardise(fit) and still_falls(fit):  # then a loss that falls is the first cause
        return ""
    what, advice = "a constant", f"{_standardise(fit)}look at the prior's scale and the drop rate"
    if isinstance(likelihood, Categorical):
        what = "the frequencies of the classes"
        advice = (
            "take a larger scale of the prior, such as the root of 2 over the inputs of a layer, a lower drop rate or "
            "another lr"
        )
    so = _conclusion(fit, "x explains nothing yet, if there is anything to learn", f"{advice}, or train for more steps")
    return f"the fit is no better than a constant: {_numbers(worth, worth.constant, what)}, {so}"


def less_than_the_best(fit: Any) -> str:
    """A warning if the log density, where it was computed after training, is below that of ridge regression or of the
    network with a refitted last layer by more than 1/5 nat per value of y, or below that of a Gaussian process by 3/10."""
    worth = of_record(fit.settings)
    if worth is None:
        return ""
    records = {"a point estimate": worth.point, "ridge regression": worth.ridge, "a Gaussian process": worth.gp}
    *of_lines, process = ((-math.inf if value is None else value, name) for name, value in records.items())
    simple = max(of_lines)
    if simple[0] > worth.fit + 0.2 * worth.values:
        best, name = simple  # which says more about the cause than a process, whose functions are others
    elif process[0] > worth.fit + 0.3 * worth.values:
        best, name = process
    else:
        return ""
    more = " of this network with a refitted last layer" if name == "a point estimate" else ""
    what = "the data determine more than this posterior says"
    has_rates = isinstance(fit.guide, Guide | Ensemble | ExactLastLayer) and fit.guide.rates()
    lower = "a lower drop rate or " if has_rates else ""
    advice = f"take {lower}another scale of the prior, let lr fall to 0, or train for more steps"
    if name == "a Gaussian process":
        what, fitted = "y has more structure than this fit follows", isinstance(fit.guide, ExactLastLayer)
        first = "" if fitted else "fit(model, data) without a guide, whose priors and noise fit (docs/choosing.md), "
        advice = f"try {first}more units, or the process itself, analysis.gp.GaussianProcess"
    so = _conclusion(fit, what, advice)
    return f"the fit predicts worse than {name}: {_numbers(worth, best, name + more)}, {so}"


# What is wrong with a fit, the first thing first, each with the heading of docs/symptoms.md that says more.
REASONS: dict[Callable[[Any], str], str] = {
    rises: "the-loss-is-nan-or-infinite",
    no_better_than_a_constant: "a-constant-predicts-as-well",
    point_estimate: "learned-rates-go-to-0-or-alphas-grow",
    still_falls: "a-constant-predicts-as-well",
    less_than_the_best: "a-flat-band-noise-as-large-as-y",
}


def _nll(fit: Any) -> tuple[Tensor, int, int, str]:
    """The nll of all steps, the number of rows, a tenth of the number of steps (0 if they say nothing) and the unit."""
    nll, rows = fit.history[:, 0].double(), fit.settings.get("num_data", 1)
    tenth = len(nll) // 10 if len(nll) >= TRIAL and bool(nll.isfinite().all()) else 0
    return nll, rows, tenth, "nats per row" if rows > 1 else "nats"


def _numbers(worth: Worth, beside: float, what: str) -> str:
    process = "" if worth.gp in (None, beside) else f" ({worth.gp:.3g} under a Gaussian process)"
    return f"the log density of the training data is {worth.fit:.3g} per row, and {beside:.3g} under {what}{process}"


def _conclusion(fit: Any, what: str, advice: str) -> str:
    """The end of a warning: what the numbers mean and what to do, which differs if Gaussian noise is about as large as y."""
    likelihood = getattr(fit.model, "likelihood", None)
    if not isinstance(likelihood, Gaussian) or not isinstance(fit.data, Dataset):
        return f"so {what}: {advice}"
    sd = fit.data.y.detach().double().std(0, correction=0).cpu()
    noise = likelihood.precision.detach().double().rsqrt().cpu().expand_as(sd)
    column = int((noise / sd).argmax())
    loudest, beside = float(noise.flatten()[column]), float(sd.flatten()[column])
    if not loudest > 0.9 * beside:
        return f"so {what}: {advice}"
    where = f" in column {column}" if sd.dim() == 1 and len(sd) > 1 else ""
    loud = f"the noise has a standard deviation of {loudest:.3g} and y one of {beside:.3g}{where}"
    first = _standardise(fit)
    if not likelihood.learned:
        return f"since {loud}: let it be learned, likelihoods.Gaussian()"
    return (
        f"so {what}, and {loud}: {first}{'and ' * bool(first)}take priors and noise that fit, as fit(model, data) without a "
        "guide does (docs/symptoms.md, A flat band)"
    )


def _standardise(fit: Any) -> str:
    """The advice to standardise data that are not."""
    done = isinstance(fit.data, Dataset) and fit.data.inputs is not None and fit.data.targets is not None
    return "" if done else "standardise x and y (Dataset.standardized), "
