"""Report on a compression: measurements of a network before and after.

Parameters are all weights and biases that a network stores, including zeros in dense layouts. Weights are counted as in the
papers: those that are not 0, without biases. Bytes are those of 32-bit values: of all entries of a weight, or of the nonzero
ones with their places by row where that is less. FLOPs are for one example, with two per weight and position that it is
applied at. Latency is the median of interleaved calls on this machine, in this process, with the current number of PyTorch
threads.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from pyrodrop.compression.kept import ratio
from pyrodrop.compression.layout import latency, parameter_count
from pyrodrop.compression.steps import Affine, Step, network_of
from pyrodrop.data import Dataset
from pyrodrop.distributions.censored import exact_values

_ROWS = 1000  # rows that are evaluated at a time, and size of the larger batch that is timed
_WIDE = 100_000  # characters, more than a table has: the widths of a deep network are not cut


@dataclass(frozen=True)
class Measured:
    """Measurements of one network.

    Attributes:
        units: number of outputs of every layer.
        weights: number of weights that are not 0.
        parameters: number of weights and biases that are stored.
        bytes_32: bytes of its weights and biases, as 32-bit values.
        flops: floating-point operations per example.
        latency_1: seconds per call for a batch of 1 example.
        latency_1000: seconds per call for a batch of 1,000 examples.
        error: fraction of wrong labels, or root mean squared error in the units of y.
    """

    units: list[int]
    weights: int
    parameters: int
    bytes_32: int
    flops: int
    latency_1: float
    latency_1000: float
    error: float


@dataclass(frozen=True, repr=False)
class CompressionReport:
    """Measurements of the dense network of all posterior means and of the compressed network.

    Attributes:
        dense: measurements of the dense network.
        compressed: measurements of the compressed network.
        error_name: name of the error, ``error`` for class labels and ``RMSE`` otherwise.
        threshold: bound of ln alpha; weights at or above it are pruned.
        kl_weight: factor of the KL divergence at the end of training. With a factor below 1, training did not maximise
            the ELBO, on which pruning by alpha is based.
        threads: number of PyTorch threads during the latency measurements.
    """

    dense: Measured
    compressed: Measured
    error_name: str
    threshold: float
    kl_weight: float
    threads: int

    @property
    def ratios(self) -> dict[str, float | None]:
        """Dense over compressed, of whatever is smaller when it is better; None where nothing is left."""
        dense, small = asdict(self.dense), asdict(self.compressed)
        names = ("weights", "parameters", "bytes_32", "flops", "latency_1", "latency_1000")
        return {name: ratio(dense[name], small[name]) for name in names}

    def record(self) -> dict[str, Any]:
        """All measurements and ratios as a dictionary that can be written as JSON."""
        return {**asdict(self), "ratios": self.ratios}

    def __repr__(self) -> str:
        screen = Console(width=_WIDE, file=io.StringIO())
        screen.print(self)
        return screen.file.getvalue()  # type: ignore[attr-defined, no-any-return]

    def __rich__(self) -> Table:
        table = Table(
            title=f"compression at threshold {self.threshold:g}",
            caption=f"dense: the posterior mean; latencies with {self.threads} thread{'s' * (self.threads > 1)}",
        )
        for column in ("", "dense", "compressed", "ratio"):
            table.add_column(column, justify="right" if column else "left", no_wrap=True)
        ratios = self.ratios
        shown = {
            "weights": "{:,}",
            "parameters": "{:,}",
            "bytes_32": "{:,}",
            "flops": "{:,}",
            "latency_1": "{:.2e} s",
            "latency_1000": "{:.2e} s",
            "error": "{:.4g}",
        }
        table.add_row("units", *("-".join(map(str, m.units)) for m in (self.dense, self.compressed)), "")
        for name, form in shown.items():
            pair = [form.format(getattr(m, name)) for m in (self.dense, self.compressed)]
            label = name.replace("error", self.error_name).replace("bytes_32", "bytes").replace("_", " ")
            table.add_row(label, *pair, _times(ratios[name]) if name in ratios else "")
        return table


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}x"


def measure(
    dense: Sequence[Step], small: Sequence[Step], data: Dataset, threshold: float, kl_weight: float
) -> CompressionReport:
    """Measure two networks on `data`."""
    networks: dict[str, nn.Module] = {"dense": network_of(dense), "compressed": network_of(small)}
    x = data.x.float()
    rows = x if len(x) >= _ROWS else x.repeat(-(-_ROWS // len(x)), *(1,) * (x.dim() - 1))
    one, many = (latency(networks, rows[:size].contiguous()) for size in (1, _ROWS))
    costs = {
        name: _measured(steps, networks[name], data, (one[name], many[name]))
        for name, steps in (("dense", dense), ("compressed", small))
    }
    name = "RMSE" if data.y.is_floating_point() else "error"
    threads = torch.get_num_threads()
    return CompressionReport(costs["dense"], costs["compressed"], name, threshold, kl_weight, threads)


def _measured(steps: Sequence[Step], network: nn.Module, data: Dataset, seconds: tuple[float, float]) -> Measured:
    layers = [step for step in steps if isinstance(step, Affine)]
    return Measured(
        units=[len(layer.bias) for layer in layers],
        weights=sum(int(layer.weight.count_nonzero()) for layer in layers),
        parameters=parameter_count(network),
        bytes_32=sum(_bytes(layer.weight.flatten(1)) + 4 * len(layer.bias) for layer in layers),
        flops=_flops(network, data.x[:1].float()),
        latency_1=seconds[0],
        latency_1000=seconds[1],
        error=error(network, data),
    )


def _bytes(weight: Tensor) -> int:
    """Bytes of a weight ``[out, in]`` in float32, whole or as nonzero values with their places and their numbers by row."""
    places, counts = (1 if most < 2**8 else 2 if most < 2**16 else 4 for most in (weight.shape[1] - 1, weight.shape[1]))
    return min(4 * weight.numel(), (4 + places) * int(weight.count_nonzero()) + counts * len(weight))


def error(network: nn.Module, data: Dataset) -> float:
    """Fraction of wrong labels if y has an integer dtype, otherwise the root mean squared error in the units of y.

    Raises:
        ValueError: y are the ends of intervals.
    """
    total, count = 0.0, 0
    with torch.no_grad():
        for x, y in zip(data.x.split(_ROWS), data.y.split(_ROWS), strict=True):
            f = network(x.float())
            if y.is_floating_point():
                y = y.reshape(len(y), -1)
                if y.shape[1] == 2 * f.shape[1]:
                    y = exact_values(y, "the error of a network")
                total += float((f.double() - y).square().sum())
                count += y.numel()
            else:
                total += int((f.argmax(-1) != y).sum())
    return (total / count) ** 0.5 if data.y.is_floating_point() else total / len(data)


def _flops(network: nn.Module, x: Tensor) -> int:
    total = 0

    def count(layer: Any, _: Any, output: Tensor) -> None:
        nonlocal total
        weight: Tensor = layer.weight
        held = weight.values().numel() if weight.layout is torch.sparse_csr else weight.numel()
        places = output[0, ..., 0] if weight.dim() == 2 else output[0, 0]
        total += 2 * held * places.numel()

    hooks = [m.register_forward_hook(count) for m in network.modules() if hasattr(m, "weight")]
    with torch.no_grad():
        network(x)
    for hook in hooks:
        hook.remove()
    return total
