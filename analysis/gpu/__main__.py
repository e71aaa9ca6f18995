"""``python -m pyrodrop.analysis.gpu``: run everything that waits for a GPU.

Every piece runs in a process of its own, for at most eight minutes at a time, and has a record OUT/NAME.json. The same
command goes on: pieces whose record is there, of these versions and this device, are skipped, and trainings that were broken
off go on from their checkpoints. Data sets are read from PYRODROP_DATA.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from pyrodrop.analysis.gpu.driver import LEAST, LIMIT, drive
from pyrodrop.analysis.gpu.pieces import Piece, pieces
from pyrodrop.analysis.gpu.record import Place
from pyrodrop.devices import resolve
from pyrodrop.failed import Failed
from pyrodrop.names import known

DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130


def main(words: Sequence[str] | None = None) -> int:
    """Run the pieces; 0 if all is done, 1 if something failed or is left or there is no GPU, 2 for a wrong call."""
    options = _parser().parse_args(words)
    every = pieces()
    if options.list:
        for piece in every:
            print(f"{piece.name:24} {piece.missing or 'python -m ' + ' '.join(piece.command(small=options.small))}")
        return DONE
    try:
        return drive(
            _chosen(every, options.only),
            Place(
                options.out or Path("runs/gpu-small" if options.small else "runs/gpu"),
                _device(options.device),
                options.small,
            ),
            limit=_seconds(options.limit, "limit", 1.0),
            budget=None if options.budget is None else _seconds(options.budget, "budget", LEAST),
        )
    except Failed as error:
        print(f"pyrodrop: {error}", file=sys.stderr)
        return FAILED
    except ValueError as error:
        print(f"pyrodrop: {error}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        print("pyrodrop: interrupted; run the same command again to go on", file=sys.stderr)
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pyrodrop.analysis.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, help="folder of the records (default: runs/gpu)")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="run this piece; may be repeated")
    parser.add_argument("--list", action="store_true", help="print the pieces and their commands, and run nothing")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="seconds in all; no limit if not given")
    parser.add_argument(
        "--limit", type=float, default=LIMIT, metavar="SECONDS", help="seconds of an attempt (default: %(default).0f)"
    )
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 ... or cpu, to try the commands (default: cuda)")
    parser.add_argument("--small", action="store_true", help="small settings, to try the commands in minutes")
    return parser


def _device(name: str) -> str:
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise Failed("there is no GPU that PyTorch can use; --device cpu --small tries the commands without one")
    return str(resolve(name))


def _chosen(every: Sequence[Piece], names: Sequence[str]) -> list[Piece]:
    """The pieces of these names, all if there are none."""
    asked = [known(name, [piece.name for piece in every], "piece") for name in names]
    return [piece for piece in every if not asked or piece.name in asked]


def _seconds(value: float, name: str, least: float) -> float:
    if not least <= value < float("inf"):
        raise ValueError(f"--{name} is a number of seconds and must be at least {least:g}; got {value:g}")
    return value


if __name__ == "__main__":
    sys.exit(main())
