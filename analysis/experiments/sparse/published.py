"""Published results of sparse LeNets on MNIST: test error, sparsity per layer, compression (weights over kept weights).

Molchanov, Ashukha & Vetrov (2017), table 1, where Pruning is Han et al. (2015), DNS Guo et al. (2016) and SWS Ullrich et al.
(2017); the solution of the Deep|Bayes (2019) exercise; slides on ARD by Mittov, which give no error.
"""

from __future__ import annotations

from typing import Any

_COLUMNS = ("method", "error", "sparsity", "compression")
_TABLE: dict[str, tuple[tuple[str, float | None, tuple[float, ...] | None, float], ...]] = {
    "lenet-300-100": (
        ("original", 0.0164, None, 1.0),
        ("Pruning", 0.0159, (0.920, 0.910, 0.740), 12.0),
        ("DNS", 0.0199, (0.982, 0.982, 0.945), 56.0),
        ("SWS", 0.0194, None, 23.0),
        ("sparse VD, Molchanov et al.", 0.0192, (0.989, 0.972, 0.620), 68.0),
        ("sparse VD, Deep|Bayes", 0.016, (0.973, 0.955, 0.700), 32.9),
        ("ARD, Mittov", None, None, 35.0),
    ),
    "lenet-5": (
        ("original", 0.0080, None, 1.0),
        ("Pruning", 0.0077, (0.34, 0.88, 0.920, 0.81), 12.0),
        ("DNS", 0.0091, (0.86, 0.97, 0.993, 0.96), 111.0),
        ("SWS", 0.0097, None, 200.0),
        ("sparse VD, Molchanov et al.", 0.0075, (0.67, 0.98, 0.998, 0.95), 280.0),
    ),
}


def published_rows(net: str) -> list[dict[str, Any]]:
    """The published rows for a network, with shares between 0 and 1; None for values that were not published."""
    rows = [dict(zip(_COLUMNS, row, strict=True)) for row in _TABLE[net]]
    return [row | {"sparsity": [*row["sparsity"]] if isinstance(row["sparsity"], tuple) else None} for row in rows]


def published(net: str, method: str, recipe: str) -> float | None:
    """The compression that was published for this training; None if there is none."""
    name = {"molchanov2017": "sparse VD, Molchanov et al.", "deepbayes2019": "sparse VD, Deep|Bayes"}[recipe]
    name = "ARD, Mittov" if method == "ard" else name
    found = [row["compression"] for row in published_rows(net) if row["method"] == name]
    return found[0] if found else None
