"""The literature's case against dropout as Bayesian inference, and for it: one panel per paper, on one page."""

from pyrodrop.analysis.lab.experiments.critiques.experiment import run

__all__ = ["run"]
