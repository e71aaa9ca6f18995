"""Compression of a posterior to a smaller network, a plain PyTorch module.

kept      which weights are kept             units     follows units, folds constant ones, removes unused ones
plain     a network with given weights       compress  what users call: `Fit.compress`
"""

from pyrodrop.checks import public
from pyrodrop.compression.compress import compress

__all__ = ["compress"]

public(__name__, __all__)
