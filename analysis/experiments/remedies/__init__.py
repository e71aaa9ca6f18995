"""What helps: faults of dropout beside their remedies, each measured where the fault shows."""

from pyrodrop.analysis.experiments.remedies.experiment import SECTIONS, run, text

__all__ = ["SECTIONS", "run", "text"]
