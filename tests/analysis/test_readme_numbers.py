"""Numbers that the README and the page of the references quote are those of the result files."""

from __future__ import annotations

import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

from pyrodrop.zoo.uci_published import PUBLISHED

ROOT = Path(__file__).parents[2]
README = re.sub(r"\s+", " ", (ROOT / "README.md").read_text(encoding="utf-8"))
REFERENCES = re.sub(r"\s+", " ", (ROOT / "analysis" / "reference" / "README.md").read_text(encoding="utf-8"))
JUDGING = re.sub(r"\s+", " ", (ROOT / "docs" / "judging.md").read_text(encoding="utf-8"))


def result(path: str) -> Any:
    return json.loads((ROOT / "analysis" / path).read_text(encoding="utf-8"))


def test_effective_samples_beside_numpyros() -> None:
    cases = result("benchmarks/results/sampling-cpu.json")["cases"]
    origin, yacht = (cases[name]["times as fast"]["median per s"] for name in ("2-50-1, origin", "6-50-1, yacht"))
    assert f"HMC draws {origin:.1f} times as many effective samples a second as NumPyro's NUTS" in README
    assert f"{origin:.1f} times as many effective samples" in JUDGING
    assert f"{yacht:.1f} times as many" in JUDGING
    for case in cases.values():
        rows = case["rows"]
        ratio = rows["ours"]["median per s"] / rows["NumPyro, NUTS"]["median per s"]
        assert case["times as fast"]["median per s"] == ratio
        assert all(rows[name]["R-hat"] < 1.05 for name in rows)
        assert all(apart < 4 for apart in case["largest difference in standard errors"].values())


def test_between_two_clusters() -> None:
    tables = result("reference/critiques.json")["panels"]["foong"]["tables"]
    rows = next(own for name, own in tables.items() if name.startswith("standard deviation"))
    ratio = {name: row["ratio"] for name, row in rows.items()}
    assert (
        f"the exact posterior is {ratio['1 hidden, HMC (ours)']:.0f} times less sure than at them (published: "
        f"{ratio['1 hidden, HMC, published']:.0f}), a deep ensemble of five "
        f"{ratio['1 hidden, deep ensemble']:.0f} times, and MC dropout {ratio['1 hidden, MC dropout, rate .05']:.1f} times"
    ) in REFERENCES
    assert (
        f"its standard deviation of f is {ratio['1 hidden, MC dropout, rate .05']:.1f} times that at the data, the exact "
        f"posterior's {ratio['1 hidden, HMC (ours)']:.0f} times"
    ) in README
    assert (
        f"is {ratio['1 hidden, HMC (ours)']:.0f} times less sure than at them, a deep ensemble of five "
        f"{ratio['1 hidden, deep ensemble']:.0f} times, and MC dropout {ratio['1 hidden, MC dropout, rate .05']:.1f} times"
    ) in JUDGING


def test_the_time_and_the_verdicts_of_calibration() -> None:
    timed = result("benchmarks/results/calibration-cpu.json")
    assert f"1,000 fits of 13-50-1 take {timed['cpu_seconds']:.0f} s of one core" in REFERENCES
    assert (timed["count"], timed["steps"]) == (1000, 2000)
    assert (
        "mean field, low rank and variational dropout come out too wide at the data and too narrow far out"
        in REFERENCES
    )
    assert "MC dropout too narrow everywhere" in REFERENCES
    assert "MC dropout is too narrow everywhere on 13-50-1" in README
    verdict = {name: own["verdict"] for name, own in result("reference/sbc.json")["posteriors"].items()}
    for name in ("mean-field", "low-rank", "variational-dropout"):
        assert "f[0]: too wide" in verdict[name]
        assert "f[2]: too narrow" in verdict[name]
    assert "f[0], f[1], f[2]: too narrow" in verdict["mc-dropout"]


def test_the_published_figures_of_uci() -> None:
    """Within two combined standard errors of the published mean, in both scores, on every data set."""
    cells = list((ROOT / "analysis" / "reference" / "uci" / "gal2016").glob("*-bernoulli.json"))
    apart = {}
    for cell in (json.loads(path.read_text(encoding="utf-8")) for path in cells):
        name = cell["cell"]["data"]
        theirs = PUBLISHED["gal2016"][name]
        apart[name] = max(
            abs(statistics.fmean(cell[metric]) - published[0])
            / math.hypot(statistics.stdev(cell[metric]) / len(cell[metric]) ** 0.5, published[1])
            for metric, published in (("rmse", theirs.rmse), ("log_density", theirs.log_density))
        )
    near = sum(value < 2 for value in apart.values())
    assert f"within two standard errors of the published figures on {near} of {len(apart)} data sets" in README


def test_the_calibration_of_a_classifier() -> None:
    """Numbers of the page, as the file has them; averaging is not better."""
    rotated = result("reference/rotated-digit.json")
    weights, draws = rotated["scores"]["weight averaging"], rotated["scores"]["T = 100"]
    apart, auroc = rotated["difference"]["ece"], rotated["auroc"]["mean"]

    def short(value: float, digits: int = 4) -> str:
        return f"{value:.{digits}f}"[1:]

    assert (
        f"100 draws have an ECE of {short(draws['ece'])} on MNIST's test set, weight averaging {short(weights['ece'])} "
        f"(difference {short(apart['difference'])} ± {short(apart['se'])}), a Brier score of {short(draws['brier'])} "
        f"against {short(weights['brier'])}, and {100 - draws['error_percent']:.2f} % of their predictions are right"
    ) in REFERENCES
    assert f"AUROC {short(auroc['T = 100'], 3)} against {short(auroc['weight averaging'], 3)}" in REFERENCES
    assert draws["ece"] > weights["ece"] + 2 * apart["se"]
