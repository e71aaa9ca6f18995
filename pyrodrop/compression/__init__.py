"""Compression of a sparse posterior to a smaller network, a plain PyTorch module.

    kept       which weights are kept                units     removes units, folds constants into the next bias
    chain      converts a network to a list of steps layout    chooses the fastest layout of each dense layer
    steps      converts a list of steps to a module  report    measures a network before and after
    draws      networks sampled from a posterior     narrow    removes units from a network that is not a chain

Users call `Fit.compress`, `Fit.compression_report` and `Fit.ensemble`.
"""

from pyrodrop.compression.compress import compress, compression_report
from pyrodrop.compression.draws import DrawnNetworks
from pyrodrop.compression.report import CompressionReport, Measured

__all__ = [
    "CompressionReport",
    "DrawnNetworks",
    "Measured",
    "compress",
    "compression_report",
]
