"""Compression of a posterior to a smaller network, a plain PyTorch module.

plain     a network with given weights       units     follows units, folds constant ones, removes unused ones
compress  which weights are kept; what users call: `Fit.compress`
"""

from pyrodrop.checks import public
from pyrodrop.compression.compress import compress

__all__ = ["compress"]

public(__name__, __all__)
