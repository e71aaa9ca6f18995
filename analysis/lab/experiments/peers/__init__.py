"""Other packages on the problems whose exact posterior is known: the same network, priors, noise and data.

A peer is a script in ``analysis/lab/peers/scripts/``, which needs its own package and not this one; `PEERS` lists them.
"""

from pyrodrop.analysis.lab.experiments.peers.experiment import run
from pyrodrop.analysis.lab.peers.processes import PEERS

__all__ = ["PEERS", "run"]
