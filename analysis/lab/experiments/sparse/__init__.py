"""Sparse LeNets on MNIST: pruning, compression and test error."""

from pyrodrop.analysis.lab.experiments.sparse.experiment import run

__all__ = ["run"]
