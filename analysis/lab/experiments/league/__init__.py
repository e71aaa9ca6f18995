"""The league of approximations of the exact posteriors: stored rows, and submitted draws beside them."""

from pyrodrop.analysis.lab.experiments.league.rows import league
from pyrodrop.analysis.lab.experiments.league.submission import submit

__all__ = ["league", "submit"]
