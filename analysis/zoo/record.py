"""Write references of zoo entries: ``python -m pyrodrop.analysis.zoo.record ENTRY... [--full] [--device cuda]``.

Makes the short runs of ``pyrodrop check`` with several seeds and, with ``--full``, the full run. ``--runs FOLDER`` uses the
full run that ``pyrodrop run ENTRY --out FOLDER/ENTRY`` made. If the entry has not changed, its existing short runs are kept
and, without either option, also its result of the full run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pyrodrop import zoo
from pyrodrop.analysis.zoo.check import record


def main(argv: list[str] | None = None) -> None:
    """Record the named entries."""
    parser = argparse.ArgumentParser(
        prog="python -m pyrodrop.analysis.zoo.record", description="Write references of entries."
    )
    parser.add_argument("entries", nargs="+", type=zoo.entry, metavar="ENTRY")
    parser.add_argument("--full", action="store_true", help="also make the full run, as published")
    parser.add_argument(
        "--runs", type=Path, help="folder of finished full runs, each as ENTRY/results.json and its fits"
    )
    parser.add_argument("--why", default="", help="the reason for not making the full run")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], help="seeds of the full runs, the first is described"
    )
    parser.add_argument("--device", default="cpu", help="device of the full runs")
    parser.add_argument("--beside", action="store_true", help="also fit the models of scikit-learn to the same data")
    parser.add_argument("--save", type=Path, help="folder to write the trained posterior to")
    chosen = parser.parse_args(argv)
    for entry in chosen.entries:
        content = record(
            entry, full=chosen.full, why=chosen.why, seeds=chosen.seeds, device=chosen.device, folder=chosen.save,
            with_others=chosen.beside,
            run=chosen.runs and chosen.runs / entry.name,
        )  # fmt: skip
        result = content["result"]
        outcome = result if isinstance(result, str) else f"{result['seconds']:.0f} s"
        print(f"{entry.name}: {outcome}", flush=True)


if __name__ == "__main__":
    main()
