"""What helps: faults of dropout and their remedies, each measured on a problem that shows the fault."""

from pyrodrop.analysis.lab.experiments.remedies.experiment import SECTIONS, run, text

__all__ = ["SECTIONS", "run", "text"]
