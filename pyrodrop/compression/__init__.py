"""Networks that really shrink: from a sparse posterior to a small plain module.

    kept       weights that stay                   units     dead units cut out, their constants folded into biases
    chain      a network read as steps             layout    dense, picked or sparse rows, by measurement
    steps      steps made a module again           storage   small files of them
    draws      plain networks of posterior draws   report    what it brought

`Fit.compress`, `Fit.compression_report` and `Fit.ensemble` are how it is used.
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
