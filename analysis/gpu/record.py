"""What is known of a piece: ``OUT/NAME.json``, beside its folder ``OUT/NAME``.

state      done, broken off, failed, or missing
results    of what is done: the JSON files of the piece, and the counts of JUnit's file
progress   of what is not: the files there, and the number of steps of every checkpoint
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from pyrodrop.analysis.gpu.pieces import ROOT, Piece
from pyrodrop.analysis.reports.console import versions
from pyrodrop.devices import processor
from pyrodrop.files import write_json
from pyrodrop.json_files import read_record

DONE, BROKEN_OFF, FAILED, MISSING = "done", "broken off", "failed", "missing"
_ADVICE = "remove it to run the piece again"


@dataclass(frozen=True)
class Place:
    """Where records are, and what their results depend on besides the piece.

    Attributes:
        out: the folder of all pieces.
        device: the name of the device as PyTorch takes it.
        small: whether this is a trial with small settings.
    """

    out: Path
    device: str
    small: bool

    def file(self, piece: Piece) -> Path:
        """The record of a piece."""
        return self.out / f"{piece.name}.json"

    def folder(self, piece: Piece) -> Path:
        """The folder that it writes to."""
        return self.out / piece.name

    def words(self, piece: Piece) -> list[str]:
        """Its command."""
        values = {"device": self.device, "folder": self.folder(piece), "root": ROOT}
        return [word.format(**values) for word in piece.command(small=self.small)]

    def identity(self, piece: Piece) -> dict[str, Any]:
        """What its results depend on: results of another identity are put aside."""
        return {"words": list(piece.command(small=self.small)), "device": name_of(self.device), "versions": versions()}

    def read(self, piece: Piece) -> dict[str, Any]:
        """The record of a piece; empty if there is none, or one of another identity, which is put aside.

        Raises:
            Failed: the file is broken.
        """
        path = self.file(piece)
        if not path.exists():
            return {}
        record = read_record(path, _ADVICE)
        record.text("state")
        record.number("seconds")
        record.whole("attempts")
        own = json.loads(json.dumps(self.identity(piece)))
        if dict(record.record("identity").content) == own:
            return dict(record.content)
        self._put_aside(piece)
        return {}

    def write(self, piece: Piece, state: str, content: Mapping[str, Any]) -> None:
        """Write the record of a piece."""
        about = {"piece": piece.name, "state": state, "identity": self.identity(piece), "processor": processor()}
        write_json(self.file(piece), {**about, **content})

    def _put_aside(self, piece: Piece) -> None:
        """Rename record and folder: what other versions or another machine measured is not lost."""
        number = 1
        while any((self.out / f"{piece.name}.{number}{end}").exists() for end in ("", ".json")):
            number += 1
        self.file(piece).rename(self.out / f"{piece.name}.{number}.json")
        if self.folder(piece).exists():
            self.folder(piece).rename(self.out / f"{piece.name}.{number}")
        print(f"{piece.name}: of other versions or another device; put aside as {piece.name}.{number}", flush=True)


def name_of(device: str) -> str:
    """The device in words: the GPU's own name."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


def results(piece: Piece, folder: Path) -> dict[str, Any]:
    """The content of the piece's result files by name; empty where a pattern has no file."""
    found: dict[str, Any] = {}
    for pattern in piece.results:
        files = sorted(folder.glob(pattern))
        if not files:
            return {}
        for file in files:
            found[file.name] = junit(file) if file.suffix == ".xml" else dict(read_record(file, _ADVICE).content)
    return found


def junit(file: Path) -> dict[str, Any]:
    """The counts of JUnit's file, and the names of the tests that did not pass."""
    suites = list(ElementTree.parse(file).getroot().iter("testsuite"))
    counts = {
        key: sum(int(suite.get(key, 0)) for suite in suites) for key in ("tests", "failures", "errors", "skipped")
    }
    broken = [
        f"{case.get('classname')}::{case.get('name')}"
        for suite in suites
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    seconds = sum(float(suite.get("time", 0)) for suite in suites)
    return {**counts, "seconds": seconds, "broken": broken}


def progress(folder: Path) -> dict[str, Any]:
    """How far a piece is: its files with their sizes, and the number of steps of every checkpoint."""
    files = {f.relative_to(folder).as_posix(): f for f in sorted(folder.rglob("*")) if f.is_file() and _counts(f)}
    steps = {name: count for name, f in files.items() if (count := _steps(f)) is not None}
    return {"files": {name: f.stat().st_size for name, f in files.items()}, "steps": steps}


def stamp(folder: Path) -> dict[str, tuple[int, int]]:
    """Sizes and times of all files: it changes if and only if the piece has written something."""
    return {str(f): (f.stat().st_size, f.stat().st_mtime_ns) for f in folder.rglob("*") if f.is_file() and _counts(f)}


def _counts(file: Path) -> bool:
    """Whether it is a result and not the log, a lock or a file that is being written."""
    return file.name != "log.txt" and not any(part.startswith(".") for part in file.parts[-2:])


def _steps(file: Path) -> int | None:
    """The number of steps of a checkpoint; None of other files."""
    if file.suffix != ".safetensors":
        return None
    try:
        with safe_open(file, "pt") as tensors:
            return int(tensors.get_slice("history").get_shape()[0]) if "history" in tensors.keys() else None  # noqa: SIM118
    except (SafetensorError, OSError):
        return None
