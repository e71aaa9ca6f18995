"""Whether chains have mixed, by diagnostics of functions.

Diagnostics of weights would mislead: hidden units can be permuted and signs swapped, so the posterior of a weight has many
equal modes, and chains that never leave theirs can still agree on every function. R-hat and effective sample sizes here are
therefore those of f at points and of the log likelihood of all of the data. Vehtari, Gelman, Simpson,
Carpenter & Buerkner (2021), Rank-normalization, folding, and localization: An improved R-hat,
https://arxiv.org/abs/1903.08008.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from pyrodrop.parts import Described
from pyrodrop.sampling.tuning import FEW

MOST_R_HAT = 1.05
LEAST_ESS = 400.0
LEAST_BFMI = 0.3
_SOME = 10  # points, about, for R-hat within chains


@dataclass(frozen=True, repr=False)
class Diagnostics(Described):
    """Diagnostics of a run.

    Attributes:
        r_hat_f: the largest rank-normalised split R-hat of f at the points. Where chains have mixed it is about
            sqrt(1 + 1 / n) with n effective draws in half a chain, so that many short chains have a larger one than few long
            chains: 1.05 at n = 10, 1.01 at n = 50.
        r_hat_log_likelihood: R-hat of the log likelihood.
        ess_f: the smallest effective sample size of f over the points, in all chains together, of bulk and tail.
        ess_f_median: the median of the bulk effective sample size over the points.
        ess_log_likelihood: the smaller of bulk and tail effective sample size of the log likelihood.
        diverging: number of draws with a divergent trajectory since the draw before.
        energy_rounding: standard deviation, in nats, of the rounding error of energies.
        chains: number of chains. R-hat of one chain compares its halves.
        r_hat_within: median over chains and some of the points of the R-hat of f between the halves of a chain; None if
            the chains have mixed or there is only one.
        e_bfmi: the mean square of the change of energy between draws, over the variance of energy (Betancourt 2016,
            https://arxiv.org/abs/1604.00695). None of kernel mclmc.
    """

    WHAT: ClassVar[tuple[str, str]] = ("f", "the log likelihood")
    ADVICE: ClassVar[str] = ""

    r_hat_f: float
    r_hat_log_likelihood: float
    ess_f: float
    ess_f_median: float
    ess_log_likelihood: float
    diverging: int
    energy_rounding: float
    chains: int
    r_hat_within: float | None = None
    e_bfmi: float | None = None

    @property
    def few(self) -> str:
        """The limits of R-hat with so few chains, as a sentence; empty for 4 or more."""
        if self.chains >= FEW:
            return ""
        compared = "the halves of one chain" if self.chains == 1 else f"{self.chains} chains"
        return f"R-hat compares {compared}, and cannot show what other starts would have found"

    @property
    def problems(self) -> list[str]:
        """Reasons not to use the draws, as sentences; empty if there is none."""
        sentences, (f, density) = [], self.WHAT
        r_hat = _worst(self.r_hat_f, self.r_hat_log_likelihood)
        if not r_hat <= MOST_R_HAT:
            sentences.append(
                f"the chains have not mixed: R-hat of {f} is {self.r_hat_f:.3f} and of {density} "
                f"{self.r_hat_log_likelihood:.3f}, above {MOST_R_HAT}"
            )
            if self.r_hat_within is not None and self.r_hat_within <= MOST_R_HAT:
                sentences.append(
                    "they have not mixed between modes: a chain agrees with itself (R-hat of its halves "
                    f"{self.r_hat_within:.3f} in the median) and differs from the others, so that every mode has the share "
                    "of its chains, not of the posterior"
                )
        if not min(self.ess_f, self.ess_log_likelihood) >= LEAST_ESS:
            sentences.append(
                f"there are few effective draws: {self.ess_f:.0f} of {f} and {self.ess_log_likelihood:.0f} of "
                f"{density}, below {LEAST_ESS:.0f}"
            )
        if self.diverging:
            sentences.append(f"trajectories diverged before {self.diverging} draw{'s' * (self.diverging > 1)}")
        stuck = self.e_bfmi is not None and not self.e_bfmi >= LEAST_BFMI
        if stuck:
            sentences.append(
                f"energy changes too little between draws to reach all of its values: E-BFMI is {self.e_bfmi:.2f}, below "
                f"{LEAST_BFMI}"
            )
        if self.ADVICE and (stuck or self.diverging):
            sentences.append(self.ADVICE)
        if self.energy_rounding > MOST_ROUNDING:
            sentences.append(
                f"energies are rounded by {self.energy_rounding:.2g} nats, above {MOST_ROUNDING}: use dtype=torch.float64"
            )
        return sentences

    @property
    def mixed(self) -> bool:
        """Whether there is no reason against using the draws; see `problems`."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """The numbers by name, with None for those that do not exist."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: None if value is None or not math.isfinite(value) else value for name, value in values.items()}

    @classmethod
    def of_dict(cls, values: Any) -> Diagnostics:
        """The inverse of `to_dict`; a ValueError for other values, as of a damaged file."""
        names = {field.name for field in fields(cls)}
        numbers = isinstance(values, Mapping) and all(
            isinstance(value, int | float | None) for value in values.values()
        )
        if not numbers or not names ^ values.keys() <= _OPTIONAL or not isinstance(values["chains"], int):
            raise ValueError("diagnostics must be numbers by name")
        known: dict[str, Any] = {n: math.nan if v is None and n not in _OPTIONAL else v for n, v in values.items()}
        return cls(**known)

    def describe(self) -> str:
        f, density = self.WHAT
        numbers = (
            f"R-hat of {f} {self.r_hat_f:.3f}, of {density} {self.r_hat_log_likelihood:.3f}; effective draws of {f} "
            f"{self.ess_f:.0f} (median {self.ess_f_median:.0f}), of {density} {self.ess_log_likelihood:.0f}; "
            f"{self.diverging} divergent"
        )
        judged = "; ".join(self.problems) or (
            "The chains have mixed" if self.chains != 1 else "The chain agrees with itself"
        )
        return f"{numbers}. {judged}{self.few and '; '}{self.few}."


class ProgramDiagnostics(Diagnostics):
    """Diagnostics of the draws of a Pyro program: its sites take the place of f, and its log density that of the likelihood.

    Every number of a site counts, in the coordinates of its support. Names are those of `Diagnostics`.
    """

    WHAT = "the sites", "the log density"
    ADVICE = (
        "parts of the posterior may be missing, as where the scale of a site depends on another: write the program in other "
        "coordinates, as by pyro.infer.reparam.LocScaleReparam(0.0)"
    )


_OPTIONAL = {"r_hat_within", "e_bfmi"}
MOST_ROUNDING = 0.05
"""nats; the acceptance probability is then wrong by a few per cent at most."""


def diagnose(
    f: Tensor,
    log_likelihood: Tensor,
    diverging: int,
    energy_rounding: float,
    energy: Tensor | None = None,
    kind: type[Diagnostics] = Diagnostics,
) -> Diagnostics:
    """Diagnostics from f ``[chains, draws, ...]``, the log likelihood and the energy ``[chains, draws]``, and the number of
    divergences."""
    columns = f.flatten(2).double().cpu().numpy()
    moving = columns[..., columns.reshape(-1, columns.shape[-1]).std(0) > 0]  # an f without spread, as of a dead ReLU
    if moving.shape[-1] == 0:
        raise ValueError("f is the same in all draws at all of these points: give points at which it differs")
    each = [(*_ess_of(moving[..., i]), _r_hat_of(moving[..., i])) for i in range(moving.shape[-1])]
    likelihoods = log_likelihood.double().cpu().numpy()
    ess = [min(bulk, tail) for bulk, tail, _ in each]
    r_hat, r_hat_likelihood = _worst(*(r_hat for *_, r_hat in each)), _r_hat_of(likelihoods)
    apart = len(f) > 1 and not _worst(r_hat, r_hat_likelihood) <= MOST_R_HAT
    return kind(
        r_hat_f=r_hat,
        r_hat_log_likelihood=r_hat_likelihood,
        ess_f=_least(ess),
        ess_f_median=float(np.median([bulk for bulk, *_ in each])),
        ess_log_likelihood=_least(_ess_of(likelihoods)),
        diverging=diverging,
        energy_rounding=energy_rounding,
        chains=len(f),
        r_hat_within=_within(moving) if apart else None,
        e_bfmi=None if energy is None else _e_bfmi(energy),
    )


def _e_bfmi(energy: Tensor) -> float:
    """E-BFMI of all chains ``[chains, draws]`` together."""
    change = energy.diff(dim=1).square().mean()
    return float(change / (energy - energy.mean()).square().mean())


def _within(values: Any) -> float | None:
    """The median R-hat of the halves of one chain, over chains and some columns of ``[chains, draws, columns]``."""
    columns = range(0, values.shape[-1], max(1, values.shape[-1] // _SOME))
    each = [_r_hat_of(chain[None, :, column]) for chain in values for column in columns]
    known = [value for value in each if math.isfinite(value)]  # not of a chain that has not moved
    return float(np.median(known)) if known else None


def _ess_of(values: Any) -> tuple[float, float]:
    """Bulk and tail effective sample size of ``[chains, draws]``."""
    from arviz_stats.base import array_stats  # slow to import

    return float(array_stats.ess(values, method="bulk")), float(
        array_stats.ess(values, method="tail", prob=(0.05, 0.95))
    )


def _r_hat_of(values: Any) -> float:
    from arviz_stats.base import array_stats

    if len(values) == 1:  # which ArviZ does not split
        values = values[:, : values.shape[1] // 2 * 2].reshape(2, -1)
    return float(array_stats.rhat(values, method="rank"))


def _worst(*values: float) -> float:
    """The largest number; NaN if one is."""
    return math.nan if any(math.isnan(value) for value in values) else max(values)


def _least(values: Any) -> float:
    return math.nan if any(math.isnan(value) for value in values) else float(min(values))
