"""Reference posteriors by sampling, and how far every guide is from them.

from pyrodrop.analysis.lab.experiments.references import PROBLEMS, load
train, test = PROBLEMS["co2"].data()
pyrodrop.compare({"mine": fit}, test, reference=load("co2"))
"""

from pyrodrop.analysis.lab.experiments.references.experiment import run
from pyrodrop.analysis.lab.experiments.references.figure import figure
from pyrodrop.analysis.lab.experiments.references.stored import facts, load
from pyrodrop.zoo.exact import PROBLEMS

__all__ = ["PROBLEMS", "facts", "figure", "load", "run"]
