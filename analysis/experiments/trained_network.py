"""A network that a plain loop trained on MNIST with dropout and weight decay, read as a posterior.

Compared on the test set are the network in evaluation mode, hand-made passes in training mode (BatchNorm in evaluation
mode), and `pyrodrop.read`. Training then goes on with the ELBO, and the result goes back into a network of its own. The s.e.
of an NLL is that of the Monte Carlo error of its mean probabilities p_n = mean_t p_tn of the true class, for T passes:

    NLL = -mean_n ln p_n        s.e. = sd_t(mean_n p_tn / p_n) / sqrt(T)

Gal & Ghahramani (2016), Dropout as a Bayesian Approximation, https://arxiv.org/abs/1506.02142.
"""

from __future__ import annotations

import copy
import inspect
import time
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

import pyrodrop
from pyrodrop.analysis.experiments.experiment import Experiment
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.analysis.reports.terminal import paragraph
from pyrodrop.data import Dataset, mnist
from pyrodrop.devices import seeded
from pyrodrop.files import read_tensors, write_tensors
from pyrodrop.guides import to_module
from pyrodrop.likelihoods import Categorical
from pyrodrop.metrics import accuracy, ece, negative_log_likelihood
from pyrodrop.reading import Reading
from pyrodrop.training.result import Fit

_PART = 1000  # images per pass: the activations of all would leave the processor's cache


def network() -> nn.Sequential:
    """Two convolutions with BatchNorm and two dense layers; one dropout of channels, one of units."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout2d(0.1),
        nn.Conv2d(16, 32, 5, stride=2), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(),
        nn.Linear(512, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
    )  # fmt: skip


def train(net: nn.Module, x: Tensor, y: Tensor, epochs: int) -> torch.optim.Optimizer:
    """Train as one does without pyrodrop."""
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-4)
    net.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(128):
            loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return optimizer


@with_job_options("device")
def run(
    job: JobOptions,
    *,
    epochs: int = 3,
    steps: int = 500,
    draws: int = 100,
    out: Path = Path("runs/trained-network"),
) -> dict[str, Any]:
    """Train, read, compare predictions, go on training with the ELBO, and go back to a network.

    Args:
        epochs: passes of the plain loop over the training images.
        steps: gradient steps on the ELBO after that, with minibatches of 128 and standard dropout (estimator local).
        draws: number of passes of the network and of draws of the reading.
        out: folder for results.json and network.safetensors, the weights of the last network.

    Returns:
        What is written to results.json.
    """
    for name, value in (("epochs", epochs), ("steps", steps), ("draws", draws)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1; got {value}")
    split = mnist(flat=False, progress=not job.quiet)
    about = {"epochs": epochs, "steps": steps, "draws": draws}
    with Experiment.begin("trained-network", out, job, about) as experiment:
        folder = experiment.folder
        x, y = split.train.x.to(job.device), split.train.y.to(job.device)
        clock = _Clock()
        with seeded(job.seed, job.device):
            net = network().to(job.device)
            optimizer = train(net, x, y, epochs)
            clock("train")
            print(inspect.getsource(network), inspect.getsource(train), sep="\n")
            reading = pyrodrop.read(net, x[:8], likelihood=Categorical(), weight_decay=optimizer, num_data=len(x))
            clock("read")
            print(f"{reading}\n")
            rows = {
                "evaluation mode": _scores(_evaluated(net, split.test.x.to(job.device)), split.test.y),
                f"{draws} hand-made passes": _scores(_passes(net, split.test.x.to(job.device), draws), split.test.y),
            }
            clock("passes")
        rows[f"reading, {draws} draws"] = _predicted(reading, split.test, draws, job.seed)
        clock("predict")
        before = reading.elbo(20, data=split.train, seed=job.seed)
        clock("elbo")
        options: dict[str, Any] = {"batch_size": 128, "estimator": "local", "lr": 1e-3}
        fit = pyrodrop.fit(
            reading.model, reading.guide, split.train, steps=steps, seed=job.seed, device=job.device,
            progress=job.progress, **options,
        )  # fmt: skip
        clock("fit")
        after = fit.elbo(20, seed=job.seed)
        back = _from_file(to_module(fit), folder / "network.safetensors", job.device)
        clock("back")
        with seeded(job.seed, job.device):
            rows[f"after fit, {draws} draws"] = _predicted(fit, split.test, draws, job.seed)
            passes = _passes(back, split.test.x.to(job.device), draws)
            rows[f"after fit, {draws} passes of to_module"] = _scores(passes, split.test.y)
            rows["after fit, to_module in evaluation mode"] = _scores(
                _evaluated(back, split.test.x.to(job.device)), split.test.y
            )
        content = {
            "table": [list(row) for row in reading.rows()],
            "scores": rows,
            "elbo": {name: {"value": e.value, "se": e.se} for name, e in (("before", before), ("after", after))},
            "convention": str(before.convention),
            "seconds": clock.spent,
        }
        written = experiment.write(content, table_of(rows), settings=options)
        print_elbos(written)
        return written


class _Clock:
    """Seconds since the last call, by name."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._last = time.perf_counter()

    def __call__(self, name: str) -> None:
        now = time.perf_counter()
        self.spent[name], self._last = now - self._last, now


@torch.no_grad()
def _evaluated(net: nn.Module, x: Tensor) -> Tensor:
    """Class probabilities in evaluation mode, ``[1, N, C]``."""
    return copy.deepcopy(net).eval()(x).softmax(-1)[None]  # type: ignore[no-any-return]


@torch.no_grad()
def _passes(net: nn.Module, x: Tensor, count: int) -> Tensor:
    """Class probabilities of passes in training mode, BatchNorm in evaluation mode, ``[T, N, C]``."""
    net = copy.deepcopy(net).train()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return torch.stack([torch.cat([net(part).softmax(-1) for part in x.split(_PART)]) for _ in range(count)])


def _from_file(net: nn.Module, path: Path, device: torch.device) -> nn.Module:
    """The weights of a network, saved and loaded into a new one.

    Raises:
        RuntimeError: the two do not compute the same.
    """
    write_tensors(path, net.state_dict(), {})
    fresh = network().to(device).eval()
    fresh.load_state_dict(read_tensors(path)[0])
    x = torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(0)).to(device)
    with torch.no_grad():
        if not torch.equal(fresh(x), net(x)):
            raise RuntimeError(f"the network loaded from {path} does not compute what the saved one does")
    return fresh


def _predicted(run: Reading | Fit, test: Dataset, draws: int, seed: int) -> dict[str, float]:
    return _scores(run.predict(test.x, draws, seed=seed).f.softmax(-1), test.y)


def _scores(p: Tensor, y: Tensor) -> dict[str, float]:
    """Scores of the mean of class probabilities ``[T, N, C]``, with the Monte Carlo error of the NLL."""
    p, y = p.cpu(), y.cpu()
    right = p[:, torch.arange(len(y)), y].double()
    error = float((right / right.mean(0)).mean(1).std()) / len(p) ** 0.5 if len(p) > 1 else 0.0
    return {
        "accuracy": accuracy(p, y), "nll": negative_log_likelihood(p, y), "nll_se": error, "ece": ece(p, y)
    }  # fmt: skip


def table_of(scores: dict[str, dict[str, float]]) -> Table:
    """The scores on the test images."""
    table = Table()
    table.add_column("on the test images")
    for header in ("accuracy", "NLL (MC s.e.)", "ECE"):
        table.add_column(header, justify="right")
    for name, row in scores.items():
        table.add_row(
            name, f"{row['accuracy']:.4f}", f"{row['nll']:.4f} ({row['nll_se']:.4f})", f"{row['ece']:.4f}"
        )  # fmt: skip
    return table


def print_elbos(content: dict[str, Any]) -> None:
    """The ELBOs before and after the training, and how long everything took."""
    paragraph(f"ELBO on the training images, {content['convention']}:")
    steps = content["settings"]["steps"]
    for name, elbo in content["elbo"].items():
        paragraph(f"{name} {steps} steps of fit: {elbo['value']:.0f} ± {elbo['se']:.0f} nats", first="  ", then="    ")
    paragraph("seconds: " + ", ".join(f"{name} {value:.1f}" for name, value in content["seconds"].items()))
