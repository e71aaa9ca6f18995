"""The pieces, as data: what is run with ``python -m``, the safest first.

``{device}`` and ``{folder}`` stand for the device and for the piece's own folder. A piece that takes longer than one attempt
must go on where it was when its command is given again: the experiments keep checkpoints and finished cells there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # of a checkout
REPLICATES = (240, 1_000, 10_000)
LARGE_SETS = ("kin8nm", "power", "naval", "protein")  # of the UCI sets, those that take hours on a CPU


@dataclass(frozen=True)
class Piece:
    """A command with its results.

    Attributes:
        name: of its record and folder.
        words: what follows ``python -m``.
        results: the files in its folder that have the results, as patterns; JSON files, and JUnit's XML.
        small: options that make it a trial of a minute, in place of those of the same names in `words`.
        missing: what it lacks, in a sentence; such a piece is not run.
    """

    name: str
    words: tuple[str, ...]
    results: tuple[str, ...] = ("result.json",)
    small: tuple[str, ...] = ()
    missing: str = ""

    def command(self, *, small: bool) -> tuple[str, ...]:
        """The words, with those of a trial if it is one."""
        return (*_without(self.words, self.small), *self.small) if small else self.words


def _without(words: tuple[str, ...], options: tuple[str, ...]) -> Iterator[str]:
    """The words, without these options and their values."""
    left_out = False
    for word in words:
        if word.startswith("--"):
            left_out = word in options
        if not left_out:
            yield word


def pieces(root: Path = ROOT) -> list[Piece]:
    """All pieces in their order.

    Args:
        root: of the checkout that has the tests.
    """
    return [_tests(root), *_benchmarks(), *_trainings(), _cifar10()]


def _tests(root: Path) -> Piece:
    words = ("pytest", "-m", "gpu", "-q", "--junitxml={folder}/junit.xml", "{root}/tests")
    missing = "" if (root / "tests").is_dir() else "this installation has no tests: run it in a checkout"
    return Piece("tests", words, results=("junit.xml",), missing=missing)


def _benchmarks() -> list[Piece]:
    return [
        _benchmark("steps", "--no-peers", small=("--rounds", "1")),
        *(
            _benchmark("replicates", "--count", f"{count}", name=f"replicates-{count}", small=("--count", "8"))
            for count in REPLICATES
        ),
        _benchmark("predict", small=("--rounds", "1")),
        _benchmark("graphs_and_precisions", name="graphs-and-precisions", small=("--rounds", "1", "--width", "16")),
    ]


def _benchmark(module: str, *options: str, name: str = "", small: tuple[str, ...] = ()) -> Piece:
    words = (f"pyrodrop.analysis.benchmarks.{module}", "--device", "{device}", "--out", "{folder}/result.json")
    return Piece(name or module, (*words, *options), small=small)


def _trainings() -> list[Piece]:
    uci = ("--data", "yacht", "--protocol", "quick", "--splits", "1")
    return [
        _job("sparse-lenet-5", "sparse", "--net", "lenet-5", small=("--epochs", "21", "--digits", "256")),
        _job(
            "kingma-fig1a-paper", "kingma-fig1a", "--preset", "paper",
            small=("--epochs", "1", "--digits", "512", "--seeds", "2", "--widths", "8", "--methods", "variational-b"),
        ),
        _job("co2-paper", "co2", "--preset", "paper", small=("--preset", "default", "--steps", "3")),
        *(
            _job(
                f"uci-gal2018-{name}", "uci", "--data", name, "--protocol", "gal2018",
                small=uci, results=("*-bernoulli.json",),
            )
            for name in LARGE_SETS
        ),
    ]  # fmt: skip


def _cifar10() -> Piece:
    """The last one, as it may have to download CIFAR-10. A trial is one of the JPEG subset."""
    small = ("--images", "jpeg-subset", "--epochs", "1", "--train", "512", "--seeds", "2", "--scales", "0.25")
    return _job("kingma-fig1b-paper", "kingma-fig1b", "--preset", "paper", small=(*small, "--methods", "variational-b"))


def _job(
    name: str, job: str, *options: str, small: tuple[str, ...], results: tuple[str, ...] = ("results.json",)
) -> Piece:
    words = ("pyrodrop", "run", job, "--device", "{device}", "--out", "{folder}", "--quiet")
    return Piece(name, (*words, *options), results, small)
