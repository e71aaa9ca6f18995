"""Nine UCI regression data sets, all splits."""

from pyrodrop.analysis.experiments.uci.experiment import run
from pyrodrop.analysis.experiments.uci.page import posteriors, text, validation

__all__ = ["posteriors", "run", "text", "validation"]
