"""Sampling from the exact posterior of a network's weights."""

from pyrodrop.sampling.potential import Potential, potential

__all__ = ["Potential", "potential"]
