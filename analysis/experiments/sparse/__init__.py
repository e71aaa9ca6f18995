"""Sparse LeNets on MNIST, pruned, compressed and measured."""

from pyrodrop.analysis.experiments.sparse.experiment import run

__all__ = ["run"]
