"""Compression of a posterior to a smaller network, a plain PyTorch module.

    kept      which weights are kept             units     follows units, folds constant ones, removes unused ones
    plain     a network with given weights       report    sizes of a network before and after
    draws     networks drawn from a posterior    compress  what users call: `Fit.compress`, `Fit.compression_report`

`Fit.ensemble` makes `DrawnNetworks`.
"""

from pyrodrop.compression.compress import compress, compression_report
from pyrodrop.compression.draws import DrawnNetworks
from pyrodrop.compression.report import CompressionReport, Measured
from pyrodrop.names import public

__all__ = ["CompressionReport", "DrawnNetworks", "Measured", "compress", "compression_report"]

public(__name__, __all__)
