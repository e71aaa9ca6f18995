"""A rotated digit before LeNet-5."""

from pyrodrop.analysis.experiments.rotated_digit.experiment import run

__all__ = ["run"]
