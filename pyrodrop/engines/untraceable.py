"""A model or guide that cannot be traced."""

from __future__ import annotations


class Untraceable(RuntimeError):
    """Why a step cannot be made a graph; said of the model and guide together."""
