"""Networks of every kind against the brute-force meaning of a posterior over their weights.

``python -m pyrodrop.analysis.networks`` prints the table. A case is a file; `tests/networks` has the menagerie, and a file
of your own can be given in its place.
"""

from pyrodrop.analysis.networks import real
from pyrodrop.analysis.networks.case import Case, Cell, Refused, load
from pyrodrop.analysis.networks.contract import Bench
from pyrodrop.analysis.networks.plan import THIN, Draws, cells, few_cells, usual_cells
from pyrodrop.analysis.networks.result import Result

__all__ = [
    "THIN",
    "Bench",
    "Case",
    "Cell",
    "Draws",
    "Refused",
    "Result",
    "cells",
    "few_cells",
    "load",
    "real",
    "usual_cells",
]
