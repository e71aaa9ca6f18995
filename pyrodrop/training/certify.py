"""Whether the bands of a fit hold: it is trained again on data sets of functions that are known, and asked for these.

    (f_r, y_r)      functions and data sets of the best predictor (`pyrodrop.training.simulated`)      r = 1 ... R
    q_r             the posterior after the same training on (x, y_r); all are trained at once, as `pyrodrop.fit_replicates`
    coverage        mean over r and points of 1[f_r(x) in the central interval of q_r at x]

This is a parametric bootstrap of the whole procedure. In each of three regions, the factor c for which

    m + c (f_s - m),   m = mean_s f_s,   f_s ~ q_r

has bands with the nominal coverage is a quantile of |f_r - m| / |end of the band - m| over r and points. Bands of labels are
those of ln p_c - ln(1 - p_c). The region of x follows from v(x), the variance of a process of x given the training rows:
inside, at most that of nine tenths of these; edge, at most that of all of them; beyond, larger.

It assumes that the noise is that of the likelihood, and that functions are like those of the best predictor: it cannot see
what neither the process nor the fit can follow. Beyond the data it knows what a process knows.

References:
    Efron & Tibshirani (1993), An Introduction to the Bootstrap, sections 6.5 (parametric) and 18.3 (calibration).
    Beran (1987), Prepivoting to Reduce Level Error of Confidence Sets, https://doi.org/10.1093/biomet/74.3.457.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pyrodrop.checks import shown
from pyrodrop.data import Dataset
from pyrodrop.devices import seeded
from pyrodrop.failed import Failed
from pyrodrop.files import Record
from pyrodrop.likelihoods import Categorical
from pyrodrop.models.network import NetworkModel
from pyrodrop.parts import Card, carded
from pyrodrop.training.fitted_replicates import Replicates
from pyrodrop.training.replicates import fit_replicates
from pyrodrop.training.result_data import rows_of
from pyrodrop.training.settings import TrainingOptions
from pyrodrop.training.simulated import Kernel, best_predictor
from pyrodrop.training.worth import collected

REGIONS = ("inside", "edge", "beyond")
_ROWS, _POINTS, _DRAWS = 500, 200, 200  # rows that place others; training rows, and draws, that are asked
_AWAY = (1.1, 1.25, 1.5)  # multiples of the distance from the middle, at which rows beyond the data are
_INSIDE, _NEAR = 0.9, 0.01  # share of training rows; ratio of noise, so that a row is no hole in v
SHARED = [*TrainingOptions.__annotations__]
_CENTRE = 0.5  # share of the error that is the same in all refits, above which the centre of the bands is wrong


@dataclass(frozen=True)
class Regions:
    """Where rows are among the training rows.

    Attributes:
        kernel: of the process.
        rows: training rows ``[n, D]``, at most 500.
        limits: the largest v(x) inside, and that at the edge.
    """

    kernel: Kernel
    rows: Tensor
    limits: Tensor

    @classmethod
    def of(cls, x: Tensor, length: float) -> Regions:
        """The regions of training rows ``[N, D]``; `length` is that of the process, of standardised columns."""
        rows = x.detach().cpu().double()[torch.linspace(0, len(x) - 1, min(len(x), _ROWS)).long()]
        regions = cls(Kernel.of(x, length), rows, torch.empty(0))
        there = regions.variance(x)
        return replace(regions, limits=torch.stack([there.quantile(_INSIDE), there.max()]))

    def variance(self, x: Tensor) -> Tensor:
        """v(x) of rows ``[N, D]``."""
        inner = self.kernel(self.rows, self.rows)
        factor = torch.linalg.cholesky(inner + _NEAR * torch.eye(len(inner)).to(inner))
        across = torch.linalg.solve_triangular(factor, self.kernel(self.rows, x), upper=False)
        return 2 - across.square().sum(0)

    def __call__(self, x: Tensor) -> Tensor:
        """The index in `REGIONS` of every row, ``[N]``."""
        return (self.variance(x)[:, None] > self.limits + 1e-9).sum(1)

    def beyond(self, x: Tensor) -> Tensor:
        """Rows beyond the data: training rows at the edge, moved away from the middle."""
        middle, edge = x.mean(0), x[(self(x) > 0).to(x.device)]
        away = torch.cat([middle + by * (edge - middle) for by in _AWAY])
        away = away[(self(away) == 2).to(x.device)]
        return away[torch.linspace(0, len(away) - 1, min(len(away), _POINTS // 2)).long()] if len(away) else away


@dataclass(frozen=True)
class Held:
    """What was found in a region.

    Attributes:
        coverage: share of data sets and points at which the band holds f.
        error: standard error of `coverage`, by the differences between data sets.
        of_y: the same share of intervals of new y; None beyond the data, and of class labels.
        factor: by which draws are moved away from their mean in ``predict(..., certified=True)``.
        centre: share of the mean squared error of the mean that is the same in all refits: above a half, the bands are not
            too narrow but in the wrong place.
    """

    coverage: float
    error: float
    of_y: float | None
    factor: float
    centre: float


@carded
@dataclass(frozen=True, repr=False)
class Certificate:
    """Whether the bands of a fit hold, as `Fit.certify` found. Printing it shows a table.

    Attributes:
        level: nominal probability of the bands.
        refits: number of data sets whose fit did not fail.
        by: what drew the functions, ``"Gaussian process"`` or ``"fit"``.
        held: what was found in each of the `regions`, by name: inside, edge and beyond.
        columns: D, the number of columns of f.
        regions: None if x is no table of real numbers; then all rows are inside.
    """

    level: float
    refits: int
    by: str
    held: Mapping[str, Held]
    columns: int
    regions: Regions | None

    def card(self) -> Card:
        """The summary that is printed."""
        facts = {"functions": f"drawn by the {self.by}, the best predictor of the training data"}
        for name, held in self.held.items():
            y = "" if held.of_y is None else f", intervals of y {held.of_y:.0%}"
            facts[name] = f"bands hold f at {held.coverage:.0%} (s.e. {held.error:.1%}){y}; factor {held.factor:.2g}"
        return Card(f"Bands of {self.level:.0%} in {self.refits} refits", facts | {"finding": self.finding})

    @property
    def finding(self) -> str:
        """What it means, in one sentence."""
        held = self.held["inside"]
        off = held.coverage - self.level
        if abs(off) <= max(0.05, 2 * held.error):
            return "the bands can be trusted inside the data"
        if off > 0:
            return "the bands are wider than they need to be"
        if held.centre > _CENTRE:
            return (
                "the bands are in the wrong place: the fit misses the same part of the functions each time, as one that is "
                "too smooth does: take a lower drop rate, other priors (priors.from_gp), or guides.ExactLastLayer"
            )
        return "the bands are too narrow: predict(..., certified=True) widens them"

    def stored(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and plain data of a file."""
        plain = {name: getattr(self, name) for name in ("level", "refits", "by", "columns")}
        held = {name: asdict(each) for name, each in self.held.items()}
        if self.regions is None:
            return {}, plain | {"held": held}
        kernel = self.regions.kernel
        tensors = {
            "rows": self.regions.rows,
            "limits": self.regions.limits,
            "middle": kernel.middle,
            "scale": kernel.scale,
        }
        return tensors, plain | {"held": held, "length": kernel.length}

    @classmethod
    def of_file(cls, record: Record, tensors: Mapping[str, Tensor]) -> Certificate:
        """The certificate that `stored` has described.

        Raises:
            ValueError: the file is damaged.
        """
        held = {}
        for name in record.record("held").content:
            each = record.record("held").record(name)
            numbers = {key: each.number(key) for key in ("coverage", "error", "factor", "centre")}
            held[name] = Held(**numbers, of_y=each.number("of_y", optional=True))
        regions = None
        if tensors:
            shapes = {name: value.shape for name, value in tensors.items()}
            columns = shapes.get("rows", (0, 0))[-1]
            due = {
                "rows": (len(tensors.get("rows", ())), columns),
                "limits": (2,),
                "middle": (columns,),
                "scale": (columns,),
            }
            sound = shapes == due and all(bool(value.isfinite().all()) for value in tensors.values())
            if not sound or not bool((tensors["scale"] > 0).all()) or not record.number("length") > 0:
                raise Failed(f"{record.where} must have finite rows, limits, middle and scale in its certificate")
            kernel = Kernel(tensors["middle"], tensors["scale"], record.number("length"))
            regions = Regions(kernel, tensors["rows"], tensors["limits"])
        if (
            "inside" not in held
            or not held.keys() <= set(REGIONS)
            or not all(each.factor >= 0 for each in held.values())
        ):
            raise Failed(f"{record.where} must have a factor of at least 0 inside, in its certificate")
        return cls(
            record.number("level"), record.whole("refits"), record.text("by"), held, record.whole("columns"), regions
        )

    def widened(self, outputs: Tensor, x: Any) -> Tensor:
        """Draws of outputs ``[S, N, ...]`` at x, moved away from their mean by the factor of each row's region."""
        factors = torch.tensor([self.held[name].factor if name in self.held else 1.0 for name in REGIONS])
        place = torch.zeros(outputs.shape[1]).long() if self.regions is None else self.regions(x)
        by_row = factors[place].to(outputs).reshape(-1, *(1,) * (outputs.dim() - 2))
        f = outputs[..., : self.columns]
        mean = f.mean(0)
        return torch.cat([mean + by_row * (f - mean), outputs[..., self.columns :]], -1)


def of_members(posterior: Any, members: list[Any], refits: int, level: float, seed: int) -> Certificate:
    """The certificate of a fit, or of equally weighted replicates.

    Args:
        posterior: what predicts.
        members: its fits, which are trained again.
        refits, level, seed: as of `Fit.certify`.

    Raises:
        TypeError, ValueError: as `Fit.certify`.
    """
    first = members[0]
    if not isinstance(first.model, NetworkModel):
        raise TypeError(f"certify needs a network with bands of f; got a fit of {shown(first.model)}")
    data = rows_of(first, "certify")
    if data is None or first.options is None:
        raise ValueError(
            "certify trains again: it needs the training data and settings, which a loaded fit does not have"
        )
    x, likelihood = data.x, first.model.likelihood
    table = isinstance(x, Tensor) and x.dim() == 2 and x.is_floating_point()
    rows = torch.linspace(0, len(data) - 1, min(len(data), _POINTS)).long()
    points = data.rows(rows).x
    with seeded(seed, posterior.device):
        predictor = best_predictor(posterior, likelihood, data, seed)
        regions = Regions.of(x, predictor.length) if table else None
        if regions is not None:
            points = torch.cat([points, regions.beyond(x)])
        f, y, again = predictor.simulated(data, points, refits)
    place = torch.zeros(f.shape[1]).long() if regions is None else regions(points)
    of_labels = isinstance(likelihood, Categorical)
    found = []
    for r, one in _refitted(members, [data.with_values(y=each) for each in y], seed):
        predicted = one.predict(points, _DRAWS, seed=seed + r)
        bands = _bands(predicted.f.double(), f[r].double(), level, of_labels)
        found.append((*bands, None if of_labels else _of_y(predicted, again[r, rows], level)))
    each = [None if values[0] is None else torch.stack(values) for values in zip(*found, strict=True)]
    numbers = [number for number in range(len(REGIONS)) if bool((place == number).any())]
    held = {REGIONS[number]: _held(place == number, number, level, *each) for number in numbers}
    return Certificate(level, len(found), predictor.by, held, f.shape[-1], regions)


def _refitted(members: list[Any], sets: list[Dataset], seed: int) -> Iterator[tuple[int, Any]]:
    """Number and posterior of every data set of which no fit failed."""
    settings = members[0].options
    options = {name: getattr(settings, name) for name in SHARED} | {"seed": seed + 1}
    if options["engine"] == "pyro":
        options["engine"] = "traced"
    models, guides, data = (
        [*each] for each in zip(*((m.model, m.guide, d) for d in sets for m in members), strict=True)
    )
    with collected():
        fits = fit_replicates(
            models, guides, data, count=len(data), steps=len(members[0].history), starts="new", **options
        )
    for r in range(len(sets)):
        mine = range(r * len(members), (r + 1) * len(members))
        if not fits.failed.keys() & set(mine):
            yield r, Replicates([fits[number] for number in mine])


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


def _held(
    here: Tensor, number: int, level: float, inside: Tensor, reach: Tensor, error: Tensor, of_y: Tensor | None
) -> Held:
    """What was found at the points `here` of a region."""
    by_set = inside[:, here].double().flatten(1).mean(1)
    off = error[:, here]
    return Held(
        coverage=float(by_set.mean()),
        error=float(by_set.std() / math.sqrt(len(by_set))),
        of_y=float(of_y[:, here[: of_y.shape[1]]].double().mean()) if of_y is not None and number < 2 else None,
        factor=float(reach[:, here].flatten().quantile(level)),
        centre=float(off.mean(0).square().mean() / off.square().mean()),
    )
