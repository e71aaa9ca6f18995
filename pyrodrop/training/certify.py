"""Whether the bands of a fit hold: many data sets from the best predictor known, and the same fit of each of them.

    f_r ~ p(f | x, y),   y_r ~ p(y | f_r)          r = 1 ... R, at the training x: a parametric bootstrap
    q_r = the same training on (x, y_r)            all at once, as `pyrodrop.fit_replicates`
    stated coverage = mean over r and points of 1[f_r in the central interval of q_r]

p(f | x, y) is not the fit's own unless nothing predicts better: a fit that is too smooth draws functions that it can
follow, and would certify itself. It is that of a Gaussian process with the kernel 1 + x x' or 1 + exp(-|x - x'|^2 / 2 D l^2)
and the noise that predict each row best from the others (Rasmussen & Williams 2006, http://gaussianprocess.org/gpml, eq. 5.12;
of class labels the Laplace evidence, section 3.5), or of the fit, whose rows are left out by importance:
p(y_n | others) = 1 / mean_s 1 / p(y_n | f_s).

Regions: v(x) is the variance of a Gaussian process at x given the training x. Inside: v is at most that at nine tenths of the
training rows; edge: at most the largest there; beyond: larger. In each, the factor c for which

    m + c (f_s - m),   m = mean_s f_s

has bands that hold f_r with the nominal probability, is the quantile of |f_r - m| / |end of the band - m|.

References:
    Efron & Tibshirani (1993), An Introduction to the Bootstrap, chapter 6.5 (parametric) and 18 (calibrated intervals).
    Beran (1987), Prepivoting to reduce level error of confidence sets, https://doi.org/10.1093/biomet/74.3.457.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyrodrop.data import Dataset
from pyrodrop.devices import seeded
from pyrodrop.inputs import num_rows
from pyrodrop.likelihoods import Categorical
from pyrodrop.priors.labels import laplace
from pyrodrop.training.replicates import fit_replicates
from pyrodrop.training.worth import collected

REGIONS = ("inside", "edge", "beyond")
_ROWS, _FEWEST, _POINTS, _DRAWS = 500, 20, 200, 200
_LENGTHS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
_RATIOS = torch.logspace(-5, 2, 22, dtype=torch.float64)
_SIZES = (0.5, 1.0, 2.0, 4.0, 8.0)  # standard deviations of logits
_JITTER, _NEAR = 1e-8, 0.01


class Regions:
    """Which region a row is in, by the variance of a process given rows of the training data.

    Args:
        x: training rows ``[N, D]``.
        length: l of its kernel, in units of the standard deviation of a column times sqrt(D).
    """

    def __init__(self, x: Tensor, length: float) -> None:
        x = x.detach().cpu().double()
        self.middle, self.scale = x.mean(0), x.std(0, correction=0).clamp(min=1e-12) * math.sqrt(x.shape[1])
        self.length, few = length, torch.linspace(0, len(x) - 1, min(len(x), _ROWS)).long()
        self.rows = self._units(x[few])
        kernel = self.kernel(self.rows, self.rows)
        self.factor = torch.linalg.cholesky(kernel + _NEAR * torch.eye(len(kernel)).double())
        there = self.variance(x)
        self.limits = torch.stack([there.quantile(0.9), there.max()])

    def _units(self, x: Tensor) -> Tensor:
        return (x - self.middle) / self.scale

    def kernel(self, first: Tensor, second: Tensor) -> Tensor:
        return torch.exp(-torch.cdist(first, second).square() / (2 * self.length**2))

    def variance(self, x: Tensor) -> Tensor:
        """v(x) of rows ``[N, D]``."""
        across = self.kernel(self.rows, self._units(x.detach().cpu().double()))
        return 1 - torch.linalg.solve_triangular(self.factor, across, upper=False).square().sum(0)

    def __call__(self, x: Tensor) -> Tensor:
        """The number of the region of every row, ``[N]``."""
        return (self.variance(x)[:, None] > self.limits * (1 + 1e-9)).sum(1)


@dataclass(frozen=True)
class Held:
    """What was found in a region.

    Attributes:
        coverage: share of points and data sets at which the band of f holds the f that made the data.
        error: standard error of it, from the differences between data sets.
        factor: by which draws are moved from their mean in ``predict(..., certified=True)``.
        of_y: the same share of intervals of new y, at training x; None for class labels and beyond the data.
    """

    coverage: float
    error: float
    factor: float
    of_y: float | None


@dataclass(frozen=True, repr=False)
class Certificate:
    """Whether the bands of a fit hold, as `Fit.certify` found. Printing it shows a table.

    Attributes:
        level: nominal probability of the bands.
        refits: number of data sets.
        by: what drew the functions: ``"Gaussian process"`` or ``"fit"``.
        held: what was found, by the name of the region.
        regions: which region a row is in; None if x is no table of real numbers: then all rows are inside.
    """

    level: float
    refits: int
    by: str
    held: dict[str, Held]
    regions: Regions | None

    def widened(self, f: Tensor, x: Any) -> Tensor:
        """Draws ``[S, N, ...]``, moved from their mean by the factor of the region of each row of x."""
        factors = torch.tensor([self.held[name].factor if name in self.held else 1.0 for name in REGIONS])
        at = torch.zeros(f.shape[1], dtype=torch.long) if self.regions is None else self.regions(x)
        by_row = factors.to(f)[at.to(f.device)].reshape(-1, *(1,) * (f.dim() - 2))
        mean = f.mean(0)
        return mean + by_row * (f - mean)

    def __repr__(self) -> str:
        lines = [f"Bands of {self.level:.0%} in {self.refits} refits, to functions of the {self.by}"]
        for name, held in self.held.items():
            y = "" if held.of_y is None else f", y in {held.of_y:.0%} of its intervals"
            lines.append(
                f"  {name:7} f in {held.coverage:.0%} of its bands (s.e. {held.error:.0%}){y}; factor {held.factor:.2g}"
            )
        return "\n".join(lines)


class _Functions:
    """Functions and data sets that the fit is asked to find again: f ``[R, P, D]`` and y ``[R, N, ...]``.

    Attributes:
        by: what drew them.
        length: length scale of the process, for the regions.
    """

    by: str
    length: float

    def __init__(self, fit: Any, data: Dataset, points: Any, count: int, seed: int) -> None:
        raise NotImplementedError


def certificate(fit: Any, refits: int, level: float, seed: int) -> Certificate:
    data = fit.data
    x = data.x
    table = isinstance(x, Tensor) and x.dim() == 2 and x.is_floating_point()
    rows = torch.linspace(0, len(data) - 1, min(len(data), _POINTS)).long()
    with seeded(seed, torch.device("cpu")):
        process = _process(fit, data) if table and len(data) >= _FEWEST else None
        length = 0.5 if process is None else process.length
        regions = Regions(x, length) if table else None
        points = data.rows(rows).x
        if regions is not None:
            points = torch.cat([points, _beyond(x, regions)])
        if process is not None and process.density < left_out_density(fit, data, seed):
            process = None
        if process is None:
            by, (f, y, fresh) = "fit", _of_fit(fit, data, points, rows, refits, seed)
        else:
            by, (f, y, fresh) = "Gaussian process", process.draw(x, points, rows, refits)
    return _held(fit, data, f, y, fresh, points, regions, by, level, seed)


def _held(fit, data, f, y, fresh, points, regions, by, level, seed) -> Certificate:
    place = torch.zeros(f.shape[1]).long() if regions is None else regions(points)
    fits = refitted(fit, [data.with_values(y=each) for each in y], seed)
    inside, needed, of_y, numbers = [], [], [], []
    for r, one in enumerate(fits):
        if r in fits.failed:
            continue
        predicted = one.predict(points, _DRAWS, seed=seed + r)
        a, b = _held_by(predicted, f[r], level, isinstance(fit.model.likelihood, Categorical))
        inside.append(a), needed.append(b)
        if fresh is not None:
            n = fresh.shape[1]
            seen = one.predict(points[:n], _DRAWS, seed=seed + r)
            lo, hi = seen.interval(level)
            new = fresh[r].reshape(lo.shape)
            of_y.append((new >= lo) & (new <= hi))
    inside, needed = torch.stack(inside), torch.stack(needed)
    held = {}
    for number, name in enumerate(REGIONS):
        at = place == number
        if not at.any():
            continue
        each = inside[:, at].double().flatten(1).mean(1)
        oy = None
        if of_y and number < 2:
            oy = float(torch.stack(of_y)[:, at[: of_y[0].shape[0]]].double().mean())
        held[name] = Held(
            float(each.mean()), float(each.std() / math.sqrt(len(each))), float(needed[:, at].flatten().quantile(level)), oy
        )
    return Certificate(level, len(inside), by, held, regions)


def _held_by(predicted: Any, truth: Tensor, level: float, labels: bool) -> tuple[Tensor, Tensor]:
    draws = predicted.f.double()
    truth = truth.double()
    if labels:
        draws, truth = _log_odds(draws), _log_odds(truth)
    q = torch.tensor([(1 - level) / 2, (1 + level) / 2]).double()
    low, high = torch.quantile(draws, q, dim=0)
    mean = draws.mean(0)
    reach = torch.where(truth > mean, high - mean, mean - low)
    return (truth >= low) & (truth <= high), (truth - mean).abs() / reach.clamp(min=1e-300)


def _log_odds(logits: Tensor) -> Tensor:
    """ln p_c - ln (1 - p_c) of each class ``[..., C]``."""
    log_p = logits.log_softmax(-1)
    return log_p - torch.log1p(-log_p.exp().clamp(max=1 - 1e-12))


def refitted(fit: Any, sets: Sequence[Dataset], seed: int) -> Any:
    settings = fit.trained
    options = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    options |= {"seed": seed + 1, "starts": "new", "engine": "auto" if settings.engine == "pyro" else settings.engine}
    with collected():
        return fit_replicates(fit.model, fit.guide, list(sets), count=len(sets), **options)


def _beyond(x: Tensor, regions: Regions) -> Tensor:
    """Rows beyond the data ``[B, D]``: those of the edge, moved away from the middle of all rows."""
    x = x.detach()
    middle = x.mean(0)
    edge = x[regions(x) >= 1]
    away = torch.cat([middle + by * (edge - middle) for by in (1.1, 1.25, 1.5)])
    away = away[regions(away) == 2]
    return away[torch.linspace(0, len(away) - 1, min(len(away), _POINTS // 2)).long()] if len(away) else away


def left_out_density(fit: Any, data: Dataset, seed: int) -> float:
    rows = data.rows(torch.linspace(0, len(data) - 1, min(len(data), _ROWS)).long())
    exact = getattr(fit.guide, "left_out", None)
    predicted = fit.predict(rows.x, _DRAWS, seed=seed)
    y = predicted._aligned(rows.y)
    each = predicted.distribution.log_prob(y).double()  # [S, N]
    return float((math.log(len(each)) - torch.logsumexp(-each, 0)).mean())


def _of_fit(fit, data, points, rows, count, seed):
    every = fit.predict(data.x, count, seed=seed)
    at = fit.predict(points, count, seed=seed)
    y = every.distribution.sample().to(data.y.dtype).reshape(count, *data.y.shape)
    fresh = None if isinstance(fit.model.likelihood, Categorical) else every.distribution.sample()[:, rows]
    return at.f, y, fresh


def _process(fit, data):
    from pyrodrop.likelihoods import Gaussian, HeteroscedasticGaussian, StudentT

    if isinstance(fit.model.likelihood, Gaussian | HeteroscedasticGaussian | StudentT):
        return RealProcess(data)
    if isinstance(fit.model.likelihood, Categorical) and data.y.dim() == 1:
        return LabelProcess(data, fit)
    return None


class _Kernel:
    """1 + x x' (length None) or 1 + exp(-|x - x'|^2 / 2 l^2), in units of Regions."""

    def __init__(self, x: Tensor, length: float | None) -> None:
        x = x.detach().cpu().double()
        self.middle, self.scale = x.mean(0), x.std(0, correction=0).clamp(min=1e-12) * math.sqrt(x.shape[1])
        self.length = length

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = ((each.detach().cpu().double() - self.middle) / self.scale for each in (a, b))
        if self.length is None:
            return 1 + a @ b.T
        return 1 + torch.exp(-torch.cdist(a, b).square() / (2 * self.length**2))


def _sampled(mean, cov, count):
    w, u = torch.linalg.eigh(cov)
    return mean + torch.einsum("ij,rj...->ri...", u * w.clamp(min=0).sqrt(), torch.randn(count, *mean.shape, dtype=mean.dtype))


class RealProcess:
    def __init__(self, data):
        x, y = data.x.detach().cpu().double(), data.y.detach().cpu().double().reshape(len(data), -1)
        few = torch.linspace(0, len(x) - 1, min(len(x), _ROWS)).long()
        self.rows, y = x[few], y[few]
        self.loc, self.unit = y.mean(0), y.std(0, correction=0).clamp(min=1e-300)
        t = (y - self.loc) / self.unit
        self.density = -math.inf
        for length in (None, *_LENGTHS):
            kernel = _Kernel(x, length)
            k = kernel(self.rows, self.rows)
            w, u = torch.linalg.eigh(k)
            w = w.clamp(min=0)
            for r in _RATIOS.tolist():
                inverse = (u / (w + r)) @ u.T
                solved, diagonal = inverse @ t, inverse.diagonal()[:, None]
                off = solved / diagonal
                s = (off.square() * diagonal).mean(0).clamp(min=1e-20)
                density = float((torch.distributions.Normal(0, (s / diagonal).sqrt()).log_prob(off) - self.unit.log()).sum(1).mean())
                if density > self.density:
                    self.density, self.kernel, self.k, self.r, self.s, self.solved, self.inverse = density, kernel, k, r, s, solved, inverse
        self.length = self.kernel.length or 1.0

    def draw(self, x, points, rows, count):
        at = torch.cat([self.rows, points[len(rows):].cpu().double()])
        across, prior = self.kernel(at, self.rows), self.kernel(at, at)
        mean = across @ self.solved
        cov = prior - across @ self.inverse @ across.T
        drawn = _sampled(mean / self.s.sqrt(), cov, count) * self.s.sqrt()
        # elsewhere: the function through these values
        w, u = torch.linalg.eigh(prior + 1e-6 * torch.eye(len(at)).double())
        weights = torch.einsum("ij,rjd->rid", (u / w) @ u.T, drawn)
        def values(z):
            return self.loc + self.unit * torch.einsum("ij,rjd->rid", self.kernel(z, at), weights)
        f = values(x)
        sd = self.unit * (self.s * self.r).sqrt()
        y, fresh = (f + sd * torch.randn_like(f) for _ in range(2))
        print('process', self.kernel.length, self.r, 'sd', sd, 'dens', self.density)
        return values(points), y.to(x.dtype), fresh[:, rows]
