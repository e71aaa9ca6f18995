"""Everyday Pyro programs, how plain Pyro trains them, and random programs to compare `pyrodrop.fit` with Pyro on."""

from pyrodrop.analysis.programs.program import Program, Trained, by_pyro
from pyrodrop.analysis.programs.programs import PROGRAMS

__all__ = ["PROGRAMS", "Program", "Trained", "by_pyro"]
