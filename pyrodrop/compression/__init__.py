"""Compression of a sparse posterior to a smaller network, a plain PyTorch module.

    kept       which weights are kept                units     removes units, folds constants into the next bias
    chain      converts a network to a list of steps layout    chooses the fastest layout of each dense layer
    steps      converts a list of steps to a module  storage   saves and loads networks in small files
    stored     checks what such a file says           report    measures a network before and after
    draws      networks sampled from a posterior      narrow    removes units from a network that is not a chain

Users call `Fit.compress`, `Fit.compression_report` and `Fit.ensemble`.
"""

from pyrodrop.compression.compress import compress, compressed_steps, compression_report
from pyrodrop.compression.draws import DrawnNetworks
from pyrodrop.compression.report import CompressionReport, Measured
from pyrodrop.compression.storage import read_network, write_network

__all__ = [
    "CompressionReport",
    "DrawnNetworks",
    "Measured",
    "compress",
    "compressed_steps",
    "compression_report",
    "read_network",
    "write_network",
]
