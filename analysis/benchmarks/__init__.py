"""Benchmarks: scripts, each run as ``python -m pyrodrop.analysis.benchmarks.NAME``."""
