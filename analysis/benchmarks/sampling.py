"""Effective samples of f per second: `pyrodrop.sample` against NumPyro's NUTS and blackjax's ChEES, on the same posteriors.

``python -m pyrodrop.analysis.benchmarks.sampling [--draws N] [--out FILE]``: 2-50-1 on the 100 points of Foong et al.
(2020), at 20 points of their slice, and 6-50-1 on the first split of yacht, at its test points. One thread, processor time,
one run. All have the same energy, and the table says by how many standard errors means and spreads of f differ from ours.
ChEES of blackjax has as many chains, steps of tuning and draws as ours, with adapted masses and, as by its default, without;
the better peer is among those that have mixed. Peers are installed as `peers.txt` says. Real data are read from
PYRODROP_DATA.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arviz_stats.base import array_stats
from torch import Tensor, nn

import pyrodrop
from pyrodrop.analysis.benchmarks.peers.blackjax_chees import chees
from pyrodrop.analysis.benchmarks.peers.numpyro_nuts import Regression, energy, nuts
from pyrodrop.analysis.benchmarks.timing import command, machine, report, write
from pyrodrop.analysis.reports.terminal import paragraph


@dataclass(frozen=True)
class Case:
    """A posterior and points to judge it at; x, y and points are used as they are."""

    name: str
    widths: tuple[int, ...]
    scales: tuple[float, ...]
    precision: float
    x: Tensor
    y: Tensor
    points: Tensor

    def model(self) -> pyrodrop.models.NetworkModel:
        """The model, with sites ``0.weight, 0.bias, 2.weight, 2.bias``."""
        layers: list[nn.Module] = []
        for inputs, outputs in zip(self.widths[:-1], self.widths[1:], strict=True):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        priors = {f"{2 * layer}.weight": pyrodrop.priors.Gaussian(s) for layer, s in enumerate(self.scales)}
        return pyrodrop.models.from_module(
            nn.Sequential(*layers[:-1]),
            prior=priors,
            bias_prior=pyrodrop.priors.Gaussian(1.0),
            likelihood=pyrodrop.likelihoods.Gaussian(self.precision),
        )

    def peer(self) -> Regression:
        """The same for NumPyro."""
        return Regression(self.widths, self.scales, 1.0, self.precision, self.x.numpy(), self.y.numpy())


def origin() -> Case:
    """w ~ N(0, 4^2 / fan-in), noise 0.1 (Foong et al. 2020)."""
    split = pyrodrop.data.foong2020()
    return Case(
        "2-50-1, origin", (2, 50, 1), (4 / 2**0.5, 4 / 50**0.5), 100.0, split.train.x, split.train.y, split.test.x[::25]
    )


def yacht() -> Case:
    """w ~ N(0, 1 / fan-in), noise 0.1, on standardised data."""
    split = pyrodrop.data.uci("yacht")[0]
    train, points = split.train, split.test.x
    mean, sd = train.x.mean(0), train.x.std(0)
    y = (train.y - train.y.mean()) / train.y.std()
    return Case("6-50-1, yacht", (6, 50, 1), (6**-0.5, 50**-0.5), 100.0, (train.x - mean) / sd, y, (points - mean) / sd)


MIXED = 1.05  # R-hat below which a peer counts
CASES: dict[str, Callable[[], Case]] = {"origin": origin, "yacht": yacht}


def main(
    cases: tuple[str, ...] = tuple(CASES),
    chains: int = 64,
    tune: int = 600,
    draws: int = 250,
    peer_chains: int = 2,
    peer_draws: int = 1000,
    out: Path | None = None,
) -> None:
    """Sample by both and compare.

    Args:
        cases: ``origin``, ``yacht``.
        chains: of ours, and of blackjax.
        tune: transitions of both before the draws.
        draws: of each of these chains.
        peer_chains: of NumPyro.
        peer_draws: of each of NumPyro's chains, after half as many to warm up.
        out: JSON file for the results.
    """
    torch.set_num_threads(1)
    print(machine())
    found = {}
    for case in (CASES[name]() for name in cases):
        same_energy(case)
        runs = {
            "NumPyro, NUTS": nuts(case.peer(), case.points.numpy(), peer_chains, peer_draws // 2, peer_draws),
            "blackjax, ChEES": chees(case.peer(), case.points.numpy(), chains, tune, draws, True),
            "blackjax, ChEES, no masses": chees(case.peer(), case.points.numpy(), chains, tune, draws, False),
        }
        rows = {name: row(run.f, run.seconds, run.warming, run.steps) for name, run in runs.items()}
        begun = time.process_time()
        sampled = pyrodrop.sample(case.model(), (case.x, case.y), chains=chains, tune=tune, draws=draws)
        whole, seconds = time.process_time() - begun, sampled.settings["drawing_cpu_seconds"]
        f = sampled.predict(case.points, chains * draws).f.reshape(chains, draws, -1).double().numpy()
        rows["ours"] = row(f, seconds, whole - seconds, int(sampled.stats["n_steps"].sum()))
        columns = ("median per s", "least per s", "median, tuning too")
        mixed = [name for name in runs if rows[name]["R-hat"] < MIXED]
        ratio = {c: rows["ours"][c] / max(rows[name][c] for name in mixed) for c in columns}
        report(f"{case.name}: effective samples of f", rows, ".3g")
        apart = {name: agreement(run.f, f) for name, run in runs.items()}
        for name, of in apart.items():
            paragraph(f"{name}: means of f differ by {of['mean']:.1f} standard errors at most, ln sd by {of['sd']:.1f}")
        paragraph("times as many a second as the better peer: " + ", ".join(f"{c} {r:.1f}" for c, r in ratio.items()))
        found[case.name] = {"rows": rows, "times as fast": ratio, "largest difference in standard errors": apart}
    settings = {"chains": chains, "tune": tune, "draws": draws, "peer chains": peer_chains, "peer draws": peer_draws}
    peers = {name: metadata.version(name) for name in ("numpyro", "blackjax", "jax")}
    write(out, "sampling", {"peers": peers, **settings, "cases": found})


def same_energy(case: Case) -> None:
    """Raise a SystemExit unless both have the same energy, up to rounding, at two draws from the prior."""
    p = pyrodrop.potential(case.model(), (case.x, case.y), engine="traced")
    for seed in range(2):
        values = p.initial_params(seed)
        own, kinds = float(p(values)), {"weight": "w", "bias": "b"}
        names = {name: f"{kinds[name.split('.')[1]]}{int(name.split('.')[0]) // 2}" for name in values}
        other = energy(case.peer(), {names[name]: value.numpy() for name, value in values.items()})
        if not np.isclose(own, other, rtol=1e-4):
            raise SystemExit(
                f"{case.name}: the energy is {own} by us and {other} by NumPyro: not one posterior to time"
            )


def row(f: Any, seconds: float, before: float, steps: int) -> dict[str, float]:
    """The numbers of one sampler from f ``[chains, draws, points]``, processor times and leapfrog steps."""
    size = ess(f)
    return {
        "median per s": float(np.median(size)) / seconds,
        "least per s": float(size.min()) / seconds,
        "median, tuning too": float(np.median(size)) / (seconds + before),
        "effective": float(np.median(size)),
        "us per step": 1e6 * seconds / steps,
        "steps per effective": steps / float(np.median(size)),
        "R-hat": max(float(array_stats.rhat(f[..., i])) for i in range(f.shape[-1])),
        "seconds": seconds,
        "tuning": before,
    }


def ess(f: Any) -> Any:
    """Bulk effective sample size at every point."""
    return np.array([float(array_stats.ess(f[..., i])) for i in range(f.shape[-1])])


def agreement(one: Any, other: Any) -> dict[str, float]:
    """The largest difference over points of the means of f, and of the logarithms of its sd, in standard errors."""

    def mean(f: Any) -> tuple[Any, Any]:
        return f.mean((0, 1)), f.var((0, 1)) / ess(f)

    def spread(f: Any) -> tuple[Any, Any]:
        centred = (f - f.mean((0, 1))) ** 2
        variance, error = mean(centred)
        return 0.5 * np.log(variance), 0.25 * error / variance**2

    found = {}
    for name, of in (("mean", mean), ("sd", spread)):
        (a, va), (b, vb) = of(one), of(other)
        found[name] = float(np.abs((a - b) / np.sqrt(va + vb)).max())
    return found


if __name__ == "__main__":
    command(main)
