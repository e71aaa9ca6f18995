"""Labels that are asked for, against random ones."""

from pyrodrop.analysis.lab.experiments.active_learning.experiment import run

__all__ = ["run"]
