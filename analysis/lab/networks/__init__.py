"""Check networks of many kinds against a brute-force reference of a posterior over their weights.

``python -m pyrodrop.analysis.lab.networks`` prints the table of results. Every file defines one case or more. The default
cases are in `tests/networks`; another folder or file can be passed instead.
"""

from pyrodrop.analysis.lab.networks import real
from pyrodrop.analysis.lab.networks.agreement import Result
from pyrodrop.analysis.lab.networks.case import Case, Cell, Refused, load
from pyrodrop.analysis.lab.networks.contract import Bench
from pyrodrop.analysis.lab.networks.plan import THIN, Draws, cells, few_cells, usual_cells

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
