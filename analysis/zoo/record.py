"""Write references of zoo entries: ``python -m pyrodrop.analysis.zoo.record ENTRY... [--full] [--device cuda]``.

Makes the short runs of ``pyrodrop check`` with several seeds and, with ``--full``, the full run. Without ``--full`` an
existing result of the full run is kept if the entry has not changed.
"""

from __future__ import annotations

import argparse

from pyrodrop import zoo
from pyrodrop.analysis.zoo.check import record


def main(argv: list[str] | None = None) -> None:
    """Record the named entries."""
    parser = argparse.ArgumentParser(
        prog="python -m pyrodrop.analysis.zoo.record", description="Write references of entries."
    )
    parser.add_argument("entries", nargs="+", type=zoo.entry, metavar="ENTRY")
    parser.add_argument("--full", action="store_true", help="also make the full run, as published")
    parser.add_argument("--why", default="", help="the reason for not making the full run")
    parser.add_argument("--seed", type=int, default=0, help="seed of the full run")
    parser.add_argument("--device", default="cpu", help="device of the full run")
    chosen = parser.parse_args(argv)
    for entry in chosen.entries:
        content = record(entry, full=chosen.full, why=chosen.why, seed=chosen.seed, device=chosen.device)
        result = content["result"]
        words = result if isinstance(result, str) else f"{result['seconds']:.0f} s"
        print(f"{entry.name}: {words}", flush=True)


if __name__ == "__main__":
    main()
