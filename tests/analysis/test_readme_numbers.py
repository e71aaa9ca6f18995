"""Numbers that the README quotes are those of the result files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
README = re.sub(r"\s+", " ", (ROOT / "README.md").read_text(encoding="utf-8"))


def result(path: str) -> Any:
    return json.loads((ROOT / "analysis" / path).read_text(encoding="utf-8"))


def test_effective_samples_beside_numpyros() -> None:
    cases = result("benchmarks/results/sampling-cpu.json")["cases"]
    origin, yacht = (cases[name]["times as fast"]["median per s"] for name in ("2-50-1, origin", "6-50-1, yacht"))
    assert (
        f"it draws {origin:.1f} times as many effective samples of f a second as NumPyro's NUTS on the 2-50-1 network of "
        f"Foong et al. (2020), and {yacht:.1f} times as many on 6-50-1 for yacht"
    ) in README
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
    ) in README


def test_the_time_and_the_verdicts_of_calibration() -> None:
    timed = result("benchmarks/results/calibration-cpu.json")
    assert f"1,000 fits of 13-50-1 take {timed['cpu_seconds']:.0f} s of one core" in README
    assert (timed["count"], timed["steps"]) == (1000, 2000)
    assert "mean field, low rank and variational dropout come out too wide at the data and too narrow far out" in README
    assert "MC dropout too narrow everywhere" in README
    verdict = {name: own["verdict"] for name, own in result("reference/sbc.json")["posteriors"].items()}
    for name in ("mean-field", "low-rank", "variational-dropout"):
        assert "f[0]: too wide" in verdict[name]
        assert "f[2]: too narrow" in verdict[name]
    assert "f[0], f[1], f[2]: too narrow" in verdict["mc-dropout"]
