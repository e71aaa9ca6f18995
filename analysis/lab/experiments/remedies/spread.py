"""The spread of a posterior as data accumulate: the panel of Osband (2016), with randomised ensembles beside dropout."""

from __future__ import annotations

from pyrodrop.analysis.lab.experiments.critiques import osband
from pyrodrop.analysis.lab.experiments.critiques.panel import Size, sized
from pyrodrop.analysis.reports.console import core_seconds

TITLE = "mean spread of f over [-1, 1], networks 1-50-1, by the number of rows"
FAULT = "fixed rate .1"


def measure(size: Size, seed: int) -> dict[str, dict[str, float]]:
    """Spread by number of rows, from two data sets of each, its power law, and core-seconds, including compilation."""
    counts, steps, _ = sized(osband.SIZES, size)
    sets = 2
    rows = {}
    for name in (FAULT, *osband.ENSEMBLES, osband.WIDE):
        start = core_seconds()
        if name == osband.WIDE:
            spreads = [osband.process_spread(n, sets, seed) for n in counts]
        else:
            spread = osband.ensemble_spreads if name in osband.ENSEMBLES else osband.network_spreads
            spreads = spread(name, counts, steps, sets, seed)
        rows[name] = {f"N = {n}": value for n, value in zip(counts, spreads, strict=True)}
        rows[name] |= {"power of N": osband.slope(counts, spreads), "core-seconds": core_seconds() - start}
    return rows
