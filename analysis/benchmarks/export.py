"""100 draws in one call of an exported file, against 100 calls of the exported plain network: onnxruntime on one thread.

``python -m pyrodrop.analysis.benchmarks.export [--rounds 11] [--out FILE]``: for each network, number of rows and posterior
the file of 100 draws that returns mean and sd, and 100 calls of the file of one network, in process time, interleaved
medians, each checked against `predict` or the network. The target is .2.

Layers from the first noise on are computed separately for every draw. One call saves the overhead of 99 calls and of the
layers before the first noise, but no arithmetic of the other layers.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.benchmarks.timing import begin, command, interleaved, report, write

DRAWS, TARGET = 100, 0.2
POSTERIORS: dict[str, Callable[[Any], Any]] = {
    "dropout of units": lambda model: guides.BernoulliDropout(model, 0.5, mask_input=False),
    "dropout of inputs and units": lambda model: guides.BernoulliDropout(model, 0.5),
    "MeanField": guides.MeanField,
}


@dataclass(frozen=True)
class Case:
    """Widths of a network, and the number of rows of a call."""

    widths: tuple[int, ...]
    rows: int

    @property
    def name(self) -> str:
        return f"{'-'.join(map(str, self.widths))}, {self.rows} row{'s' * (self.rows > 1)}"


CASES = (Case((784, 400, 10), 64), Case((13, 50, 1), 64), Case((784, 400, 10), 1), Case((13, 50, 1), 1))


def main(rounds: int = 11, out: Path | None = None) -> None:
    """Time calls of the exported programs.

    Args:
        rounds: timings of every variant.
        out: JSON file for the results.
    """
    begin()
    compare(CASES, DRAWS, rounds, out)


def compare(cases: Sequence[Case], draws: int, rounds: int, out: Path | None) -> None:
    """Print the ratios of the cases, and write them."""
    seconds = {case.name: timed(case, draws, rounds) for case in cases}
    ratios = {
        name: {posterior: each[posterior] / each["plain"] for posterior in POSTERIORS} for name, each in seconds.items()
    }
    report(f"one call of {draws} draws, as a share of {draws} calls of the plain network (target {TARGET})", ratios)
    content = {"draws": draws, "rounds": rounds, "onnxruntime": version("onnxruntime")}
    write(out, "export", {**content, "seconds": seconds, "ratio": ratios})


def timed(case: Case, draws: int, rounds: int) -> dict[str, float]:
    """Median seconds of a call by posterior, and of `draws` calls of the plain network."""
    torch.manual_seed(0)
    x = torch.randn(case.rows, case.widths[0])
    with tempfile.TemporaryDirectory() as folder:
        plain = session(plain_file(case.widths, x, Path(folder) / "plain.onnx"))
        inputs = {"x": x.numpy()}
        variants: dict[str, Callable[[], object]] = {"plain": lambda: [plain.run(None, inputs) for _ in range(draws)]}
        for name, guide in POSTERIORS.items():
            model = models.MLP(case.widths, prior=priors.Gaussian(), likelihood=likelihoods.Gaussian())
            fit = pyrodrop.Fit(model, guide(model), None, torch.zeros(1, 3), {})
            program = session(fit.export(Path(folder) / f"{name}.onnx", draws, x=x))
            torch.testing.assert_close(
                torch.from_numpy(program.run(None, inputs)[0]), fit.predict(x, draws).mean, rtol=0, atol=1e-5
            )
            variants[name] = lambda program=program: program.run(None, inputs)  # type: ignore[misc]
        return interleaved(variants, rounds, warmup=2, clock=time.process_time)


def plain_file(widths: Sequence[int], x: Tensor, path: Path) -> Path:
    """The plain network as a file of ONNX, for any number of rows."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    network, rows = nn.Sequential(*layers[:-1]).eval(), torch.export.Dim("batch")
    rows_of_x = torch.cat([x, x])  # with a single row the size would be exported as a constant
    program: Any = torch.onnx.export(
        network, (rows_of_x,), input_names=["x"], dynamic_shapes=({0: rows},), dynamo=True, verbose=False
    )
    program.save(path)
    returned = torch.from_numpy(session(path).run(None, {"x": x.numpy()})[0])
    torch.testing.assert_close(returned, network(x).detach(), rtol=0, atol=1e-5)
    return path


def session(path: Path) -> Any:
    """The file in onnxruntime, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    command(main)
