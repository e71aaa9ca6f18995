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
        known: dict[str, Any] = {field.name: values.get(field.name) for field in fields(cls)}
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
    from arviz_stats.base import array_stats  # slow to import

    columns = f.flatten(2).double().cpu().numpy()
    moving = columns[..., columns.reshape(-1, columns.shape[-1]).std(0) > 0]  # an f without spread, as of a dead ReLU
    if moving.shape[-1] == 0:
        raise ValueError("f is the same in all draws at all of these points: give points at which it differs")
    moving = np.moveaxis(np.dstack([moving, log_likelihood.double().cpu().numpy()]), -1, 0)
    bulk, tail = array_stats.ess(moving, method="bulk"), array_stats.ess(moving, method="tail", prob=(0.05, 0.95))
    ess, r_hat = np.minimum(bulk, tail), array_stats.rhat(moving, method="rank")
    e_bfmi = None if energy is None else float(energy.diff(dim=1).square().mean() / energy.var(correction=0))
    return Diagnostics(
        r_hat_f=float(r_hat[:-1].max()),  # NaN if one is
        r_hat_log_likelihood=float(r_hat[-1]),
        ess_f=float(ess[:-1].min()),
        ess_f_median=float(np.median(bulk[:-1])),
        ess_log_likelihood=float(ess[-1]),
        diverging=diverging,
        energy_rounding=energy_rounding,
        chains=len(f),
        e_bfmi=e_bfmi,
    )
