"""Nine UCI regression data sets, all splits."""

from pyrodrop.analysis.lab.experiments.uci.experiment import run
from pyrodrop.analysis.lab.experiments.uci.table import posteriors, text

__all__ = ["posteriors", "run", "text"]
