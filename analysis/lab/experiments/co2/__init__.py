"""Mauna Loa CO2: dropout networks and Gaussian processes."""

from pyrodrop.analysis.lab.experiments.co2.experiment import run

__all__ = ["run"]
