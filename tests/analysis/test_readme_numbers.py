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
