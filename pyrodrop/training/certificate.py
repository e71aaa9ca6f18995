"""A certificate: what `pyrodrop.analysis.calibration.certify` found of the bands of a fit, and the factors that repair them.

The region of x follows from v(x), the variance of a process at x given the training rows: inside, at most that of nine
tenths of these; edge, at most that of all of them; beyond, larger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pyrodrop.failed import Failed
from pyrodrop.files import Record
from pyrodrop.parts import Card, carded
from pyrodrop.training.worth import Kernel, evenly

REGIONS = ("inside", "edge", "beyond")
POINTS = 200  # most training rows, and twice the most rows beyond, at which bands are looked at
_ROWS = 500  # most rows that place others
_AWAY = (1.1, 1.25, 1.5)  # multiples of the distance from the middle, at which rows beyond the data are
_INSIDE, _NEAR = 0.9, 0.01  # share of training rows; ratio of noise, so that a row is no hole in v
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
        rows = x.detach().cpu().double()[evenly(len(x), _ROWS)]
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
        return away[evenly(len(away), POINTS // 2)] if len(away) else away


@dataclass(frozen=True)
class Held:
    """What was found in a region.

    Attributes:
        coverage: share of data sets and points at which the band holds f.
        error: standard error of `coverage`, by the differences between data sets.
        of_y: the same share of intervals of new y; NaN beyond the data, and of class labels.
        factor: by which draws are moved away from their mean in ``predict(..., certified=True)``.
        centre: share of the mean squared error of the mean that is the same in all refits: above a half, the bands are not
            too narrow but in the wrong place.
    """

    coverage: float
    error: float
    of_y: float
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
            y = "" if math.isnan(held.of_y) else f", intervals of y {held.of_y:.0%}"
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
        tensors = {"held": torch.tensor([astuple(held) for held in self.held.values()], dtype=torch.float64)}
        plain = {"level": self.level, "refits": self.refits, "by": self.by, "columns": self.columns}
        if (regions := self.regions) is not None:
            kernel = regions.kernel
            tensors |= {"rows": regions.rows, "limits": regions.limits, "middle": kernel.middle, "scale": kernel.scale}
            plain["length"] = kernel.length
        return tensors, plain | {"regions": list(self.held)}

    @classmethod
    def of_file(cls, record: Record, tensors: Mapping[str, Tensor]) -> Certificate:
        """The certificate that `stored` has described.

        Raises:
            ValueError: the file is damaged.
        """
        names, regions, columns = record.texts("regions"), None, tensors.get("scale", torch.empty(0)).numel()
        due: dict[str, Any] = {"held": (len(names), 5)}
        if "length" in record.content:
            due |= {"rows": (len(tensors.get("rows", ())), columns), "limits": (2,), "middle": (columns,)}
            due["scale"] = (columns,)
        sound = {name: value.shape for name, value in tensors.items()} == due and "inside" in names
        sound = sound and all(name == "held" or bool(value.isfinite().all()) for name, value in tensors.items())
        if not sound or not {*names} <= {*REGIONS} or not bool((tensors["held"][:, 3] >= 0).all()):
            raise Failed(f"{record.where} must have a certificate of finite tensors, with factors of at least 0")
        if columns:
            kernel = Kernel(tensors["middle"], tensors["scale"], record.number("length"))
            regions = Regions(kernel, tensors["rows"], tensors["limits"])
        held = {name: Held(*numbers) for name, numbers in zip(names, tensors["held"].tolist(), strict=True)}
        level: Any = record.number("level")
        return cls(level, record.whole("refits"), record.text("by"), held, record.whole("columns"), regions)

    def widened(self, outputs: Tensor, x: Any) -> Tensor:
        """Draws of outputs ``[S, N, ...]`` at x, moved away from their mean by the factor of each row's region."""
        factors = torch.tensor([self.held[name].factor if name in self.held else 1.0 for name in REGIONS])
        place = torch.zeros(outputs.shape[1]).long() if self.regions is None else self.regions(x)
        by_row = factors[place].to(outputs).reshape(-1, *(1,) * (outputs.dim() - 2))
        f = outputs[..., : self.columns]
        mean = f.mean(0)
        return torch.cat([mean + by_row * (f - mean), outputs[..., self.columns :]], -1)
