"""Functions that could have made the data, and data sets that they would have made, by the best predictor there is.

    f_r ~ p(f | x, y),   y_r ~ p(y | f_r)          r = 1 ... R

of a Gaussian process with covariance K = 1 + phi phi' or 1 + exp(-|x - x'|^2 / (2 D l^2)), all D columns standardised, or of
the fit itself, whichever predicts rows better from the others:

    process, real y     f ~ N(k' A^-1 y, s (k** - k' A^-1 k)),   A = K + r I,   noise s r;  K, r, s of the largest
                        leave-one-out density (Rasmussen & Williams 2006, http://gaussianprocess.org/gpml, eq. 5.10 to 5.12)
    process, labels     f ~ N(k' K^-1 F, k** - k' S (I + S' K S)^-1 S' k),   F the mode, S S' = W = diag p - p p', one kernel
                        for the logits of all classes; K of the largest Laplace evidence (section 3.5)
    rows left out       p(y_n | others) = 1 / mean_s 1 / p(y_n | f_s),   of labels and of the fit

A fit that is too smooth predicts worse than such a process, and is not asked what the functions are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.distributions import Normal

from pyrodrop.data import Dataset
from pyrodrop.likelihoods import Categorical, Gaussian, HeteroscedasticGaussian, StudentT
from pyrodrop.priors.labels import laplace

_ROWS, _FEWEST = 500, 20  # most and fewest rows that a process is conditioned on
_LOGITS, _CLASSES = 500, 10  # rows of labels times classes
_LENGTHS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
_RATIOS = torch.logspace(-5, 2, 22, dtype=torch.float64)
_SIZES = (1.0, 2.0, 4.0, 8.0)  # standard deviations of logits
_DRAWS, _JITTER = 200, 1e-6
USUAL = 0.5  # length scale where no process is fitted


class Simulated(NamedTuple):
    """R functions at some points, and two data sets of each at the training rows.

    Attributes:
        f: ``[R, P, D]`` in the units of `Prediction.f`.
        y, again: ``[R, N, ...]``, as y of the data; they differ by their noise.
    """

    f: Tensor
    y: Tensor
    again: Tensor


class Predictor(Protocol):
    """What functions are drawn from: `by`, its name, and `length`, the length scale of its kernel."""

    by: str
    length: float

    def simulated(self, data: Dataset, points: Tensor, count: int) -> Simulated:
        """`count` functions at the training rows and at points."""


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


def best_predictor(posterior: Any, likelihood: Any, data: Dataset, seed: int) -> Predictor:
    """The process, if it predicts rows of y better than the fit does, each from the others; otherwise the fit.

    Args:
        posterior: the fit, whose ``predict`` is called.
        likelihood: of its model.
        data: the training data.
        seed: of draws of the fit.
    """
    process = _process(likelihood, data)
    if process is not None and process.density > _of_rows_left_out(posterior, data, seed):
        return process
    return _OfFit(posterior, seed, USUAL if process is None else process.length)


class _OfFit:
    """The fit itself."""

    by = "fit"

    def __init__(self, posterior: Any, seed: int, length: float) -> None:
        self.posterior, self.seed, self.length = posterior, seed, length

    def simulated(self, data: Dataset, points: Tensor, count: int) -> Simulated:
        """Draws of the fit at both are the same functions, since their seed is."""
        at_rows, f = (self.posterior.predict(x, count, seed=self.seed) for x in (data.x, points))
        y, again = (at_rows.distribution.expand((len(f.f), len(data))).sample() for _ in range(2))
        return Simulated(f.f, *(each.reshape(-1, *data.y.shape).to(data.y) for each in (y, again)))


def _process(likelihood: Any, data: Dataset) -> _Process | None:
    """The process of a table with real y or class labels."""
    x, y = data.x, data.y
    table = isinstance(x, Tensor) and x.dim() == 2 and x.is_floating_point() and len(x) >= _FEWEST
    if not table or not bool((y == y).all()) or bool((y == y[0]).all()):
        return None
    if isinstance(likelihood, Gaussian | HeteroscedasticGaussian | StudentT):
        return _OfNumbers(x, y)
    if not isinstance(likelihood, Categorical) or y.dim() > 1 or (classes := 1 + int(y.max())) > _CLASSES:
        return None
    return _OfLabels(x, y, classes)


def _of_rows_left_out(posterior: Any, data: Dataset, seed: int) -> float:
    """The mean log density of rows of y, each left out by importance."""
    rows = data.rows(_evenly(len(data), _ROWS))
    predicted = posterior.predict(rows.x, _DRAWS, seed=seed)
    y = rows.y.reshape(predicted.distribution.batch_shape[1:] + predicted.distribution.event_shape)
    return _left_out(predicted.distribution.log_prob(y).double())


def _left_out(each: Tensor) -> float:
    """The mean over rows, of log densities ``[S, N]``."""
    return float((math.log(len(each)) - torch.logsumexp(-each, 0)).mean())


def _evenly(rows: int, most: int) -> Tensor:
    return torch.linspace(0, rows - 1, min(rows, most)).long()


class _Process:
    """A process given rows of the data.

    Attributes:
        density: mean log density of a row given the others.
        length: l of its kernel; 1 if that is linear.
    """

    by = "Gaussian process"
    density = -math.inf
    kernel: Kernel
    length: float

    def __init__(self, x: Tensor, y: Tensor, most: int) -> None:
        few = _evenly(len(x), most)
        self.rows, self.y = x[few], y[few].detach().cpu()
        self.kernels = [Kernel.of(x, length) for length in (None, *_LENGTHS)]

    def simulated(self, data: Dataset, points: Tensor, count: int) -> Simulated:
        """Functions are drawn at the rows of the process and at points, and between these the smoothest are taken."""
        at = torch.cat([self.rows, points.to(self.rows)])
        prior = self.kernel(at, at)
        w, u = torch.linalg.eigh(prior + _JITTER * torch.eye(len(at)).to(prior))
        weights = (u / w) @ (u.T @ self.drawn(at, prior, count))
        f, at_rows = (self.in_units(self.kernel(x, at) @ weights) for x in (points, data.x))
        return Simulated(f, *(self.observed(at_rows).reshape(count, *data.y.shape).to(data.y) for _ in range(2)))

    def in_units(self, f: Tensor) -> Tensor:
        """Functions in the units of `Prediction.f`."""
        return f

    def drawn(self, at: Tensor, prior: Tensor, count: int) -> Tensor:
        """Values of functions at rows `at`, ``[count, V, ...]``; `prior` is K of these."""
        raise NotImplementedError

    def observed(self, f: Tensor) -> Tensor:
        """y of functions."""
        raise NotImplementedError


class _OfNumbers(_Process):
    """The process of real y, with the kernel and the noise of the largest leave-one-out density."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        super().__init__(x, y, _ROWS)
        y = self.y.double().reshape(len(self.y), -1)
        self.loc, self.unit = y.mean(0), y.std(0, correction=0).clamp(min=1e-300)
        target = (y - self.loc) / self.unit
        for kernel in self.kernels:
            w, u = torch.linalg.eigh(kernel(self.rows, self.rows))
            for ratio in _RATIOS:
                inverse = (u / (w.clamp(min=0) + ratio)) @ u.T
                precision = inverse.diagonal()[:, None]
                off = inverse @ target / precision
                s = (off.square() * precision).mean(0).clamp(min=1e-20)
                density = float((Normal(0.0, (s / precision).sqrt()).log_prob(off) - self.unit.log()).sum(1).mean())
                if density > self.density:
                    self.density, self.kernel, self.length = density, kernel, kernel.length or 1.0
                    self.inverse, self.dual = inverse, inverse @ target
                    self.size, self.noise = s.sqrt(), (s * ratio).sqrt()

    def drawn(self, at: Tensor, prior: Tensor, count: int) -> Tensor:
        across = self.kernel(at, self.rows)
        root = _root(prior - across @ self.inverse @ across.T)
        return across @ self.dual + root @ torch.randn(count, len(at), len(self.size)).double() * self.size

    def in_units(self, f: Tensor) -> Tensor:
        return self.loc + self.unit * f

    def observed(self, f: Tensor) -> Tensor:
        return f + self.unit * self.noise * torch.randn_like(f)


class _OfLabels(_Process):
    """The process of the logits of class labels, with the kernel of the largest evidence."""

    def __init__(self, x: Tensor, y: Tensor, classes: int) -> None:
        super().__init__(x, y, _LOGITS // classes)
        best, self.classes = -math.inf, classes
        for kernel in self.kernels:
            for size in _SIZES:
                mode = laplace(
                    size**2 * kernel(self.rows, self.rows) + _JITTER * torch.eye(len(self.y)), self.y, classes
                )
                if mode.evidence > best:
                    best, self.kernel, self.length = float(mode.evidence), kernel, kernel.length or 1.0
                    self.mode, self.size = mode, size
        logits = self.drawn(self.rows, self.kernel(self.rows, self.rows), _DRAWS)
        self.density = _left_out(logits.log_softmax(-1).gather(-1, self.y.expand(_DRAWS, -1)[..., None])[..., 0])

    def drawn(self, at: Tensor, prior: Tensor, count: int) -> Tensor:
        across, n, eye = self.size**2 * self.kernel(at, self.rows), len(self.rows), torch.eye(self.classes).double()
        p = self.mode.f.softmax(1)
        block = torch.diag_embed(p.sqrt()) - p[:, :, None] * p.sqrt()[:, None]  # S of every row
        s = (block[:, :, None] * torch.eye(n).double()[:, None, :, None]).transpose(0, 1).reshape(self.classes * n, -1)
        k = torch.kron(eye, self.size**2 * self.kernel(self.rows, self.rows))
        inner = s @ torch.linalg.solve(torch.eye(len(s)).double() + s.T @ k @ s, s.T)
        wide = torch.kron(eye, across)
        root = _root(torch.kron(eye, self.size**2 * prior) - wide @ inner @ wide.T)
        drawn = root @ torch.randn(count, len(root), 1).double()
        return across @ self.mode.dual + drawn.reshape(count, self.classes, len(at)).mT

    def observed(self, f: Tensor) -> Tensor:
        return torch.distributions.Categorical(logits=f).sample()


def _root(covariance: Tensor) -> Tensor:
    """R with R R' = the covariance, which rounding may have left indefinite."""
    w, u = torch.linalg.eigh(covariance)
    return u * w.clamp(min=0).sqrt()
