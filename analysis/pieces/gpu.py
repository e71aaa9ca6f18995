"""All work that needs a GPU, one command after the other: ``python -m pyrodrop.analysis.pieces.gpu``, or ``make gpu``.

Repeating the call continues with the pieces that are not done; ``--minutes 8`` stops after eight minutes. Data sets are
read from PYRODROP_DATA.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyrodrop.analysis.pieces import runner
from pyrodrop.analysis.pieces.runner import Piece, benchmark, job

LARGE_SETS = ("kin8nm", "power", "naval", "protein")  # UCI sets that take hours on a CPU


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
    """Run the pieces; see `runner.main`."""
    return runner.main(pieces(), arguments, name="gpu", about=__doc__ or "", device="cuda")


if __name__ == "__main__":
    sys.exit(main())
