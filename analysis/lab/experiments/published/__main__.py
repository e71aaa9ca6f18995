"""Compare anew and store the outcomes: ``python -m pyrodrop.analysis.lab.experiments.published``."""

from pyrodrop.analysis.lab.experiments.published.experiment import compare
from pyrodrop.analysis.lab.experiments.published_figures import store

if __name__ == "__main__":
    store(compare())
