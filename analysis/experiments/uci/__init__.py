"""Nine UCI regression sets, all splits."""

from pyrodrop.analysis.experiments.uci.experiment import run

__all__ = ["run"]
