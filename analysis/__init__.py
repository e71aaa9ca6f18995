"""Comparison, baselines, plots and experiments. Heavier imports than the core's live here."""

if __name__ != "pyrodrop.analysis":
    raise ImportError("import pyrodrop.analysis, not analysis")
