"""Report on a compression: measurements of a network before and after.

Parameters are all weights and biases that a network stores, including zeros. Weights are counted as in papers on pruning:
those of dense layers and convolutions that are not 0, without biases. FLOPs are those of one example in dense layers and
convolutions, two per weight and position. Latency is the median of interleaved calls on this machine, in this process, with
the current number of PyTorch threads.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyro.distributions as dist
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from pyrodrop.compression.kept import ratio
from pyrodrop.data import Dataset
from pyrodrop.distributions.censored import exact_values
from pyrodrop.likelihoods import Bernoulli, HeteroscedasticGaussian
from pyrodrop.likelihoods.dispersed import Dispersed
from pyrodrop.likelihoods.shapes import elements

_ROWS = 1000  # rows that are evaluated at a time, and size of the larger batch that is timed
_ROUNDS, _SECONDS = 7, 0.02  # number of timing rounds, and least seconds of each
_WIDE = 100_000  # characters per line, so that Rich does not truncate the table


@dataclass(frozen=True)
class Measured:
    """Measurements of one network.

    Attributes:
        units: number of outputs of every layer.
        weights: number of weights that are not 0.
        parameters: number of weights and biases that are stored.
        flops: floating-point operations per example.
        latency_1: seconds per call for a batch of 1 example.
        latency_1000: seconds per call for a batch of 1,000 examples.
        error: fraction of wrong labels, or root mean squared error in the units of y.
    """

    units: list[int]
    weights: int
    parameters: int
    flops: int
    latency_1: float
    latency_1000: float
    error: float


@dataclass(frozen=True, repr=False)
class CompressionReport:
    """Measurements of the dense network, with the posterior means of all weights, and of the compressed network.

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
        """Dense divided by compressed, for sizes, FLOPs and latencies; None if the compressed value is 0."""
        dense, small = asdict(self.dense), asdict(self.compressed)
        names = ("weights", "parameters", "flops", "latency_1", "latency_1000")
        return {name: ratio(dense[name], small[name]) for name in names}

    def record(self) -> dict[str, Any]:
        """All measurements and ratios as a dictionary that can be written as JSON."""
        return {**asdict(self), "ratios": self.ratios}

    def __repr__(self) -> str:
        screen = Console(width=_WIDE, file=io.StringIO())
        screen.print(self)
        return screen.file.getvalue()  # type: ignore[attr-defined, no-any-return]

    def __rich__(self) -> Table:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        table = Table(
            title=f"compression at threshold {self.threshold:g}",
            caption=f"dense: the posterior mean; latencies with {threads}",
        )
        for column in ("", "dense", "compressed", "ratio"):
            table.add_column(column, justify="right" if column else "left", no_wrap=True)
        ratios = self.ratios
        shown = {
            "weights": "{:,}",
            "parameters": "{:,}",
            "flops": "{:,}",
            "latency_1": "{:.2e} s",
            "latency_1000": "{:.2e} s",
            "error": "{:.4g}",
        }
        table.add_row("units", *("-".join(map(str, m.units)) for m in (self.dense, self.compressed)), "")
        for name, form in shown.items():
            pair = [form.format(getattr(m, name)) for m in (self.dense, self.compressed)]
            label = name.replace("error", self.error_name).replace("_", " ")
            table.add_row(label, *pair, _times(ratios[name]) if name in ratios else "")
        return table


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}x"


def measure(
    model: Any, dense: nn.Module, small: nn.Module, data: Dataset, threshold: float, kl_weight: float
) -> CompressionReport:
    """Measure two networks of a model on `data`."""
    networks = {"dense": dense, "compressed": small}
    x = data.x if not data.x.is_floating_point() else data.x.float()
    rows = x if len(x) >= _ROWS else x.repeat(-(-_ROWS // len(x)), *(1,) * (x.dim() - 1))
    latency_1, latency_1000 = (latency(networks, rows[:size].contiguous()) for size in (1, _ROWS))
    measured = {
        name: Measured(
            units=[len(layer.weight) for layer in _layers(network)],
            weights=sum(int(layer.weight.count_nonzero()) for layer in _layers(network)),
            parameters=sum(parameter.numel() for parameter in network.parameters()),
            flops=_flops(network, x[:1]),
            latency_1=latency_1[name],
            latency_1000=latency_1000[name],
            error=error(model, network, data),
        )
        for name, network in networks.items()
    }
    name = "error" if _of_classes(model, dense, data) else "RMSE"
    return CompressionReport(**measured, error_name=name, threshold=threshold, kl_weight=kl_weight,
                             threads=torch.get_num_threads())  # fmt: skip


def _layers(network: nn.Module) -> list[Any]:
    """The layers whose weight has several axes, such as dense layers and convolutions."""
    return [
        m for m in network.modules() if isinstance(weight := getattr(m, "weight", None), Tensor) and weight.dim() > 1
    ]


def _flops(network: nn.Module, x: Tensor) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(x)
    return counter.get_total_flops()  # type: ignore[no-any-return]


def latency(networks: Mapping[str, Callable[[Tensor], Tensor]], x: Tensor) -> dict[str, float]:
    """Seconds per call of each network on x, by name: the median of interleaved rounds of several calls."""
    with torch.no_grad():
        calls = {name: _calls(network, x) for name, network in networks.items()}
        rounds: dict[str, list[float]] = {name: [] for name in networks}
        for _ in range(_ROUNDS):
            for name, network in networks.items():
                rounds[name].append(_seconds(network, x, calls[name]))
    return {name: sorted(times)[_ROUNDS // 2] for name, times in rounds.items()}


def _calls(network: Callable[[Tensor], Tensor], x: Tensor) -> int:
    for _ in range(3):
        network(x)
    return max(1, int(_SECONDS / _seconds(network, x, 1)))


def _seconds(network: Callable[[Tensor], Tensor], x: Tensor, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        network(x)
    return (time.perf_counter() - start) / calls


def error(model: Any, network: nn.Module, data: Dataset) -> float:
    """Fraction of wrong labels under a likelihood of classes, otherwise the root mean squared error in the units of y.

    Raises:
        ValueError: y has censored observations.
    """
    total, of_classes = 0.0, _of_classes(model, network, data)
    with torch.no_grad():
        for x, y in zip(data.x.split(_ROWS), data.y.split(_ROWS), strict=True):
            f = network(x.float())
            if of_classes:
                distribution: Any = elements(model.likelihood(f, model.targets))
                binary = isinstance(distribution, dist.Bernoulli)
                guess = distribution.probs > 0.5 if binary else distribution.probs.argmax(-1)
                total += float((guess.reshape(y.shape) != y).double().mean()) * len(y)
                continue
            y = y.reshape(len(y), -1)
            if y.shape[1] == 2 * f.shape[1]:
                y = exact_values(y, "the error of a network")
            total += float((f.double() - y).square().mean()) * len(y)
    return total / len(data) if of_classes else (total / len(data)) ** 0.5


def _of_classes(model: Any, network: nn.Module, data: Dataset) -> bool:
    """Whether y are labels: binary ones may be floats, and whole numbers may be values of a Gaussian y, or counts."""
    likelihood = getattr(model.likelihood, "likelihood", model.likelihood)
    if isinstance(likelihood, Dispersed | HeteroscedasticGaussian):
        return False
    if data.y.is_floating_point() and not isinstance(likelihood, Bernoulli):
        return False
    with torch.no_grad():
        f = network(data.x[:1].float())
    return isinstance(elements(model.likelihood(f, model.targets)), dist.Bernoulli | dist.Categorical)
