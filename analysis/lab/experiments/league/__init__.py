"""The league of approximations of the exact posteriors: stored rows, and comparison of submitted draws with them."""

from pyrodrop.analysis.lab.experiments.league.rows import compare, league
from pyrodrop.analysis.lab.experiments.league.submission import submit

__all__ = ["compare", "league", "submit"]
