"""All work that needs a GPU, one command after the other: ``python -m pyrodrop.analysis.pieces.gpu``, or ``make gpu``.

A piece is a command that continues if it is repeated. It writes to the folder OUT/NAME, and its output to log.txt there.
After success its record is OUT/NAME.json, with results, device and versions. Repeating the call runs only the pieces
without a record of this command with these versions on this device; ``--minutes 8`` stops after eight minutes. Data sets are
read from PYRODROP_DATA.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import torch

from pyrodrop.analysis.reports.console import versions
from pyrodrop.analysis.reports.folder import locked
from pyrodrop.analysis.reports.json_files import read_record, write_json
from pyrodrop.devices import processor, resolve
from pyrodrop.failed import Failed
from pyrodrop.names import known

ROOT = Path(__file__).resolve().parents[2]  # of a checkout
LARGE_SETS = ("kin8nm", "power", "naval", "protein")  # UCI sets that take hours on a CPU
_ADVICE = "remove it to run the piece again"


@dataclass(frozen=True)
class Piece:
    """A command, in which the device, the piece's folder and the checkout replace ``{device}``, ``{folder}`` and ``{root}``.

    Attributes:
        name: name of its record and folder.
        arguments: arguments of ``python -m``.
        full: further arguments of the full run.
        small: further arguments of a trial of about a minute.
        results: pattern of the JSON files with results in its folder; empty if it only passes or fails.
    """

    name: str
    arguments: tuple[str, ...]
    full: tuple[str, ...] = ()
    small: tuple[str, ...] = ()
    results: str = "result.json"

    def command(self, *, small: bool) -> list[str]:
        return [*self.arguments, *(self.small if small else self.full)]


def benchmark(module: str, full: tuple[str, ...], small: tuple[str, ...]) -> Piece:
    """A script of `pyrodrop.analysis.benchmarks`."""
    command = (f"pyrodrop.analysis.benchmarks.{module}", "--device", "{device}", "--out", "{folder}/result.json")
    return Piece(module, command, full, small)


def job(name: str, job: str, full: str, small: str, results: str = "results.json") -> Piece:
    """``pyrodrop run`` with a job, or an entry of the zoo."""
    command = ("pyrodrop", "run", job, "--device", "{device}", "--out", "{folder}", "--quiet")
    return Piece(name, command, tuple(full.split()), tuple(small.split()), results)


def pieces() -> list[Piece]:
    """All pieces, the safest first."""
    return [
        Piece("tests", ("pytest", "-m", "gpu", "-q", "-n", "8", "{root}/tests"), results=""),
        benchmark("steps", ("--rounds", "7", "--sizes", "128", "--sizes", "1024"), ("--rounds", "1", "--names", "13-50-1")),
        benchmark("crossing", (), ("--rounds", "1", "--counts", "1", "--counts", "3")),
        job("sbc", "sbc", "--jobs 6", "--count 20 --steps 20 --posteriors exact mean-field low-rank --jobs 2"),
        benchmark("sampling_chains", ("--seconds", "240"), ("--shorter", "16", "--seconds", "20")),
        benchmark("programs", ("--seconds", "90"), ("--small", "--rounds", "1", "--seconds", "10")),
        benchmark("predict", (), ("--rounds", "1")),
        job("sparse-lenet-5", "sparse", "--net lenet-5", "--net lenet-5 --epochs 21 --digits 256"),
        job(
            "kingma-fig1a-paper", "kingma-fig1a", "--preset paper --jobs 3",
            "--preset paper --epochs 1 --digits 512 --seeds 2 --widths 8 --methods none variational-b --jobs 2",
        ),
        job("co2-paper", "co2", "--preset paper --jobs 4", "--preset default --steps 3 --jobs 2"),
        *(
            job(
                f"uci-gal2018-{name}", "uci", f"--data {name} --protocol gal2018",
                "--data yacht --protocol quick --splits 1", results="*-bernoulli.json",
            )
            for name in LARGE_SETS
        ),
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pieces; returns 0 if all are done, 1 if something failed or there is no GPU, 2 for wrong arguments."""
    parser = argparse.ArgumentParser("python -m pyrodrop.analysis.pieces.gpu", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path, help="folder of the records (default: runs/gpu)")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="run this piece; may be repeated")
    parser.add_argument("--list", action="store_true", help="print the pieces and their commands, and run nothing")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 ... or cpu (default: cuda)")
    parser.add_argument("--small", action="store_true", help="small settings, to try the commands in minutes")
    parser.add_argument("--minutes", type=float, default=inf, help="end after so many, in the middle of a piece, too")
    options, every = parser.parse_args(arguments), pieces()
    if options.list:
        for piece in every:
            print(f"{piece.name:24} python -m {' '.join(piece.command(small=options.small))}")
        return 0
    try:
        chosen = [known(name, [piece.name for piece in every], "piece") for name in options.only]
        out = options.out or Path("runs") / ("gpu-small" if options.small else "gpu")
        every = [piece for piece in every if not chosen or piece.name in chosen]
        return drive(every, out, _device(options.device), small=options.small, seconds=60 * options.minutes)
    except ValueError as error:
        print(f"pyrodrop: {error}", file=sys.stderr)
        return 1 if isinstance(error, Failed) else 2


def _device(name: str) -> str:
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise Failed("there is no GPU that PyTorch can use; --device cpu --small tries the commands without one")
    return str(resolve(name))


def drive(chosen: Sequence[Piece], out: Path, device: str, *, small: bool = False, seconds: float = inf) -> int:
    """Run the pieces that are not done; returns 0 if all are done afterwards, 1 if one failed or time ran out.

    Raises:
        Failed: the folder cannot be written to, another process uses it, or a record there is broken.
    """
    on = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    failed, end = [], time.perf_counter() + seconds
    with locked(out):
        for piece in chosen:
            about = {"command": piece.command(small=small), "device": on, "versions": versions()}
            path = out / f"{piece.name}.json"
            if path.exists() and read_record(path, _ADVICE).record("identity").content == json.loads(json.dumps(about)):
                print(f"{piece.name}: done before", flush=True)
                continue
            start, folder = time.perf_counter(), out / piece.name
            arguments = [word.format(device=device, folder=folder, root=ROOT) for word in about["command"]]
            status = run(arguments, folder / "log.txt", end - start)
            results = {
                file.name: dict(read_record(file, _ADVICE).content)
                for file in sorted(folder.glob(piece.results or "-"))
            }
            if status or (piece.results and not results):
                why = status if status else f"it wrote no {piece.results}"
                print(f"{piece.name}: failed, {why}; see {folder / 'log.txt'}", flush=True)
                failed.append(piece.name)
                continue
            measured = {"processor": processor(), "seconds": time.perf_counter() - start, "results": results}
            write_json(path, {"piece": piece.name, "identity": about, **measured})
            print(f"{piece.name}: done, in {measured['seconds']:.0f} s", flush=True)
    print(f"records: {out}" + (f"\nfailed: {', '.join(failed)}; the same command tries them again" if failed else ""))
    return int(bool(failed))


def run(arguments: Sequence[str], log: Path, seconds: float = inf) -> str:
    """Run ``python -m`` with these arguments and append its output to the log; returns how it failed, or an empty string."""
    if seconds <= 0:
        return "no time was left for it"
    log.parent.mkdir(exist_ok=True)
    with log.open("a") as output:
        output.write(f"\n$ python -m {' '.join(arguments)}\n")
        output.flush()
        command = [sys.executable, "-P", "-u", "-m", *arguments]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=None if seconds == inf else seconds,
            )
        except subprocess.TimeoutExpired:
            return f"ended after {seconds:.0f} s"
    return f"status {done.returncode}" if done.returncode else ""


if __name__ == "__main__":
    sys.exit(main())
