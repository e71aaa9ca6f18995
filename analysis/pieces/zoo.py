"""Compute all results of the zoo again, one after the other: ``python -m pyrodrop.analysis.pieces.zoo``, or ``make zoo``.

The entries with a stored result, fast ones first, each with its trained posterior in OUT/NAME/posteriors; the experiments of
``analysis/reference``; then the other entries. Repeating the call continues with what is not done: ``timeout 600 make zoo``
works for ten minutes. All together take days of a processor. Data sets are read from PYRODROP_DATA.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyrodrop import zoo
from pyrodrop.analysis.experiments.uci.protocol import ALL
from pyrodrop.analysis.pieces import runner
from pyrodrop.analysis.pieces.runner import Piece, job
from pyrodrop.analysis.zoo import references

PROTOCOLS = ("gal2016", "gal2016-100x", "gal2016-500x", "gal2018")


def pieces() -> list[Piece]:
    """All pieces: entries with a stored result by their duration, then experiments, then entries without a result."""
    taken = {name: _seconds(name) for name in zoo.ENTRIES}
    entries = [_entry(name) for name in sorted(taken, key=lambda name: taken[name])]
    ready = sum(seconds < float("inf") for seconds in taken.values())
    return [*entries[:ready], *_experiments(), *entries[ready:]]


def _seconds(name: str) -> float:
    """Duration of the stored run; infinite if there is none."""
    result = references.load(name)["result"]
    return float("inf") if isinstance(result, str) else float(result["seconds"])


def _entry(name: str) -> Piece:
    command = ("pyrodrop", "run", name, "--device", "{device}", "--out", "{folder}", "--quiet")
    return Piece(
        name.replace("/", "-"),
        (*command, "--save", "{folder}/posteriors"),
        (),
        ("--steps", "2"),
        results="results.json",
    )


def _experiments() -> list[Piece]:
    return [
        *(
            job(
                f"uci-{protocol}-{name}",
                "uci",
                f"--data {name} --protocol {protocol}",
                "--data yacht --splits 1",
                "*-bernoulli.json",
            )
            for protocol in PROTOCOLS
            for name in ALL
        ),
        job("concrete-figures", "concrete", "--seeds 3 --sizes 10 25 50 100 1000", "--seeds 1 --sizes 10"),
        job(
            "no-dropout",
            "uci",
            "--data boston --guides none --protocol gal2016",
            "--data yacht --guides none --splits 1",
            "*-none.json",
        ),
        job("solar", "solar", "", "--seeds 1 --steps 2"),
        job(
            "active-learning",
            "active-learning",
            "",
            "--labels 20 --seeds 2 --steps 1 --trained-labels 20 --trained-steps 1 --naval-labels 5 --naval-steps 1",
        ),
        job("kingma-table1", "kingma-table1", "--preset paper", ""),
        Piece("published", ("pyrodrop", "run", "published", "--out", "{folder}", "--quiet"), results="results.json"),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pieces; see `runner.main`."""
    return runner.main(pieces(), arguments, name="zoo", about=__doc__ or "", device="cpu")


if __name__ == "__main__":
    sys.exit(main())
