"""What helps: faults of dropout beside their remedies, each measured where the fault shows."""

from pyrodrop.analysis.experiments.remedies.experiment import run

__all__ = ["run"]
