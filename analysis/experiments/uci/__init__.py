"""Nine UCI regression data sets, all splits."""

from pyrodrop.analysis.experiments.uci.experiment import run

__all__ = ["run"]
