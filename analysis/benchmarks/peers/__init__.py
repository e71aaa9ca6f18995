"""Training steps of other libraries on the same networks, one file each, for `benchmarks.steps` and `benchmarks.memory`.

Each peer trains the layers of `networks.Network` in its own idiom with the same work: a minibatch from memory, the negative
log likelihood plus KL / N, its gradient, an Adam update at 1e-3. ``peers.txt`` lists the packages to install. A peer's
package is imported only when it is used.

Not all peers optimise the same bound; their files state the differences. The work is the same within a few per cent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata

from pyrodrop.analysis.benchmarks.networks import Network, Steps
from pyrodrop.analysis.benchmarks.peers import bayesian_torch, numpyro, torchbnn, tyxe

REQUIREMENTS = "analysis/benchmarks/peers.txt"


@dataclass(frozen=True)
class Peer:
    """A row of the table.

    Attributes:
        package: name of the package, as in pip and `REQUIREMENTS`.
        module: the module to import.
        steps: makes the training steps of a network.
    """

    name: str
    package: str
    module: str
    steps: Callable[[Network], Steps]


PEERS = (
    Peer("NumPyro, dropout", "numpyro", "numpyro", numpyro.dropout),
    Peer("NumPyro, mean field", "numpyro", "numpyro", numpyro.mean_field),
    Peer("bayesian-torch, mean field", "bayesian-torch", "bayesian_torch", bayesian_torch.mean_field),
    Peer("torchbnn, mean field", "torchbnn", "torchbnn", torchbnn.mean_field),
    Peer("TyXe, mean field, local", "tyxe", "tyxe", tyxe.mean_field),
)


def installed(peers: Sequence[Peer] = PEERS, say: Callable[[str], object] = print) -> list[Peer]:
    """The peers whose packages can be imported; `say` gets one line for every other package, with the reason."""
    lacking = {}
    for package, module in {peer.package: peer.module for peer in peers}.items():
        try:
            import_module(module)
        except ImportError as error:
            lacking[package] = error
            say(f"without {package}, which does not import ({error}): see {REQUIREMENTS}")
    return [peer for peer in peers if peer.package not in lacking]


def releases(peers: Iterable[Peer]) -> dict[str, str]:
    """The version of every peer's package."""
    return {package: metadata.version(package) for package in sorted({peer.package for peer in peers})}
