"""Units that a sparse LeNet keeps, as Neklyudov et al. (2017) count them: https://github.com/necludov/group-sparsity-sbp."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
