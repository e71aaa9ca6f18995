"""What a fit is worth: the log density of its training data beside predictors that need no training.

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

Two numbers say what no fit of one noise follows: how far out a value of y is, and whether squared errors e_n of the best of
these processes depend on x, by the log density of ln e_n under the same kernels above a constant's.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyro.distributions as dist
import torch
import torch.nn.functional as F
from torch import Tensor

from pyrodrop.changes import evaluating
from pyrodrop.checks import HasPosterior, mapped
from pyrodrop.data import Dataset
from pyrodrop.data.loader import Loader
from pyrodrop.guides.ensemble import members_of
from pyrodrop.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
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
        extreme: the largest distance of a value of y from the median of its column, in standard deviations of a normal with
            the same median distance.
        varies: nats per row by which x predicts the logarithm of squared errors of y.
    """

    fit: float
    constant: float | None = None
    ridge: float | None = None
    gp: float | None = None
    point: float | None = None
    values: int = 1
    extreme: float | None = None
    varies: float | None = None

    @property
    def left_out(self) -> dict[str, float]:
        """The predictors that each row is left out of."""
        beside = {"ridge regression": self.ridge, "a Gaussian process": self.gp, "a point estimate": self.point}
        return {name: value for name, value in beside.items() if value is not None}

    def describe(self) -> str:
        beside = {"constant": self.constant, "ridge": self.ridge, "GP": self.gp, "point": self.point}
        words = ", ".join(f"{name} {value:.2f}" for name, value in beside.items() if value is not None)
        return f"{self.fit:.2f} in sample ({words})" if words else f"{self.fit:.2f}"


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


class Spectrum(NamedTuple):
    """Eigenvalues ``[n]`` and eigenvectors ``[n, n]`` of K."""

    values: Tensor
    vectors: Tensor


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
    if not bool(ours.isfinite().all()):
        return None
    density = float(ours.mean())
    beside, others = _beside(fit, data, rows)
    values = {name: density + float((theirs - ours[at]).mean()) for name, (at, theirs) in beside.items()}
    finite = {name: value for name, value in (values | others).items() if math.isfinite(value)}
    return Worth(density, **finite, values=rows.y[0].numel())


def of_record(record: Mapping[str, Any]) -> Worth | None:
    """The worth of a fit from its settings; None if these lack it, as after fewer than 100 steps."""
    known = record.get("worth")
    return Worth(**known) if isinstance(known, Mapping) and {"fit"} <= {*known} <= {*Worth.__annotations__} else None


def evenly(rows: int, most: int) -> Tensor:
    """The numbers of at most so many rows."""
    return torch.linspace(0, rows - 1, min(rows, most)).long()


def _beside(fit: Any, data: Dataset, rows: Dataset) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, float]]:
    """The predictors that a fit is compared with, indices of the rows predicted and their log densities by name; and
    `Worth.extreme` of all data and `Worth.varies`, where the noise is Gaussian with one scale."""
    y, likelihood = rows.y.detach().cpu(), fit.model.likelihood
    y = y if isinstance(likelihood, Categorical) else y.double().reshape(len(y), -1)
    beside, others = dict[str, tuple[Tensor, Tensor]](), dict[str, float]()
    one_scale = type(likelihood) is Gaussian
    if (of_constant := constant(likelihood, y)) is not None:
        beside["constant"] = torch.arange(len(y)), of_constant
    if one_scale and (far := extreme(data.y)) is not None:
        others["extreme"] = far
    real = isinstance(likelihood, REAL) and not _has_one_value(y)
    labels = isinstance(likelihood, Categorical) and y.dim() == 1 and int(y.max()) < _CLASSES
    if len(y) < _FEWEST or not (real or labels):
        return beside, others
    few, x = evenly(len(y), _FEW), rows.x
    if isinstance(x, Tensor) and x.dim() == 2 and x.is_floating_point():
        every = spectra([x[few]], (None, *LENGTHS))
        beside |= {"ridge": (few, left_out(every[:1], y[few])), "gp": (few, left_out(every[1:], y[few]))}
        if one_scale:
            others["varies"] = varies(every, y[few])
    if features := _features(fit, rows.rows(few)):
        beside["point"] = few, left_out(spectra(features, (None,)), y[few])
    return beside, others


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
    if isinstance(likelihood, Gaussian | HeteroscedasticGaussian):
        density = dist.Normal(y.mean(0), y.std(0, correction=0)).log_prob(y)
    elif isinstance(likelihood, Bernoulli | Poisson):
        density = (dist.Bernoulli if isinstance(likelihood, Bernoulli) else dist.Poisson)(y.mean(0)).log_prob(y)
    else:
        return None
    return density.reshape(len(y), -1).sum(1)


def _has_one_value(y: Tensor) -> bool:
    return y.is_floating_point() and bool((y == y[0]).reshape(len(y), -1).all(0).any())


def extreme(y: Tensor) -> float | None:
    """The largest distance from the median of a column, see `Worth`; None if half of a column has one value."""
    y = y.detach().cpu().double().reshape(len(y), -1)
    distance = (y - y.median(0).values).abs()
    typical = 1.4826 * distance.median(0).values
    return float((distance / typical).max()) if bool((typical > 0).all()) else None


def varies(every: Sequence[Spectrum], y: Tensor) -> float:
    """Nats per row by which x predicts ln of the squared errors of real y ``[n, D]``, see `Worth`.

    Args:
        every: spectra of the linear kernel and of those of `LENGTHS`; the errors are those of the best, and are predicted
            by the linear one and by the four smoothest.
    """
    logs = _real(every, y)[1].square().clamp(min=1e-12).log()
    if (of_constant := constant(Gaussian(), logs)) is None:  # errors of one size
        return 0.0
    return float((left_out([every[0], *every[-4:]], logs) - of_constant).mean())


def spectra(tables: Iterable[Tensor], lengths: Iterable[float | None]) -> list[Spectrum]:
    """Eigenvalues and eigenvectors of the kernels of these columns ``[n, D]`` and lengths, of which None is linear."""
    return [Spectrum(*torch.linalg.eigh(Kernel.of(x, length)(x, x))) for x in tables for length in lengths]


def left_out(kernels: Iterable[Spectrum], y: Tensor) -> Tensor:
    """Log densities of rows ``[n]``, each predicted from the others, under the best of the kernels and ratios.

    Args:
        y: real numbers ``[n, D]`` in float64, of which every column varies, or class labels ``[n]``.
    """
    if y.is_floating_point():
        return _real(kernels, y)[0]
    target, densities = F.one_hot(y.long()).double(), []
    target = target - target.mean(0)
    for kernel in kernels:
        off, _ = _errors(kernel, target)
        off = off[:, int(off.square().mean((0, 2)).argmin())]
        logits = (target - off)[:, None] * _SLOPES[:, None]
        chosen = y.long()[:, None, None].expand(-1, len(_SLOPES), 1)
        densities.append(logits.log_softmax(-1).gather(-1, chosen)[..., 0])
    every = torch.cat(densities, 1)
    return every[:, int(every.mean(0).nan_to_num(-math.inf).argmax())]


def _real(kernels: Iterable[Spectrum], y: Tensor) -> tuple[Tensor, Tensor]:
    """Log densities of rows of real y ``[n]`` and their standardised errors ``[n, D]``, as `left_out`."""
    scale, best = y.std(0, correction=0), (torch.full((len(y),), -math.inf), y)
    for kernel in kernels:
        densities, _, errors = of_numbers(kernel, (y - y.mean(0)) / scale)
        at = int(densities.mean(0).nan_to_num(-math.inf).argmax())
        density = densities[:, at] - scale.log().sum()
        if float(density.mean()) > float(best[0].mean()):
            best = density, errors[:, at]
    return best


def of_numbers(kernel: Spectrum, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each of `RATIOS`, log densities of rows ``[n, R]``, the best s ``[R, D]`` and errors over their standard deviation
    ``[n, R, D]``; columns of the target vary."""
    off, diagonal = _errors(kernel, target)
    s = (off.square() * diagonal).mean(0).clamp(min=1e-20)
    sd = (s / diagonal).sqrt()
    return dist.Normal(0.0, sd).log_prob(off).sum(-1), s, off / sd


def _errors(kernel: Spectrum, target: Tensor) -> tuple[Tensor, Tensor]:
    """Errors ``[n, R, D]`` of rows that are predicted from the others, and the diagonal of A^-1 ``[n, R, 1]``."""
    w, u = kernel
    inverse = 1 / (w.clamp(min=0)[:, None] + RATIOS)
    diagonal = (u.square() @ inverse)[..., None]
    return torch.einsum("nk,kr,kc->nrc", u, inverse, u.T @ target) / diagonal, diagonal
