"""Prediction by a network that was read, against the loop of its own passes in training mode: one thread, process time,
interleaved medians.

``python -m pyrodrop.analysis.benchmarks.reading [--rounds 5] [--passes 100] [--only NAME ...] [--out FILE]``: for each
network the loop of T passes (BatchNorm in evaluation mode) that collects its outputs, and ``reading.predict`` with T
functions. The networks of torchvision, timm and transformers take part where these packages are installed.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop import likelihoods, priors
from pyrodrop.analysis.benchmarks.timing import interleaved, machine
from pyrodrop.analysis.networks import real
from pyrodrop.inputs import Inputs, arguments


class TakesLast(nn.Module):
    """An LSTM with dropout between its layers, and a head on its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(32, 64, 2, dropout=0.3, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])  # type: ignore[no-any-return]


class Pools(nn.Module):
    """A transformer encoder, and a head on the mean of its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, 0.1, batch_first=True), 2)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))  # type: ignore[no-any-return]


class Logits(nn.Module):
    """A small BERT of transformers with two layers, from a mapping to logits."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertForSequenceClassification

        config = BertConfig(
            vocab_size=1000,
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=512,
            num_labels=10,
        )
        self.bert = BertForSequenceClassification(config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.bert(input_ids=input_ids, attention_mask=attention_mask).logits  # type: ignore[no-any-return]


def dense() -> nn.Module:
    """784-1000-1000-10."""
    return nn.Sequential(
        nn.Linear(784, 1000), nn.ReLU(), nn.Dropout(0.5), nn.Linear(1000, 1000), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(1000, 10),
    )  # fmt: skip


def convolutional() -> nn.Module:
    """Two convolutions with BatchNorm, dropout of channels, and dropout before the last layer."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.2),
        nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.2), nn.Flatten(),
        nn.Linear(800, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
    )  # fmt: skip


def of_torchvision(name: str) -> nn.Module:
    """A network of torchvision with 10 classes and random weights."""
    import torchvision

    return getattr(torchvision.models, name)(num_classes=10)  # type: ignore[no-any-return]


def of_timm() -> nn.Module:
    """A small vision transformer of timm with dropout, dropout of attention and stochastic depth."""
    from timm.models import VisionTransformer

    return VisionTransformer(
        img_size=32, patch_size=8, embed_dim=64, depth=4, num_heads=4, num_classes=10,
        drop_rate=0.1, attn_drop_rate=0.1, drop_path_rate=0.1,
    )  # type: ignore[no-any-return]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A network, the points that it is asked about, and the packages that it needs."""

    name: str
    network: Callable[[], nn.Module]
    x: Callable[[], Inputs]
    needs: str = "torch"


def words(rows: int, length: int) -> Inputs:
    """Token numbers and a mask of the sequences' own lengths."""
    lengths = torch.randint(length // 2, length + 1, (rows, 1))
    return {
        "input_ids": torch.randint(1000, (rows, length)),
        "attention_mask": (torch.arange(length) < lengths).long(),
    }


CASES = (
    Case("MLP", dense, lambda: torch.randn(256, 784)),
    Case("CNN", convolutional, lambda: torch.randn(64, 1, 28, 28)),
    Case("LSTM", TakesLast, lambda: torch.randn(64, 20, 32)),
    Case("TransformerEncoder", Pools, lambda: torch.randn(32, 16, 64)),
    Case("BERT", Logits, lambda: words(16, 16), "transformers"),
    Case("ViT", of_timm, lambda: torch.randn(16, 3, 32, 32), "timm"),
    Case("alexnet", lambda: of_torchvision("alexnet"), lambda: torch.randn(4, 3, 64, 64), "torchvision"),
    Case(
        "mobilenet_v3_small", lambda: of_torchvision("mobilenet_v3_small"), lambda: torch.randn(8, 3, 64, 64), "torchvision"
    ),
    Case("efficientnet_b0", lambda: of_torchvision("efficientnet_b0"), lambda: torch.randn(4, 3, 64, 64), "torchvision"),
)  # fmt: skip


def main(words: Sequence[str] | None = None, cases: Sequence[Case] = CASES) -> None:
    """Print the table, and write it where `--out` says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds of every variant (default: %(default)s)")
    parser.add_argument("--passes", type=int, default=100, help="passes, or functions (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=[case.name for case in cases], help="networks (default: all)")
    parser.add_argument("--out", type=Path, help="a JSON file for the numbers")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    real.torchvision()
    print(machine())
    print(f"\n{options.passes} passes, ratio to the loop (target 1)")
    rows = []
    for case in cases:
        if importlib.util.find_spec(case.needs) is not None and case.name in (options.only or [case.name]):
            rows.append(compare(case, options.rounds, options.passes))
    if options.out is not None:
        record = {"machine": machine(), "rounds": options.rounds, "clock": "process time", "reading": rows}
        options.out.write_text(json.dumps(record, indent=2) + "\n")


def compare(case: Case, rounds: int, count: int) -> dict[str, Any]:
    """Medians of one network's variants, as ratios to the loop's, printed and returned."""
    torch.manual_seed(0)
    net, x = case.network().train(), case.x()
    start = time.process_time()
    reading = pyrodrop.read(net, x, likelihood=likelihoods.Categorical(), prior=priors.Gaussian(), num_data=1000)
    read = time.process_time() - start
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
    variants: dict[str, Callable[[], object]] = {
        "loop": functools.partial(passes, net, x, count),
        "predict": functools.partial(reading.predict, x, count),
    }
    medians = interleaved(variants, rounds, warmup=1, clock=time.process_time)
    ratio = medians["predict"] / medians["loop"]
    print(f"  {case.name:20} {ratio:6.3f}   loop {medians['loop']:8.3f} s, read in {read:.1f} s", flush=True)
    return {"network": case.name, "passes": count, "seconds": medians, "ratio": ratio, "seconds_to_read": read}


@torch.no_grad()
def passes(net: nn.Module, x: Inputs, count: int) -> Tensor:
    """The plain loop: outputs ``[count, N, D]``."""
    args, kwargs = arguments(x, net.forward)
    return torch.stack([net(*args, **kwargs) for _ in range(count)])


if __name__ == "__main__":
    main()
