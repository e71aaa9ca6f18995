"""Everyday Pyro programs, how plain Pyro trains them, and random programs to compare `pyrodrop.fit` with Pyro on."""

from pyrodrop.analysis.lab.programs.program import Program, Trained, by_pyro, on
from pyrodrop.analysis.lab.programs.programs import PROGRAMS

__all__ = ["PROGRAMS", "Program", "Trained", "by_pyro", "on"]
