"""Published results of sparse LeNets on MNIST: test error, sparsity per layer, compression (weights over kept weights), or
units that are left and how many times fewer operations.

Molchanov, Ashukha & Vetrov (2017), table 1, where Pruning is Han et al. (2015), DNS Guo et al. (2016) and SWS Ullrich et al.
(2017); the solution of the Deep|Bayes (2019) exercise; slides on ARD by Mittov, which give no error. By units: Neklyudov et
al. (2017), table in https://github.com/necludov/group-sparsity-sbp, whose dense LeNet-fc is 784-500-300-10.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    if recipe == "neklyudov2017":
        return None
    name = {"molchanov2017": "sparse VD, Molchanov et al.", "deepbayes2019": "sparse VD, Deep|Bayes"}[recipe]
    name = "ARD, Mittov" if method == "ard" else name
    values = [row["compression"] for row in published_rows(net) if row["method"] == name]
    return values[0] if values else None


# Test error, units that are left, operations of the dense network over those of this one.
_BY_UNIT: dict[str, tuple[tuple[str, float, str, float], ...]] = {
    "lenet-300-100": (
        ("original, Neklyudov et al.", 0.0154, "784-500-300-10", 1.0),
        ("sparse VD, Neklyudov et al.", 0.0157, "537-217-130-10", 3.73),
        ("SSL", 0.0149, "434-174-78-10", 6.06),
        ("StructuredBP, Neklyudov et al.", 0.0155, "245-160-55-10", 11.23),
    ),
    "lenet-5": (
        ("original, Neklyudov et al.", 0.0080, "20-50-800-500", 1.0),
        ("sparse VD, Neklyudov et al.", 0.0075, "17-32-329-75", 2.19),
        ("SSL", 0.0100, "3-12-800-500", 3.9),
        ("StructuredBP, Neklyudov et al.", 0.0086, "3-18-284-283", 10.49),
    ),
}


def published_by_unit(net: str) -> list[dict[str, Any]]:
    """The published rows for a network of which units are removed."""
    return [dict(zip(("method", "error", "units", "flops"), row, strict=True)) for row in _BY_UNIT[net]]


def units_left(content: Mapping[str, Any]) -> list[int]:
    """Units that are left, as the paper counts them, from the results of a run by unit.

    Of LeNet-300-100 the inputs, the hidden units and the 10 outputs; of LeNet-5 the maps of both convolutions and the inputs
    of both dense layers.
    """
    sparsity = content["result"]["sparsity"]
    left = {name: round(WIDTHS[name] * (1 - share)) for name, share in sparsity.items()}
    if "layers.0.weight" in left:
        return [*left.values(), 10]
    maps = content["compressed"]["compressed"]["units"][1]
    return [left["conv2.weight"], maps, left["ip1.weight"], left["ip2.weight"]]


DENSE = {"lenet-300-100": "784-300-100-10", "lenet-5": "20-50-800-500"}
# Number of input units of each weight.
WIDTHS = {
    "layers.0.weight": 784, "layers.1.weight": 300, "layers.2.weight": 100,
    "conv1.weight": 1, "conv2.weight": 20, "ip1.weight": 800, "ip2.weight": 500,
}  # fmt: skip
