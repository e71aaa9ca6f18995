"""Sampling from the exact posterior of a network's weights, or of the sites of any Pyro program."""

from pyrodrop.sampling.mixing import Diagnostics
from pyrodrop.sampling.potential import Potential, potential
from pyrodrop.sampling.sample import sample
from pyrodrop.sampling.sampled import Sampled

__all__ = ["Diagnostics", "Potential", "Sampled", "potential", "sample"]
