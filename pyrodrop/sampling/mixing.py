"""Whether chains have mixed, by diagnostics of functions.

Diagnostics of weights would mislead: hidden units can be permuted and signs swapped, so the posterior of a weight has many
equal modes, and chains that never leave theirs can still agree on every function. R-hat and effective sample sizes of a
network are therefore those of f at points and of the log likelihood of all of the data. Vehtari, Gelman, Simpson,
Carpenter & Buerkner (2021), Rank-normalization, folding, and localization: An improved R-hat,
https://arxiv.org/abs/1903.08008.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from torch import Tensor

from pyrodrop.parts import Described

MOST_R_HAT = 1.05
LEAST_ESS = 400.0
LEAST_BFMI = 0.3
MOST_ROUNDING = 0.05  # nats; the acceptance probability is then wrong by a few per cent at most
_FUNNEL = (
    "parts of the posterior may be missing, as where the scale of a site depends on another: write a program in other "
    "coordinates, as by pyro.infer.reparam.LocScaleReparam(0.0)"
)


@dataclass(frozen=True, repr=False)
class Diagnostics(Described):
    """Diagnostics of a run.

    Of a Pyro program its sites take the place of f, each number in the coordinates of its support, and the log density that
    of the log likelihood.

    Attributes:
        r_hat_f: the largest rank-normalised split R-hat of f at the points. Where chains have mixed it is about
            sqrt(1 + 1 / n) with n effective draws in half a chain, so that many short chains have a larger one than few long
            chains: 1.05 at n = 10, 1.01 at n = 50.
        r_hat_log_likelihood: R-hat of the log likelihood.
        ess_f: the smallest effective sample size of f over the points, in all chains together, of bulk and tail.
        ess_f_median: the median of the bulk effective sample size over the points.
        ess_log_likelihood: the smaller of bulk and tail effective sample size of the log likelihood.
        diverging: number of draws of divergent trajectories.
        energy_rounding: the rounding error of energies in nats, the size of an energy times half the spacing of numbers.
        chains: number of chains.
        e_bfmi: the mean square of the change of energy between draws, over the variance of energy (Betancourt 2016,
            https://arxiv.org/abs/1604.00695).
    """

    r_hat_f: float
    r_hat_log_likelihood: float
    ess_f: float
    ess_f_median: float
    ess_log_likelihood: float
    diverging: int
    energy_rounding: float
    chains: int
    e_bfmi: float | None = None

    @property
    def problems(self) -> list[str]:
        """Reasons not to use the draws, as sentences; empty if there is none."""
        stuck = self.e_bfmi is not None and not self.e_bfmi >= LEAST_BFMI
        r_hat, ess = np.max([self.r_hat_f, self.r_hat_log_likelihood]), np.min([self.ess_f, self.ess_log_likelihood])
        reasons = [
            (not r_hat <= MOST_R_HAT, f"the chains have not mixed: R-hat is {r_hat:.3f}, above {MOST_R_HAT}"),
            (not ess >= LEAST_ESS, f"there are few effective draws: {ess:.0f}, below {LEAST_ESS:.0f}"),
            (self.diverging, f"{self.diverging} trajectories diverged"),
            (stuck, f"energy changes too little between draws to reach all of its values: E-BFMI below {LEAST_BFMI}"),
            (stuck or self.diverging, _FUNNEL),
            (self.energy_rounding > MOST_ROUNDING, f"energies are rounded by {self.energy_rounding:.2g} nats: use float64"),
        ]  # fmt: skip
        return [sentence for applies, sentence in reasons if applies]

    @property
    def mixed(self) -> bool:
        """Whether there is no reason against using the draws; see `problems`."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """The numbers by name, with None for those that do not exist."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: None if value is None or not math.isfinite(value) else value for name, value in values.items()}

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> Diagnostics:
        """The inverse of `to_dict`."""
        names = [field.name for field in fields(cls)]
        known: dict[str, Any] = {name: values.get(name) for name in names}
        known |= {n: math.nan for n, value in known.items() if value is None and n != "e_bfmi"}
        return cls(**known)

    def describe(self) -> str:
        numbers = (
            f"R-hat {self.r_hat_f:.3f}, of the log density {self.r_hat_log_likelihood:.3f}; effective draws "
            f"{self.ess_f:.0f} (median {self.ess_f_median:.0f}), of the log density {self.ess_log_likelihood:.0f}; "
            f"{self.diverging} divergent; {self.chains} chains"
        )
        return f"{numbers}. {'; '.join(self.problems) or 'The chains have mixed'}."


def diagnose(
    f: Tensor, log_likelihood: Tensor, diverging: int, energy_rounding: float, energy: Tensor | None = None
) -> Diagnostics:
    """Diagnostics from f ``[chains, draws, ...]``, the log likelihood and the energy ``[chains, draws]``, and the number of
    divergences."""
    columns = f.flatten(2).double().cpu().numpy()
    moving = columns[..., columns.reshape(-1, columns.shape[-1]).std(0) > 0]  # an f without spread, as of a dead ReLU
    if moving.shape[-1] == 0:
        raise ValueError("f is the same in all draws at all of these points: give points at which it differs")
    bulk, tail, r_hat = np.array([_of_column(moving[..., i]) for i in range(moving.shape[-1])]).T
    own_bulk, own_tail, own_r_hat = _of_column(log_likelihood.double().cpu().numpy())
    e_bfmi = None
    if energy is not None:
        e_bfmi = float(energy.diff(dim=1).square().mean() / (energy - energy.mean()).square().mean())
    return Diagnostics(
        r_hat_f=float(r_hat.max()),  # NaN if one is
        r_hat_log_likelihood=own_r_hat,
        ess_f=float(np.minimum(bulk, tail).min()),
        ess_f_median=float(np.median(bulk)),
        ess_log_likelihood=float(np.minimum(own_bulk, own_tail)),
        diverging=diverging,
        energy_rounding=energy_rounding,
        chains=len(f),
        e_bfmi=e_bfmi,
    )


def _of_column(values: Any) -> tuple[float, float, float]:
    """Bulk and tail effective sample size, and R-hat, of ``[chains, draws]``."""
    from arviz_stats.base import array_stats  # slow to import

    bulk, tail = array_stats.ess(values, method="bulk"), array_stats.ess(values, method="tail", prob=(0.05, 0.95))
    return float(bulk), float(tail), float(array_stats.rhat(values, method="rank"))
