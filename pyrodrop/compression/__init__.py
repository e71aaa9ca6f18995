"""Compression of a posterior to a smaller network, a plain PyTorch module.

kept      which weights are kept             units     follows units, folds constant ones, removes unused ones
plain     a network with given weights       compress  what users call: `Fit.compress`, `Fit.compression_report`
"""

from pyrodrop.compression.compress import CompressionReport, Measured, compress, compression_report

__all__ = ["CompressionReport", "Measured", "compress", "compression_report"]
