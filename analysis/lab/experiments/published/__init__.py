"""The published figures of dropout as variational inference, each beside ours."""

from pyrodrop.analysis.lab.experiments.published.experiment import run, text

__all__ = ["run", "text"]
