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
from collections.abc import Callable
from typing import Any, NamedTuple

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
    """R functions at some points, and data sets at the training rows.

    Attributes:
        by: ``"Gaussian process"`` or ``"fit"``.
        f: ``[R, P, D]`` in the units of `Prediction.f`.
        y: ``[R, N, ...]``, as y of the data.
        length: l of the kernel.
    """

    by: str
    f: Tensor
    y: Tensor
    length: float


class Kernel:
    """K between rows ``[N, D]``, in units of these rows; linear if `length` is None."""

    def __init__(self, rows: Tensor, length: float | None) -> None:
        rows = rows.detach().cpu().double()
        self.middle, self.length = rows.mean(0), length
        self.scale = rows.std(0, correction=0).clamp(min=1e-12) * math.sqrt(rows.shape[1])

    def __call__(self, first: Tensor, second: Tensor) -> Tensor:
        a, b = ((rows.detach().cpu().double() - self.middle) / self.scale for rows in (first, second))
        if self.length is None:
            return 1 + a @ b.T
        return 1 + torch.exp(-torch.cdist(a, b).square() / (2 * self.length**2))


def simulated(posterior: Any, likelihood: Any, data: Dataset, points: Tensor, count: int, seed: int) -> Simulated:
    """Functions and data sets of the best predictor.

    Args:
        posterior: the fit, whose ``predict`` is called.
        likelihood: of its model.
        data: the training data.
        points: rows ``[P, ...]`` at which functions are wanted.
        count: R.
        seed: of the functions of the fit; the process draws from torch's generator.
    """
    process = _process(likelihood, data)
    if process is not None and process.density > _of_rows_left_out(posterior, data, seed):
        functions = process.functions(points, count)
        y = process.observed(functions(data.x)).reshape(count, *data.y.shape).to(data.y)
        return Simulated("Gaussian process", functions(points), y, process.length)
    drawn = posterior.predict(data.x, count, seed=seed).distribution.sample()
    y = drawn.expand(count, *drawn.shape[1:]).reshape(count, *data.y.shape).to(data.y)
    f = posterior.predict(points, count, seed=seed).f
    return Simulated("fit", f, y, USUAL if process is None else process.length)


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
    y = rows.y if isinstance(predicted.distribution, Categorical) else rows.y.reshape(predicted.distribution.batch_shape[1:] + predicted.distribution.event_shape)
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

    density = -math.inf
    kernel: Kernel
    length: float

    def __init__(self, x: Tensor, y: Tensor, most: int) -> None:
        few = _evenly(len(x), most)
        self.rows, self.y = x[few], y[few].detach().cpu()
        self.kernels = [Kernel(x, length) for length in (None, *_LENGTHS)]

    def functions(self, points: Tensor, count: int) -> Callable[[Tensor], Tensor]:
        """Functions that are drawn at the rows and at points, ``[n, D]`` to ``[count, n, ...]``, and smooth between these."""
        at = torch.cat([self.rows, points.to(self.rows)])
        prior = self.kernel(at, at)
        w, u = torch.linalg.eigh(prior + _JITTER * torch.eye(len(at)).to(prior))
        weights = (u / w) @ (u.T @ self.drawn(at, prior, count))
        return lambda x: self.kernel(x, at) @ weights

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

    def functions(self, points: Tensor, count: int) -> Callable[[Tensor], Tensor]:
        standardised = super().functions(points, count)
        return lambda x: self.loc + self.unit * standardised(x)

    def observed(self, f: Tensor) -> Tensor:
        return f + self.unit * self.noise * torch.randn_like(f)


class _OfLabels(_Process):
    """The process of the logits of class labels, with the kernel of the largest evidence."""

    def __init__(self, x: Tensor, y: Tensor, classes: int) -> None:
        super().__init__(x, y, _LOGITS // classes)
        best, self.classes = -math.inf, classes
        for kernel in self.kernels:
            for size in _SIZES:
                mode = laplace(size**2 * kernel(self.rows, self.rows) + _JITTER * torch.eye(len(self.y)), self.y, classes)
                if mode.evidence > best:
                    best, self.kernel, self.length, self.mode, self.size = mode.evidence, kernel, kernel.length or 1.0, mode, size
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
