"""Reference posteriors by sampling, to measure distances from.

from pyrodrop.analysis.lab.experiments.references import PROBLEMS, load
train, test = PROBLEMS["co2"].data()
pyrodrop.compare({"mine": fit}, test, "wasserstein", reference=load("co2"))
"""

from pyrodrop.analysis.lab.experiments.references.experiment import run
from pyrodrop.analysis.lab.experiments.references.stored import facts, load
from pyrodrop.zoo.exact import PROBLEMS

__all__ = ["PROBLEMS", "facts", "load", "run"]
