"""The result of simulation-based calibration: ranks, a test of each quantity, and a verdict in words.

The shape of the ranks shows what is wrong (Talts et al. 2018, section 4.2; for variational fits Yao et al. 2018, section 4):
asymmetric ranks result from a biased posterior, a U-shape from one that is too narrow, a hump from one that is too wide.
The test is on average over the prior: a bias whose sign depends on the data, such as a mean that is shrunk towards 0, causes
a U-shape. A posterior that ignores the data passes for every f, so the log likelihood is ranked too (Modrak et al. 2023).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyrodrop.analysis.calibration import uniformity
from pyrodrop.analysis.calibration.ranks import pit_of
from pyrodrop.analysis.reports.json_files import read_record, write_json
from pyrodrop.files import Record
from pyrodrop.parts import Described

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOG_LIKELIHOOD = "log_likelihood"
_SMALL = 1e-10  # the smallest p-value that is shown
_CLEAR = 3.0  # a direction is named above this number of standard errors


@dataclass(frozen=True, repr=False)
class SBC(Described):
    """Ranks of true values among posterior draws, over data sets that were simulated from the prior.

    Attributes:
        ranks: for every quantity by name, its rank in each data set, integers in 0 ... num_draws, ``[count]``.
        num_draws: S, posterior draws per data set.
        seed: seed of the random numbers that make ranks continuous.
        settings: a description of what was calibrated, in plain numbers and strings.
        failed: number of fits whose loss became infinite or NaN; they are not in `ranks`.
    """

    ranks: dict[str, Tensor]
    num_draws: int
    seed: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    failed: int = 0

    @property
    def count(self) -> int:
        """The number of data sets with ranks."""
        return len(next(iter(self.ranks.values())))

    @functools.cached_property
    def pit(self) -> dict[str, Tensor]:
        """Probability integral transforms by quantity, ``[count]`` in (0, 1), uniform if the posterior is exact."""
        values = pit_of(torch.stack(list(self.ranks.values())), self.num_draws, self.seed)
        return dict(zip(self.ranks, values, strict=True))

    @functools.cached_property
    def p_values(self) -> dict[str, float]:
        """The p-value of a test of uniform ranks for every quantity (`pyrodrop.analysis.calibration.uniformity`)."""
        return {name: uniformity.p_value(values.numpy()) for name, values in self.pit.items()}

    @property
    def p_value(self) -> float:
        """The p-value for all quantities together: the smallest of `p_values` times their number (Bonferroni), at most 1."""
        return min(1.0, len(self.ranks) * min(self.p_values.values()))

    @property
    def calibrated(self) -> bool:
        """Whether the test of all quantities together passes at the level 0.05."""
        return self.p_value >= uniformity.LEVEL

    @property
    def problems(self) -> dict[str, str]:
        """A description of the problem for every quantity whose test fails at 0.05 over the number of quantities."""
        limit = uniformity.LEVEL / len(self.ranks)
        return {name: _shape(name, self.pit[name]) for name, p in self.p_values.items() if p < limit}

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        p = f"p = {self.p_value:.2g}" if self.p_value > _SMALL else f"p < {_SMALL:g}"
        about = f"{p}, {len(self.ranks)} quantities together, {self.count} data sets"
        lost = f"; {self.failed} fits failed and are not counted" if self.failed else ""
        if self.calibrated:
            return f"no miscalibration found ({about}){lost}"
        named: dict[str, list[str]] = {}
        for name, problem in self.problems.items():
            named.setdefault(problem, []).append(name)
        shown = "; ".join(f"{', '.join(names)}: {problem}" for problem, names in named.items())
        return f"not calibrated ({about}): {shown}{lost}"

    def describe(self) -> str:
        return self.verdict

    def plot(self) -> Figure:
        """ArviZ's plot of the difference between the empirical distribution of the PIT values and the uniform one.

        There is a panel for every quantity. If the verdict is "not calibrated", the line of some panel leaves its band: the
        bands are simultaneous over each line, at the level 0.05 over the number of quantities.
        """
        from pyrodrop.analysis.calibration.figure import plot_sbc

        return plot_sbc({"": self})

    def to_dict(self) -> dict[str, Any]:
        """All results as plain numbers and strings, for JSON."""
        return {
            "verdict": self.verdict,
            "p_value": self.p_value,
            "p_values": dict(self.p_values),
            "problems": self.problems,
            "count": self.count,
            "num_draws": self.num_draws,
            "failed": self.failed,
            "seed": self.seed,
            "settings": dict(self.settings),
            "ranks": {name: ranks.tolist() for name, ranks in self.ranks.items()},
        }

    def save(self, path: str | Path) -> Path:
        """Write `to_dict` as JSON; if writing fails, an existing file is unchanged."""
        path = Path(path)
        write_json(path, self.to_dict())
        return path

    @classmethod
    def load(cls, path: str | Path) -> SBC:
        """Read a file that `save` wrote.

        Raises:
            ValueError: the file is not such a result.
        """
        return cls.from_record(read_record(Path(path)))

    @classmethod
    def from_record(cls, record: Record) -> SBC:
        """The result from the content of a file that `save` wrote; a ValueError if it is not such a result."""
        if not {"ranks", "num_draws", "seed"} <= record.content.keys():
            raise record.fault("is not a result of simulation-based calibration: it has no ranks, num_draws and seed")
        draws, seed = record.whole("num_draws"), record.whole("seed")
        quantities = record.record("ranks")
        ranks = {name: torch.tensor(quantities.numbers(name)) for name in quantities.content}
        counts = {len(values) for values in ranks.values()}
        if len(counts) != 1 or any(bool(((r != r.round()) | (r < 0) | (r > draws)).any()) for r in ranks.values()):
            raise record.fault(
                f"must have equally many whole ranks from 0 to {draws}, the number of draws, per quantity"
            )
        failed = record.whole("failed") if "failed" in record.content else 0
        settings = dict(record.record("settings").content) if "settings" in record.content else {}
        return cls({name: values.long() for name, values in ranks.items()}, draws, seed, settings, failed)


def _shape(name: str, pit: Tensor) -> str:
    """A description of the problem that the shape of non-uniform PIT values indicates."""
    values = pit.numpy()
    high, outside = uniformity.asymmetry(values), uniformity.spread(values)
    shape = []
    if name == LOG_LIKELIHOOD:
        if abs(high) > _CLEAR:
            shape.append(f"the draws fit the data {'worse' if high > 0 else 'better'} than the truth does")
        if abs(outside) > _CLEAR:
            shape.append(f"too {'narrow' if outside > 0 else 'wide'}")
    else:
        if abs(outside) > _CLEAR:
            shape.append(f"too {'narrow (U-shape)' if outside > 0 else 'wide (hump)'}")
        if abs(high) > _CLEAR:
            shape.append(f"biased, too {'low' if high > 0 else 'high'}")
    return " and ".join(shape) or "not uniform, in no simple direction"
