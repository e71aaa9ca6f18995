"""Pieces of long work, one command after the other: those of `gpu` and of `zoo`.

A piece is a command that goes on where it was when it is given again. It writes to the folder OUT/NAME, with what it prints
in log.txt; its record OUT/NAME.json has the results with device, processor and versions. The same call goes on with
the pieces that are not done with these versions on this device, so that a call may be broken off at any time.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from pyrodrop.analysis.reports.console import versions
from pyrodrop.analysis.reports.folder import locked
from pyrodrop.devices import processor, resolve
from pyrodrop.failed import Failed
from pyrodrop.files import write_json
from pyrodrop.json_files import read_record
from pyrodrop.names import known

ROOT = Path(__file__).resolve().parents[2]  # of a checkout
_ADVICE = "remove it to run the piece again"


@dataclass(frozen=True)
class Piece:
    """A command with its results; ``{device}``, ``{folder}`` and ``{root}`` in it stand for what they say.

    Attributes:
        name: of its record and folder.
        words: what follows ``python -m``.
        full: options of the run.
        small: options in their place that make it a trial of a minute.
        results: the files in its folder that have the results, a pattern; JSON files, or JUnit's XML.
    """

    name: str
    words: tuple[str, ...]
    full: tuple[str, ...] = ()
    small: tuple[str, ...] = ()
    results: str = "result.json"

    def command(self, *, small: bool) -> list[str]:
        return [*self.words, *(self.small if small else self.full)]


def benchmark(module: str, full: tuple[str, ...], small: tuple[str, ...], *, name: str = "") -> Piece:
    """A script of `pyrodrop.analysis.benchmarks`."""
    words = (f"pyrodrop.analysis.benchmarks.{module}", "--device", "{device}", "--out", "{folder}/result.json")
    return Piece(name or module, words, full, small)


def job(name: str, job: str, full: str, small: str, results: str = "results.json") -> Piece:
    """``pyrodrop run`` with a job, or an entry of the zoo."""
    words = ("pyrodrop", "run", job, "--device", "{device}", "--out", "{folder}", "--quiet")
    return Piece(name, words, tuple(full.split()), tuple(small.split()), results)


def main(every: Sequence[Piece], words: Sequence[str] | None, *, name: str, about: str, device: str) -> int:
    """Run the pieces; 0 if all is done, 1 if something failed or there is no GPU, 2 for a wrong call, 130 if interrupted.

    Args:
        every: the pieces.
        words: of the command line; None for those of this process.
        name: of the module that has the pieces, and of the folder of their records.
        about: what ``--help`` says.
        device: where they run, if the command line does not say it.
    """
    options = _parser(name, about, device).parse_args(words)
    if options.list:
        for piece in every:
            print(f"{piece.name:24} python -m {' '.join(piece.command(small=options.small))}")
        return 0
    try:
        chosen = [known(name, [piece.name for piece in every], "piece") for name in options.only]
        out = options.out or Path("runs") / (f"{name}-small" if options.small else name)
        every = [piece for piece in every if not chosen or piece.name in chosen]
        return drive(every, out, _device(options.device), small=options.small)
    except ValueError as error:
        print(f"pyrodrop: {error}", file=sys.stderr)
        return 1 if isinstance(error, Failed) else 2
    except KeyboardInterrupt:
        print("pyrodrop: interrupted; run the same command again to go on", file=sys.stderr)
        return 130


def _parser(name: str, about: str, device: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(f"python -m pyrodrop.analysis.pieces.{name}", description=about)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path, help=f"folder of the records (default: runs/{name})")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="run this piece; may be repeated")
    parser.add_argument("--list", action="store_true", help="print the pieces and their commands, and run nothing")
    parser.add_argument("--device", default=device, help=f"cuda, cuda:1 ... or cpu (default: {device})")
    parser.add_argument("--small", action="store_true", help="small settings, to try the commands in minutes")
    return parser


def _device(name: str) -> str:
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise Failed("there is no GPU that PyTorch can use; --device cpu --small tries the commands without one")
    return str(resolve(name))


def drive(chosen: Sequence[Piece], out: Path, device: str, *, small: bool = False) -> int:
    """Run the pieces that are not done; 0 if all are then, 1 if one failed.

    Raises:
        Failed: the folder cannot be written to, another process uses it, or a record there is broken.
        KeyboardInterrupt: also for SIGTERM, as of ``timeout``.
    """
    on = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    failed, seconds = [], 0.0
    with locked(out):
        before = signal.signal(signal.SIGTERM, _interrupted)
        try:
            for piece in chosen:
                about = {"words": piece.command(small=small), "device": on, "versions": versions()}
                kept = _kept(out, piece, about)
                if kept.get("state") == "done":
                    print(f"{piece.name}: done before, in {kept['seconds']:.0f} s", flush=True)
                elif not _done(out, piece, about, device, kept.get("seconds", 0.0)):
                    failed.append(piece.name)
                seconds += float(_kept(out, piece, about)["seconds"])
        finally:
            signal.signal(signal.SIGTERM, before)
    print(f"all together: {datetime.timedelta(seconds=round(seconds))}")
    print(f"records: {out}" + (f"\nfailed: {', '.join(failed)}; the same command tries them again" if failed else ""))
    return int(bool(failed))


def _interrupted(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _kept(out: Path, piece: Piece, about: dict[str, Any]) -> dict[str, Any]:
    """The record of a piece. One of another command, device or version is put aside with its folder: it is not lost."""
    path = out / f"{piece.name}.json"
    if not path.exists():
        return {}
    record = read_record(path, _ADVICE)
    record.text("state")
    record.number("seconds")
    if record.record("identity").content == json.loads(json.dumps(about)):
        return dict(record.content)
    number = next(n for n in itertools.count(1) if not (out / f"{piece.name}.{n}.json").exists())
    for end in ("", ".json"):
        if (out / f"{piece.name}{end}").exists():
            (out / f"{piece.name}{end}").rename(out / f"{piece.name}.{number}{end}")
    print(f"{piece.name}: of other versions or another device; put aside as {piece.name}.{number}", flush=True)
    return {}


def _done(out: Path, piece: Piece, about: dict[str, Any], device: str, seconds: float) -> bool:
    """Run a piece to its end, and write its record before and after; whether it is done."""
    folder, start = out / piece.name, time.perf_counter()
    folder.mkdir(exist_ok=True)

    def write(state: str, **more: Any) -> None:
        spent = {"seconds": seconds + time.perf_counter() - start}
        own = {"piece": piece.name, "state": state, "identity": about, "processor": processor()}
        write_json(out / f"{piece.name}.json", own | spent | more)
        print(f"{piece.name}: {state}{more.get('why', '') and ', ' + more['why']}", flush=True)

    write("running")  # or killed with this process
    try:
        status = run(
            [word.format(device=device, folder=folder, root=ROOT) for word in about["words"]], folder / "log.txt"
        )
    except KeyboardInterrupt:
        write("broken off")
        raise
    try:
        found = results(piece, folder)
    except (ValueError, SyntaxError) as error:  # a broken JSON or XML file
        write("failed", why=f"its results cannot be read: {error}")
        return False
    if status == 0 and found:
        write("done", results=found)
        return True
    said = (folder / "log.txt").read_text(errors="replace").strip().splitlines()[-1]
    write("failed", why=f"status {status}: {said}" if status else f"it wrote no {piece.results}", results=found)
    return False


def run(words: Sequence[str], log: Path) -> int:
    """The status of ``python -m`` with these words; what it prints goes to the log, and what it started ends with it."""
    with log.open("ab") as output:
        output.write(f"\n$ python -m {' '.join(words)}\n".encode())
        output.flush()
        process = subprocess.Popen(
            [sys.executable, "-P", "-u", "-m", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait()
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # files are written completely or not at all
            process.wait()


def results(piece: Piece, folder: Path) -> dict[str, Any]:
    """The content of the files with the results of a piece, by name."""
    return {
        file.name: junit(file) if file.suffix == ".xml" else dict(read_record(file, _ADVICE).content)
        for file in sorted(folder.glob(piece.results))
    }


def junit(file: Path) -> dict[str, Any]:
    """The counts of JUnit's file, and the names of the tests that did not pass."""
    root = ElementTree.parse(file).getroot()
    suites, cases = list(root.iter("testsuite")), root.iter("testcase")
    counts = {key: sum(int(s.get(key, 0)) for s in suites) for key in ("tests", "failures", "errors", "skipped")}
    broken = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    return {**counts, "seconds": sum(float(suite.get("time", 0)) for suite in suites), "broken": broken}
