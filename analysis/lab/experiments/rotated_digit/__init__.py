"""LeNet-5 on a rotated digit."""

from pyrodrop.analysis.lab.experiments.rotated_digit.experiment import run

__all__ = ["run"]
