"""Published results of sparse LeNets on MNIST: test error, sparsity per layer, compression (weights over kept weights), or
the kept units and the factor by which operations are fewer.

Molchanov, Ashukha & Vetrov (2017), table 1, where Pruning is Han et al. (2015), DNS Guo et al. (2016) and SWS Ullrich et al.
(2017); the solution of the Deep|Bayes (2019) exercise; slides on ARD by Mittov, which give no error. By units: Neklyudov et
al. (2017), table in https://github.com/necludov/group-sparsity-sbp, whose dense LeNet-fc is 784-500-300-10.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyrodrop.analysis.lab.experiments.published_figures import figures

_NAMES = {
    ("molchanov2017", "Original"): "original", ("molchanov2017", "Pruning"): "Pruning", ("molchanov2017", "DNS"): "DNS",
    ("molchanov2017", "SWS"): "SWS", ("molchanov2017", "SparseVD"): "sparse VD, Molchanov et al.",
    ("deepbayes2019", "SparseVD"): "sparse VD, Deep|Bayes", ("mittov", "ARD"): "ARD, Mittov",
    ("neklyudov2017", "Original"): "original, Neklyudov et al.", ("neklyudov2017", "SSL"): "SSL",
    ("neklyudov2017", "SparseVD"): "sparse VD, Neklyudov et al.",
    ("neklyudov2017", "StructuredBP"): "StructuredBP, Neklyudov et al.",
}  # fmt: skip
_METRICS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "test error %": ("error", lambda percent: round(percent / 100, 6)),
    "test acc %": ("error", lambda percent: round(1 - percent / 100, 6)),
    "sparsity per layer %": ("sparsity", lambda shares: [round(share / 100, 6) for share in shares]),
    "sparsity fc1,fc2,fc3": ("sparsity", list),
    "compression": ("compression", float),
    "kept-weight ratio": ("compression", float),
}


def published_rows(net: str) -> list[dict[str, Any]]:
    """The published rows for a network, with shares between 0 and 1; None for values that were not published."""
    data = {"lenet-300-100": "MNIST LeNet-300-100", "lenet-5": "MNIST LeNet-5-Caffe"}[net]
    rows: dict[str, dict[str, Any]] = {}
    for figure in figures():
        name = _NAMES.get((figure.paper, figure.method))
        if figure.data == data and name is not None and figure.metric in _METRICS:
            row = rows.setdefault(name, {"method": name, "error": None, "sparsity": None, "compression": None})
            key, shown = _METRICS[figure.metric]
            row[key] = shown(figure.value)
    return list(rows.values())


def published(net: str, method: str, recipe: str) -> float | None:
    """The published compression for this training; None if there is none."""
    if recipe == "neklyudov2017":
        return None
    name = {"molchanov2017": "sparse VD, Molchanov et al.", "deepbayes2019": "sparse VD, Deep|Bayes"}[recipe]
    name = "ARD, Mittov" if method == "ard" else name
    values = [row["compression"] for row in published_rows(net) if row["method"] == name]
    return values[0] if values else None


def published_by_unit(net: str) -> list[dict[str, Any]]:
    """Published rows for a network from which units are removed: test error, kept units, and operations of the dense network
    over those of the sparse one."""
    data = {"lenet-300-100": "MNIST LeNet-fc", "lenet-5": "MNIST LeNet5"}[net]
    rows = [figure for figure in figures() if (figure.paper, figure.data) == ("neklyudov2017", data)]
    keys = ("error", "units", "flops")
    made = [{"method": _NAMES[row.paper, row.method], **dict(zip(keys, row.value, strict=True))} for row in rows]
    return [row | {"error": round(row["error"] / 100, 6)} for row in made]


def units_left(content: Mapping[str, Any]) -> list[int]:
    """The numbers of kept units, as the paper counts them, from the results of a run that removes units.

    For LeNet-300-100 these are inputs, hidden units and the 10 outputs; for LeNet-5 the maps of both convolutions and the
    inputs of both dense layers.
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
