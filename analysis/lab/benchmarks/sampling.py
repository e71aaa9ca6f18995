"""Effective samples of f per second: `pyrodrop.sample` against NumPyro's NUTS and blackjax's ChEES, on the same posteriors.

``python -m pyrodrop.analysis.lab.benchmarks.sampling [--python '[PYTHON]'] [--out FILE]``: 2-50-1 on the 100 points of
Foong et al. (2020), at 20 points of their slice, and 6-50-1 on the first split of yacht, at its test points. One thread,
processor time, one run; peers run in the interpreter that has them (`analysis/lab/peers`). All have the same posterior, and
the output has the differences of means and spreads of f from ours in standard errors. ChEES of blackjax has as many chains,
tuning steps and draws as ours, with an adapted metric and, its default, without. Ratios are to the best peer among those
that have mixed. Real data are read from PYRODROP_DATA.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from arviz_stats.base import array_stats
from torch import Tensor, nn

import pyrodrop
from pyrodrop.analysis.lab.benchmarks.timing import begin, command, report, write
from pyrodrop.analysis.lab.peers.processes import SCRIPTS, interpreters, run_script
from pyrodrop.analysis.reports.terminal import paragraph


@dataclass(frozen=True)
class Case:
    """A posterior, and points at which f is compared; x, y and points are not standardised further."""

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

    def arrays(self, draws: int, steps: int) -> dict[str, Any]:
        """The content of the file for the scripts of the peers."""
        data = {name: getattr(self, name).numpy() for name in ("x", "y", "points")}
        sizes = {"widths": self.widths, "activation": "relu", "scales": self.scales, "precision": self.precision}
        numbers = {"draws": draws, "steps": steps, "seed": 0}
        return data | {name: np.array(value) for name, value in (sizes | numbers).items()}


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


MIXED = 1.05  # R-hat below which the chains of a peer have mixed
CASES: dict[str, Callable[[], Case]] = {"origin": origin, "yacht": yacht}
CHAINS, TUNE, DRAWS = 64, 600, 250  # for ours and for blackjax
METHODS = {  # total draws, and steps: `scripts/numpyro_.py` tunes for a sixth of them, `scripts/blackjax_.py` for a twelfth
    "NumPyro, NUTS": ("numpyro", "numpyro_.py", "NUTS", 2000, 3000),
    "blackjax, ChEES": ("blackjax", "blackjax_.py", "64 ChEES, masses", CHAINS * DRAWS, 12 * TUNE),
    "blackjax, ChEES, no masses": ("blackjax", "blackjax_.py", "64 ChEES", CHAINS * DRAWS, 12 * TUNE),
}


def main(cases: list[str] = list(CASES), python: list[Path] = [], out: Path | None = None) -> None:  # noqa: B006
    """Sample by all methods and compare.

    Args:
        cases: ``origin``, ``yacht``.
        python: interpreters with the peers; the running one is tried last.
        out: JSON file for the results.
    """
    begin()
    interpreter = interpreters(python, ["numpyro", "blackjax"])
    compared, releases = {}, dict[str, str]()
    for case in (CASES[name]() for name in cases):
        rows, functions = {}, {}
        for name, (package, script, method, draws, steps) in METHODS.items():
            with tempfile.TemporaryDirectory() as folder:
                f, about = run_script(
                    SCRIPTS / script, method, interpreter[package], case.arrays(draws, steps), Path(folder), 3600.0
                )
            functions[name] = f.reshape(about["settings"]["chains"], -1, len(case.points)).astype(np.float64)
            seconds = about["settings"]["drawing"]
            rows[name] = row(functions[name], seconds, about["seconds"] - seconds, about["settings"]["steps"])
            releases |= about["versions"]
        begun = time.process_time()
        sampled = pyrodrop.sample(case.model(), (case.x, case.y), chains=CHAINS, tune=TUNE, draws=DRAWS)
        whole, seconds = time.process_time() - begun, sampled.settings["drawing_cpu_seconds"]
        f = sampled.predict(case.points, CHAINS * DRAWS).f.reshape(CHAINS, DRAWS, -1).double().numpy()
        rows["ours"] = row(f, seconds, whole - seconds, int(sampled.stats["n_steps"].sum()))
        columns = ("median per s", "least per s", "median, tuning too")
        mixed = [name for name in METHODS if rows[name]["R-hat"] < MIXED]
        ratio = {c: rows["ours"][c] / max(rows[name][c] for name in mixed) for c in columns}
        report(f"{case.name}: effective samples of f", rows, ".3g")
        apart = {name: agreement(theirs, f) for name, theirs in functions.items()}
        for name, of in apart.items():
            paragraph(f"{name}: means of f differ by {of['mean']:.1f} standard errors at most, ln sd by {of['sd']:.1f}")
        paragraph("times as many a second as the better peer: " + ", ".join(f"{c} {r:.1f}" for c, r in ratio.items()))
        compared[case.name] = {"rows": rows, "times as fast": ratio, "largest difference in standard errors": apart}
    settings = {"chains": CHAINS, "tune": TUNE, "draws": DRAWS, "peer chains": 2, "peer draws": 1000}
    write(out, "sampling", {"peers": releases, **settings, "cases": compared})


def row(f: Any, seconds: float, before: float, steps: int) -> dict[str, float]:
    """The row of one sampler from f ``[chains, draws, points]``, seconds of drawing and before, and leapfrog steps."""
    size = ess(f)
    return {
        "median per s": float(np.median(size)) / seconds,
        "least per s": float(size.min()) / seconds,
        "median, tuning too": float(np.median(size)) / (seconds + before),
        "effective": float(np.median(size)),
        "us per step": 1e6 * seconds / steps,
        "steps per effective": steps / float(np.median(size)),
        "R-hat": max(float(array_stats.rhat(f[..., i], method="rank")) for i in range(f.shape[-1])),
        "seconds": seconds,
        "tuning": before,
    }


def ess(f: Any) -> Any:
    """Bulk effective sample size at every point."""
    return np.array([float(array_stats.ess(f[..., i], method="bulk")) for i in range(f.shape[-1])])


def agreement(f: Any, other: Any) -> dict[str, float]:
    """The largest difference over points of the means of f, and of the logarithms of its sd, in standard errors."""

    def mean(f: Any) -> tuple[Any, Any]:
        return f.mean((0, 1)), f.var((0, 1)) / ess(f)

    def spread(f: Any) -> tuple[Any, Any]:
        centred = (f - f.mean((0, 1))) ** 2
        variance, error = mean(centred)
        return 0.5 * np.log(variance), 0.25 * error / variance**2

    largest = {}
    for name, of in (("mean", mean), ("sd", spread)):
        (a, va), (b, vb) = of(f), of(other)
        largest[name] = float(np.abs((a - b) / np.sqrt(va + vb)).max())
    return largest


if __name__ == "__main__":
    command(main)
