"""Labels that are asked for, against random ones."""

from pyrodrop.analysis.experiments.active_learning.experiment import run

__all__ = ["run"]
