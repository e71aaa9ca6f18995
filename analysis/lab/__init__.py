"""The laboratory: experiments, benchmarks, networks and programs, their results, and notebooks. No wheel contains it."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # of the clone
RESULTS = Path(__file__).resolve().parent / "results"
