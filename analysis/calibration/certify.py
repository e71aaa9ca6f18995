"""Whether the bands of a fit hold: it is trained again on data sets of functions that are known, and asked for these.

    (f_r, y_r)      f_r ~ p(f | x, y),  y_r ~ p(y | f_r), of the best predictor                        r = 1 ... R
    q_r             the posterior after the same training on (x, y_r); all are trained at once, as `pyrodrop.fit_replicates`
    coverage        mean over r and points of 1[f_r(x) in the central interval of q_r at x]

This is a parametric bootstrap of the whole procedure. In each of three regions, the factor c for which

    m + c (f_s - m),   m = mean_s f_s,   f_s ~ q_r

has bands with the nominal coverage is a quantile of |f_r - m| / |end of the band - m| over r and points. Bands of labels are
those of ln p_c - ln(1 - p_c).

The best predictor is a Gaussian process with a `Kernel`, or the fit itself, whichever predicts rows better from the others:

    process, real y     f ~ N(k' A^-1 y, s (k** - k' A^-1 k)),   A = K + r I,   noise s r;  K, r, s of the largest
                        leave-one-out density (Rasmussen & Williams 2006, http://gaussianprocess.org/gpml, eq. 5.10 to 5.12)
    process, labels     f ~ N(k' K^-1 F, k** - k' S (I + S' K S)^-1 S' k),   F the mode, S S' = W = diag p - p p', one kernel
                        for the logits of all classes; K of the largest Laplace evidence (section 3.5)
    rows left out       p(y_n | others) = 1 / mean_s 1 / p(y_n | f_s),   of labels and of the fit

A fit that is too smooth predicts worse than such a process, and is not asked what the functions are. It assumes that the
noise is that of the likelihood, and that functions are like those of the best predictor: it cannot see what neither the
process nor the fit can follow. Beyond the data it knows what a process knows.

References:
    Efron & Tibshirani (1993), An Introduction to the Bootstrap, sections 6.5 (parametric) and 18.3 (calibration).
    Beran (1987), Prepivoting to Reduce Level Error of Confidence Sets, https://doi.org/10.1093/biomet/74.3.457.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyrodrop.checks import shown
from pyrodrop.data import Dataset
from pyrodrop.devices import seeded
from pyrodrop.likelihoods import Categorical
from pyrodrop.models.network import NetworkModel
from pyrodrop.priors.labels import laplace
from pyrodrop.training.certificate import POINTS, REGIONS, Certificate, Held, Regions
from pyrodrop.training.reasons import collected
from pyrodrop.training.replicates import Replicates, fit_replicates
from pyrodrop.training.result import rows_of
from pyrodrop.training.settings import TrainingOptions
from pyrodrop.training.worth import LENGTHS, RATIOS, REAL, Kernel, Spectrum, evenly, of_numbers

_OPTIONS = [*TrainingOptions.__annotations__]
_DRAWS = 200  # of every refit, and of rows left out
_ROWS, _FEWEST, _CLASSES = 500, 20, 10  # most and fewest rows that a process is conditioned on; most classes
_SIZES, _JITTER = (1.0, 2.0, 4.0, 8.0), 1e-6  # standard deviations of logits


def of_fit(fit: Any, refits: int, level: float, seed: int) -> Certificate:
    """The certificate of a fit; `Fit.certify` describes the arguments and errors."""
    if not isinstance(fit.model, NetworkModel):
        raise TypeError(f"certify needs a network with bands of f; got a fit of {shown(fit.model)}")
    data = rows_of(fit, "certify")
    if data is None or fit.options is None:
        raise ValueError(
            "certify trains again: it needs the training data and settings, which a loaded fit does not have"
        )
    x, likelihood = data.x, fit.model.likelihood
    if likelihood.anew() is likelihood and next(likelihood.parameters(), None) is not None:
        raise ValueError(
            "certify trains again from the start, which needs a likelihood of this package; got "
            f"{likelihood.describe()}"
        )
    rows = evenly(len(data), POINTS)
    points = data.rows(rows).x
    with seeded(seed, fit.device):
        predictor = best_predictor(fit, likelihood, data, seed)
        regions = Regions.of(x, predictor.length) if _is_table(x) else None
        if regions is not None:
            points = torch.cat([points, regions.beyond(x)])
        f, y, again = predictor.simulated(data, points, refits)
    place = torch.zeros(f.shape[1]).long() if regions is None else regions(points)
    of_labels = isinstance(likelihood, Categorical)
    found = []
    fits = _refitted(fit, [data.with_values(y=each) for each in y], seed)
    for r in sorted(set(range(refits)) - fits.failed.keys()):
        predicted = fits[r].predict(points, _DRAWS, seed=seed + r)
        bands = _bands(predicted.f.double(), f[r].double(), level, of_labels)
        found.append((*bands, torch.empty(0, len(f[r])) if of_labels else _of_y(predicted, again[r, rows], level)))
    each = [torch.stack(values) for values in zip(*found, strict=True)]
    numbers = [number for number in range(len(REGIONS)) if bool((place == number).any())]
    held = {REGIONS[number]: _held(place == number, number, level, *each) for number in numbers}
    return Certificate(level, len(found), predictor.by, held, f.shape[-1], regions)


def _is_table(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dim() == 2 and x.is_floating_point()


def _refitted(fit: Any, sets: list[Dataset], seed: int) -> Replicates:
    """The same training on every data set, from new initial weights."""
    options: Any = {name: getattr(fit.options, name) for name in _OPTIONS} | {"seed": seed + 1, "starts": "new"}
    if options["engine"] == "pyro":
        options["engine"] = "traced"
    with collected():
        return fit_replicates(fit.model, fit.guide, sets, count=len(sets), steps=len(fit.history), **options)


def _bands(draws: Tensor, truth: Tensor, level: float, of_labels: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Whether bands of draws ``[S, P, D]`` hold the truth, the factor that it takes, and the error of the mean."""
    if of_labels:
        draws, truth = _log_odds(draws), _log_odds(truth)
    low, high = torch.quantile(draws, torch.tensor([(1 - level) / 2, (1 + level) / 2]).to(draws), dim=0)
    error = truth - draws.mean(0)
    reach = torch.where(error > 0, high - draws.mean(0), draws.mean(0) - low).clamp(min=1e-300)
    return (truth >= low) & (truth <= high), error.abs() / reach, error


def _log_odds(logits: Tensor) -> Tensor:
    """ln p_c - ln (1 - p_c) of each class ``[..., C]``."""
    log_p = logits.log_softmax(-1)
    return log_p - torch.log1p(-log_p.exp().clamp(max=1 - 1e-12))


def _of_y(predicted: Any, y: Tensor, level: float) -> Tensor:
    """Whether intervals at the first points hold y ``[n, ...]``."""
    low, high = (end[: len(y)] for end in predicted.interval(level))
    return (y.reshape(low.shape) >= low) & (y.reshape(low.shape) <= high)


def _held(here: Tensor, number: int, level: float, inside: Tensor, reach: Tensor, error: Tensor, of_y: Tensor) -> Held:
    """What was found at the points `here` of a region."""
    by_set = inside[:, here].double().flatten(1).mean(1)
    off, known = error[:, here], of_y.numel() > 0 and number < 2
    return Held(
        coverage=float(by_set.mean()),
        error=float(by_set.std() / math.sqrt(len(by_set))),
        of_y=float(of_y[:, here[: of_y.shape[1]]].double().mean()) if known else math.nan,
        factor=float(reach[:, here].flatten().quantile(level)),
        centre=float(off.mean(0).square().mean() / off.square().mean()),
    )


class Simulated(NamedTuple):
    """R functions at some points, and two data sets of each at the training rows.

    Attributes:
        f: ``[R, P, D]`` in the units of `Prediction.f`.
        y, again: ``[R, N, ...]``, as y of the data; they differ by their noise.
    """

    f: Tensor
    y: Tensor
    again: Tensor


def best_predictor(fit: Any, likelihood: Any, data: Dataset, seed: int) -> Any:
    """The process, if it predicts rows of y better than the fit does, each from the others; otherwise the fit."""
    x, y, process = data.x, data.y, None
    if _is_table(x) and len(x) >= _FEWEST and bool((y == y).all()) and not bool((y == y[0]).all()):
        if isinstance(likelihood, REAL):
            process = OfNumbers(x, y)
        elif isinstance(likelihood, Categorical) and y.dim() == 1 and int(y.max()) < _CLASSES:
            process = OfLabels(x, y, 1 + int(y.max()))
    rows = data.rows(evenly(len(data), _ROWS))
    predicted = fit.predict(rows.x, _DRAWS, seed=seed).distribution
    each = predicted.log_prob(rows.y.reshape(predicted.batch_shape[1:] + predicted.event_shape)).double()
    if process is not None and process.density > _left_out(each):
        return process
    return OfFit(fit, seed, 0.5 if process is None else process.length)


def _left_out(each: Tensor) -> float:
    """The mean over rows, each left out by importance, of log densities ``[S, N]``."""
    return float((math.log(len(each)) - torch.logsumexp(-each, 0)).mean())


class OfFit:
    """The fit itself as the predictor; `length` is that of the kernel of regions."""

    by = "fit"

    def __init__(self, fit: Any, seed: int, length: float) -> None:
        self.fit, self.seed, self.length = fit, seed, length

    def simulated(self, data: Dataset, points: Tensor, count: int) -> Simulated:
        """Draws of the fit at both are the same functions, since their seed is."""
        at_rows, f = (self.fit.predict(x, count, seed=self.seed) for x in (data.x, points))
        y, again = (at_rows.distribution.expand((len(f.f), len(data))).sample() for _ in range(2))
        return Simulated(f.f, *(each.reshape(-1, *data.y.shape).to(data.y) for each in (y, again)))


class OfNumbers:
    """A process given rows of real y, with the kernel and the noise of the largest leave-one-out density.

    Attributes:
        density: mean log density of a row given the others.
        kernel: K.
        length: of regions; 1 if K is linear.
    """

    by = "Gaussian process"
    size: Any

    def __init__(self, x: Tensor, y: Tensor) -> None:
        few = evenly(len(x), _ROWS)
        self.rows, y = x[few], y[few].detach().cpu().double().reshape(len(few), -1)
        self.loc, self.unit, self.density = y.mean(0), y.std(0, correction=0).clamp(min=1e-300), -math.inf
        target = (y - self.loc) / self.unit
        for length in (None, *LENGTHS):
            kernel = Kernel.of(x, length)
            k = kernel(self.rows, self.rows)
            each, s, _ = of_numbers(Spectrum(*torch.linalg.eigh(k)), target)
            densities = each.mean(0) - self.unit.log().sum()
            if (density := float(densities.max())) > self.density:
                best = int(densities.argmax())
                self.density, self.kernel, self.length = density, kernel, length or 1.0
                self.size, self.noise = s[best].sqrt(), (s[best] * RATIOS[best]).sqrt()
                self.inner = torch.linalg.inv(k + RATIOS[best] * torch.eye(len(k)).double())
        self.dual = self.inner @ target

    def simulated(self, data: Dataset, points: Tensor, count: int) -> Simulated:
        """Functions are drawn at the rows of the process and at points, and between these the smoothest are taken."""
        at = torch.cat([self.rows, points.to(self.rows)])
        prior = self.kernel(at, at)
        w, u = torch.linalg.eigh(prior + _JITTER * torch.eye(len(at)).to(prior))
        weights = (u / w) @ (u.T @ self.drawn(at, prior, count))
        f, at_rows = (self.loc + self.unit * (self.kernel(x, at) @ weights) for x in (points, data.x))
        return Simulated(f, *(self.observed(at_rows).reshape(count, *data.y.shape).to(data.y) for _ in range(2)))

    def drawn(self, at: Tensor, prior: Tensor, count: int) -> Tensor:
        """Values of functions at rows `at`, ``[count, V, D]``; `prior` is K of these."""
        across = self.kernel(at, self.rows)
        root = _root(prior - across @ self.inner @ across.T)
        return across @ self.dual + root @ torch.randn(count, len(at), len(self.size)).double() * self.size

    def observed(self, f: Tensor) -> Tensor:
        """y of functions."""
        return f + self.unit * self.noise * torch.randn_like(f)


class OfLabels(OfNumbers):
    """The process of the logits of class labels, with the kernel of the largest evidence."""

    loc: Any = 0.0
    unit: Any = 1.0

    def __init__(self, x: Tensor, y: Tensor, classes: int) -> None:
        few = evenly(len(x), _ROWS // classes)
        self.rows, y, best = x[few], y[few].detach().cpu(), -math.inf
        for length in (None, *LENGTHS):
            kernel = Kernel.of(x, length)
            k = kernel(self.rows, self.rows)
            for size in _SIZES:
                mode = laplace(size**2 * k + _JITTER * torch.eye(len(y)), y, classes)
                if mode.evidence > best:
                    best, self.kernel, self.length = float(mode.evidence), kernel, length or 1.0
                    self.mode, self.size, whole = mode, size, torch.kron(torch.eye(classes).double(), size**2 * k)
        p, n = self.mode.f.softmax(1), len(y)
        block = torch.diag_embed(p.sqrt()) - p[:, :, None] * p.sqrt()[:, None]  # S of every row
        s = (block[:, :, None] * torch.eye(n).double()[:, None, :, None]).transpose(0, 1).reshape(classes * n, -1)
        self.inner = s @ torch.linalg.solve(torch.eye(len(s)).double() + s.T @ whole @ s, s.T)
        logits = self.drawn(self.rows, self.kernel(self.rows, self.rows), _DRAWS)
        self.density = _left_out(logits.log_softmax(-1).gather(-1, y.expand(_DRAWS, -1)[..., None])[..., 0])

    def drawn(self, at: Tensor, prior: Tensor, count: int) -> Tensor:
        across, eye = self.size**2 * self.kernel(at, self.rows), torch.eye(self.mode.f.shape[1]).double()
        wide = torch.kron(eye, across)
        root = _root(torch.kron(eye, self.size**2 * prior) - wide @ self.inner @ wide.T)
        drawn = root @ torch.randn(count, len(root), 1).double()
        return across @ self.mode.dual + drawn.reshape(count, -1, len(at)).mT

    def observed(self, f: Tensor) -> Tensor:
        return torch.distributions.Categorical(logits=f).sample()


def _root(covariance: Tensor) -> Tensor:
    """R with R R' = the covariance, which rounding may have left indefinite."""
    w, u = torch.linalg.eigh(covariance)
    return u * w.clamp(min=0).sqrt()
