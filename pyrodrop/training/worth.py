"""What a fit is worth: the log density of its training data beside predictors that need no training, and one warning.

    fit       mean_n ln 1/S sum_s p(y_n | x_n, W_s),   W_s ~ q           S = 16, at most 1000 rows
    constant  p(y_n | c),   c of the largest likelihood: mean and variance, or frequencies of classes
    ridge     N(y_n; m_n, s v_n),   m_n = y_n - [A^-1 y]_n / [A^-1]_nn,   v_n = 1 / [A^-1]_nn,   A = K + r I
    gp        the same for another K
    point     the same for the last layer of the network, at the means of the weights, or at their initial values

All but the fit and the constant predict each of at most 300 rows from the other ones (Rasmussen & Williams, 2006,
http://gaussianprocess.org/gpml, eq. 5.10 to 5.12), so a fit below them has not learned what is in its data, or is less
certain than the data allow. K is 1 + phi phi' / D, where phi are the D columns of x, or inputs of the last layer; of the GP
it is 1 + exp(-|x - x'|^2 / (2 D l^2)), all columns standardised. l and r, on grids, and s are those of the largest density.
Class labels are one-hot in place of y: then r is that of the smallest squared error, and the probabilities are softmax(b m),
with the b on a grid of the largest density.

After training, one sentence is logged if something is wrong, with the first cause. Whether training has diverged or is not
done follows from the nll alone, because a growing weight of the KL divergence raises the loss, whatever was learned.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from typing import Any

import pyro.distributions as dist
import torch
import torch.nn.functional as F
from torch import Tensor

from pyrodrop.changes import evaluating
from pyrodrop.checks import HasPosterior, mapped
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

_log = logging.getLogger("pyrodrop")

_DRAWS, _MOST, _FEWEST = 16, 1000, 20  # rows
_SHARE = 500  # rows of training steps for each that is predicted, which is about a hundredth of the work
_CHEAP = 3e7  # rows times weights that are predicted in any case, a few hundredths of a second
_FEW, _CLASSES = 300, 20  # rows that are predicted from the others; classes
REAL = (Gaussian, HeteroscedasticGaussian, StudentT)
LENGTHS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
RATIOS = torch.logspace(-6, 3, 28, dtype=torch.float64)
_SLOPES = torch.logspace(-1, 1, 9, dtype=torch.float64)


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


@dataclass(frozen=True)
class Kernel:
    """K between rows ``[N, D]``, after they are moved by `middle` and divided by `scale`; linear if `length` is None."""

    middle: Tensor
    scale: Tensor
    length: float | None

    @classmethod
    def of(cls, rows: Tensor, length: float | None) -> Kernel:
        """The kernel in units of these rows."""
        rows = rows.detach().cpu().double()
        scale = rows.std(0, correction=0).clamp(min=1e-12) * math.sqrt(rows.shape[1])
        return cls(rows.mean(0), scale, length)

    def __call__(self, first: Tensor, second: Tensor) -> Tensor:
        a, b = ((rows.detach().cpu().double() - self.middle) / self.scale for rows in (first, second))
        if self.length is None:
            return 1 + a @ b.T
        return 1 + torch.exp(-torch.cdist(a, b).square() / (2 * self.length**2))


def worth_of(fit: Any) -> Worth | None:
    """The worth of a fit on rows of its training data, or of a minibatch of a loader.

    None for a Pyro program; without training data, as after loading; if a hundredth of the training's work is too little
    for 20 rows, or for all rows of a network that needs them at once; and if `predict` has no finite density. The caller's
    random state does not change.
    """
    data = fit.data.sample if isinstance(fit.data, Loader) else fit.data
    if not isinstance(fit.model, NetworkModel) or not isinstance(data, Dataset):
        return None
    seen = len(fit.history) * min(fit.settings.get("batch_size", len(data)), len(data))
    weights = sum(value.numel() for value in fit.model.state_dict().values())
    size = min(len(data), _MOST, max(seen // _SHARE, int(_CHEAP / weights)))
    if size < min(len(data), _FEWEST) or (size < len(data) and mixes_examples(fit.model, data.x)):
        return None
    rows = data.rows(evenly(len(data), size))
    try:
        predicted: Any = draw_functions(fit.model, fit.guide, rows.x, _DRAWS, seed=0, device=fit.device)
        ours = predicted.log_density(rows.y).detach().double().cpu()
    except (TypeError, ValueError, RuntimeError) as error:  # a trained fit is not lost because it cannot predict
        _log.info("the log density of the training data is not known: %s", error)
        return None
    if len(ours) < size or not bool(ours.isfinite().all()):  # a row without any observation is left out
        return None
    density = float(ours.mean())
    values = {n: density + float((theirs - ours[at]).mean()) for n, at, theirs in _beside(fit, rows)}
    finite = {name: value for name, value in values.items() if math.isfinite(value)}
    return Worth(density, **finite, values=rows.y[0].numel())


def of_record(record: Mapping[str, Any]) -> Worth | None:
    """The worth of a fit from its settings; None if these lack it, as after fewer than 100 steps."""
    known = record.get("worth")
    return Worth(**known) if isinstance(known, Mapping) and set(known) == set(Worth.__annotations__) else None


def evenly(rows: int, most: int) -> Tensor:
    """The numbers of at most so many rows."""
    return torch.linspace(0, rows - 1, min(rows, most)).long()


def _beside(fit: Any, rows: Dataset) -> Iterator[tuple[str, Tensor, Tensor]]:
    """The predictors that a fit is compared with: name, indices of the rows predicted, and their log densities."""
    y, likelihood = rows.y.detach().cpu(), fit.model.likelihood
    y = y if isinstance(likelihood, Categorical) else y.double().reshape(len(y), -1)
    if (of_constant := constant(likelihood, y)) is not None:
        yield "constant", torch.arange(len(y)), of_constant
    real = isinstance(likelihood, REAL) and not _has_one_value(y)
    labels = isinstance(likelihood, Categorical) and y.dim() == 1 and int(y.max()) < _CLASSES
    if len(y) < _FEWEST or not (real or labels):
        return
    few, x = evenly(len(y), _FEW), rows.x
    if isinstance(x, Tensor) and x.dim() == 2 and x.is_floating_point():
        yield "ridge", few, left_out([x[few]], (None,), y[few])
        yield "gp", few, left_out([x[few]], LENGTHS, y[few])
    if features := _features(fit, rows.rows(few)):
        yield "point", few, left_out(features, (None,), y[few])


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
                features.append(linear[0])
    return features


def constant(likelihood: Likelihood, y: Tensor) -> Tensor | None:
    """Log densities of rows ``[n]`` under the best constant; None if it has no closed form, or a column does not vary."""
    if isinstance(likelihood, Categorical):
        labels = y.long()
        return (torch.bincount(labels.flatten()).double() / labels.numel()).log()[labels].reshape(len(y), -1).sum(1)
    y = y.double()
    if _has_one_value(y):
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


def _has_one_value(y: Tensor) -> bool:
    return y.is_floating_point() and bool((y == y[0]).reshape(len(y), -1).all(0).any())


def left_out(tables: Iterable[Tensor], lengths: Iterable[float | None], y: Tensor) -> Tensor:
    """Log densities of rows ``[n]``, each predicted from the others, under the best of the kernels and ratios.

    Args:
        tables: columns of the kernels, ``[n, D]`` each.
        lengths: of the kernels; None is linear.
        y: real numbers ``[n, D]`` in float64, of which every column varies, or class labels ``[n]``.
    """
    kernels = (Kernel.of(x, length)(x, x) for x in tables for length in lengths)
    if y.is_floating_point():
        scale = y.std(0, correction=0)
        each = [of_numbers(kernel, (y - y.mean(0)) / scale)[0] - scale.log().sum() for kernel in kernels]
        return _best(torch.cat(each, 1))
    target, densities = F.one_hot(y.long()).double(), []
    target = target - target.mean(0)
    for kernel in kernels:
        off, _ = _errors(kernel, target)
        off = off[:, int(off.square().mean((0, 2)).argmin())]
        logits = (target - off)[:, None] * _SLOPES[:, None]
        chosen = y.long()[:, None, None].expand(-1, len(_SLOPES), 1)
        densities.append(logits.log_softmax(-1).gather(-1, chosen)[..., 0])
    return _best(torch.cat(densities, 1))


def of_numbers(kernel: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Log densities of rows ``[n, R]`` for each of `RATIOS`, and the best s ``[R, D]``; columns of the target vary."""
    off, diagonal = _errors(kernel, target)
    s = (off.square() * diagonal).mean(0).clamp(min=1e-20)
    return dist.Normal(0.0, (s / diagonal).sqrt()).log_prob(off).sum(-1), s


def _errors(kernel: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Errors ``[n, R, D]`` of rows that are predicted from the others, and the diagonal of A^-1 ``[n, R, 1]``."""
    w, u = torch.linalg.eigh(kernel)
    inverse = 1 / (w.clamp(min=0)[:, None] + RATIOS)
    diagonal = (u.square() @ inverse)[..., None]
    return torch.einsum("nk,kr,kc->nrc", u, inverse, u.T @ target) / diagonal, diagonal


def _best(densities: Tensor) -> Tensor:
    """The column of ``[n, R]`` with the largest mean."""
    return densities[:, int(densities.mean(0).nan_to_num(-math.inf).argmax())]


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
    """Put the worth of the first fit into its settings, which are saved, and log at most one warning about all fits.

    It says how many need one, and the reason for the first of these.

    Args:
        failed: numbers of the fits to leave out, because their loss or gradient stopped being finite.
    """
    trained = {number: fit for number, fit in enumerate(fits) if number not in failed and len(fit.history) >= TRIAL}
    for fit in [*trained.values()][:1]:
        if (worth := worth_of(fit)) is not None:
            fit.settings["worth"] = asdict(worth)
            _log.info("log density of the training data: %s", worth)
    reasons = {number: reason(fit)[0] for number, fit in trained.items()}
    unfinished = {number: sentence for number, sentence in reasons.items() if sentence}
    for number, sentence in [*unfinished.items()][:1]:
        title, _, text = sentence.partition(": ")
        where = f"{len(unfinished)} of {len(fits)} replicates, of which number {number}: " if len(fits) > 1 else ""
        say(f"{title}: {where}{text}")


def reason(fit: Any) -> tuple[str, str]:
    """What is wrong with a fit, the first cause first, and the heading of docs/symptoms.md that says more; or two empty
    strings. It compares with the worth in the settings."""
    worth, unit = of_record(fit.settings), "nats per row" if fit.settings.get("num_data", 1) > 1 else "nats"
    nll, tenth = _nll(fit)
    if (rise := _rise(fit)) > 0:
        return (
            f"training has diverged: the loss has risen, by {rise:.2g} {unit} from the first step to the last {tenth}: take "
            "a smaller lr, standardise x and y, and train anew",
            "the-loss-is-nan-or-infinite",
        )
    fall, standardise = still_falls(fit), _standardise(fit)
    blind = worth is not None and worth.constant is not None and worth.fit <= worth.constant + _SMALL * worth.values
    if worth is not None and blind and (standardise or not fall):  # else a loss that falls is the first cause
        advice = f"{standardise}look at the prior's scale, the drop rate and lr, or train for more steps"
        so = _conclusion(fit, "x explains nothing yet, if there is anything to learn", advice)
        of_constant = _numbers(worth, worth.constant, "a constant")
        return f"the fit is no better than a constant: {of_constant}, {so}", "a-constant-predicts-as-well"
    guide: Any = fit.guide
    if isinstance(guide, Guide | Ensemble) and not isinstance(guide, Prunes) and guide.rate_kind.learned:
        largest = max((float(torch.as_tensor(rate).max()) for rate in guide.rates().values()), default=1.0)
        if largest < _SMALL:
            return (
                f"the fit is a point estimate: every learned {guide.rate_kind.name} is below {_SMALL:g}, the largest is "
                f"{largest:.2g}. Set the rate (guides.BernoulliDropout), or learn variances of weights (guides.MeanField)",
                "learned-rates-go-to-0-or-alphas-grow",
            )
    if fall:
        return (
            f"training may not be done: the loss still falls, by {fall:.2g} {unit} in the last {tenth} of {len(nll)} steps: "
            "train for more steps, or with a higher lr",
            "a-constant-predicts-as-well",
        )
    behind = "" if worth is None else _less_than_the_best(fit, worth)
    return behind, "a-flat-band-noise-as-large-as-y" if behind else ""


def _nll(fit: Any) -> tuple[Tensor, int]:
    """The nll of all steps per row, and a tenth of their number, which is 0 if they say nothing."""
    nll = fit.history[:, 0].double() / fit.settings.get("num_data", 1)
    return nll, len(nll) // 10 if len(nll) >= TRIAL and bool(nll.isfinite().all()) else 0


def _rise(fit: Any) -> float:
    """By how much the median nll of the last tenth of the steps is above the first; 0 unless by more than 1 nat per row,
    more than after a start from trained weights, or by 4 / sqrt(batch size), since few rows vary more."""
    nll, tenth = _nll(fit)
    rise = float(nll[-tenth:].median() - nll[0]) if tenth else 0.0
    size = fit.settings.get("batch_size", fit.settings.get("num_data", 1))
    return rise if rise > max(1.0, 4 / math.sqrt(size)) else 0.0


def still_falls(fit: Any) -> float:
    """By how much the mean nll of the last tenth of the steps is below that of the tenth before; 0 unless by more than 0.05
    nats per row, a twentieth of the whole fall and four standard errors, or if training was ended before all steps."""
    nll, tenth = _nll(fit)
    if not tenth or len(nll) < (fit.settings.get("steps") or 0):
        return 0.0
    first, before, last = nll[:tenth], nll[-2 * tenth : -tenth], nll[-tenth:]
    fall, whole = float(before.mean() - last.mean()), float(first.mean() - last.mean())
    return fall if fall > max(0.05, 0.05 * whole, 4 * math.sqrt(float(before.var() + last.var()) / tenth)) else 0.0


def _less_than_the_best(fit: Any, worth: Worth) -> str:
    """A warning if the log density is below that of ridge regression or of the network with a refitted last layer by more
    than 1/5 nat per value of y, or below that of a Gaussian process by 3/10."""
    lines = {"a point estimate": worth.point, "ridge regression": worth.ridge}
    best, name = max((-math.inf if value is None else value, name) for name, value in lines.items())
    what = "the data determine more than this posterior says"
    has_rates = isinstance(fit.guide, Guide | Ensemble | ExactLastLayer) and fit.guide.rates()
    lower = "a lower drop rate or " if has_rates else ""
    advice = f"take {lower}another scale of the prior, let lr fall to 0, or train for more steps"
    if best <= worth.fit + 0.2 * worth.values:  # else it says more about the cause than a process
        if worth.gp is None or worth.gp <= worth.fit + 0.3 * worth.values:
            return ""
        best, name, what = worth.gp, "a Gaussian process", "y has more structure than this fit follows"
        advice = "try more units, or the process itself, analysis.gp.GaussianProcess"
        if not isinstance(fit.guide, ExactLastLayer):
            advice = f"fit(model, data) without a guide has priors and noise that fit (docs/choosing.md); else {advice}"
    return f"the fit predicts worse than {name}: {_numbers(worth, best, name)}, {_conclusion(fit, what, advice)}"


def _numbers(worth: Worth, beside: float | None, what: str) -> str:
    process = "" if worth.gp in (None, beside) else f" ({worth.gp:.3g} under a Gaussian process)"
    return f"the log density of the training data is {worth.fit:.3g} per row, and {beside:.3g} under {what}{process}"


def _conclusion(fit: Any, what: str, advice: str) -> str:
    """The end of a warning: what the numbers mean and what to do, which differs if Gaussian noise is about as large as y."""
    likelihood = getattr(fit.model, "likelihood", None)
    if isinstance(likelihood, Gaussian) and isinstance(fit.data, Dataset):
        sd = fit.data.y.detach().double().std(0, correction=0).cpu()
        if bool((likelihood.precision.detach().double().rsqrt().cpu() > 0.9 * sd).any()):
            if not likelihood.learned:
                return "since the noise is as large as y: let it be learned, likelihoods.Gaussian()"
            advice = "take priors and noise that fit, as fit(model, data) does (docs/symptoms.md, A flat band)"
            advice = f"{_standardise(fit)}{advice}"
            what = f"{what}, and the noise is as large as y"
    return f"so {what}: {advice}"


def _standardise(fit: Any) -> str:
    """The advice to standardise data that are not."""
    done = isinstance(fit.data, Dataset) and fit.data.inputs is not None and fit.data.targets is not None
    return "" if done else "standardise x and y (Dataset.standardized), "
