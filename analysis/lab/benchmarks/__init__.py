"""Benchmarks: scripts, each run as ``python -m pyrodrop.analysis.lab.benchmarks.NAME``."""
