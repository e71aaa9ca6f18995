"""The error for a model or guide that cannot be traced."""

from __future__ import annotations


class Untraceable(RuntimeError):
    """A training step cannot be turned into a graph; the message says why."""
