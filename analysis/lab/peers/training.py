"""Training steps of other libraries on the networks of `networks`.

Each peer trains the layers in the idiom of its package with the same work: a minibatch from memory, the negative log
likelihood plus KL / N, its gradient, an Adam update at 1e-3. A peer's package is imported only when it is used.

Not all peers optimise the same bound; their functions state the differences. The work is the same within a few per cent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from operator import attrgetter
from typing import Any

import pyro
import torch
from pyro.infer import SVI, TraceMeanField_ELBO
from pyro.optim import PyroOptim
from torch import Tensor, nn

from pyrodrop.analysis.lab.peers import numpyro_training
from pyrodrop.analysis.lab.peers.networks import BATCH, Network, Steps

REQUIREMENTS = "analysis/lab/peers/requirements.txt"
TORCHBNN = (0.0, 0.1)  # mean and scale of torchbnn's prior; the posterior's scales start at 0.1 too
BAYESIAN_TORCH = {
    "prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0,
    "type": "Reparameterization", "moped_enable": False,
}  # fmt: skip


def bayesian_torch(network: Network) -> Steps:
    """Independent normal weights and biases, sampled once per minibatch; `dnn_to_bnn` converts the network.

    The package averages the KL divergence over the entries of a tensor instead of summing it: another bound, the same work.
    """
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    net = network.build(nn.Identity)
    dnn_to_bnn(net, BAYESIAN_TORCH)
    return steps_of(network, net, lambda: get_kl_loss(net))


def torchbnn(network: Network) -> Steps:
    """Independent normal weights and biases, sampled once per minibatch, with the exact KL divergence, summed."""
    from torchbnn import BayesConv2d, BayesLinear, BKLLoss

    net = converted(
        network,
        {
            nn.Linear: lambda d: BayesLinear(*TORCHBNN, d.in_features, d.out_features),
            nn.Conv2d: lambda c: BayesConv2d(*TORCHBNN, c.in_channels, c.out_channels, c.kernel_size),
        },
    )
    divergence = BKLLoss(reduction="sum")
    return steps_of(network, net, lambda: divergence(net))


def tyxe(network: Network) -> Steps:
    """A `VariationalBNN` under `local_reparameterization` with the prior N(0, 1) and the steps of its `fit`.

    Pyro's argument checks are on, as by default, and the parameters are in a separate store. TyXe's guide reads them by a
    function that Pyro 1.9 no longer has; here it reads them as attributes.
    """
    import tyxe

    class AutoNormal(tyxe.guides.AutoNormal):  # type: ignore[misc,name-defined]
        def get_loc(self, site_name: str) -> Tensor:
            return attrgetter(f"{site_name}.loc")(self)

        def get_scale(self, site_name: str) -> Tensor:
            return attrgetter(f"{site_name}.scale")(self)

    count = len(network.x)
    regression = isinstance(network.loss, nn.MSELoss)
    likelihood = (
        tyxe.likelihoods.HomoskedasticGaussian(count, scale=1.0) if regression else tyxe.likelihoods.Categorical(count)
    )
    prior = tyxe.priors.IIDPrior(pyro.distributions.Normal(torch.zeros(()), torch.ones(())))
    store: Any = pyro.get_param_store()
    with store.scope() as parameters:
        bnn = tyxe.VariationalBNN(network.build(nn.Identity), prior, likelihood, AutoNormal)
        svi = SVI(bnn.model, bnn.guide, PyroOptim(torch.optim.Adam, {"lr": 1e-3}), TraceMeanField_ELBO())
        bnn.guide((network.x[:BATCH],))  # makes the guide's parameters

    def steps() -> None:
        with store.scope(parameters), tyxe.poutine.local_reparameterization():
            for _ in range(network.steps):
                rows = torch.randint(count, (BATCH,))
                svi.step((network.x[rows],), network.y[rows])

    return steps, list(bnn.net_guide.parameters())


def kl_weight(network: Network) -> float:
    """Weight of the KL divergence relative to `network.loss`: 1 / N, or 2 / N for a squared error without the factor 1/2."""
    return (2.0 if isinstance(network.loss, nn.MSELoss) else 1.0) / len(network.x)


def converted(network: Network, layers: Mapping[type[nn.Module], Callable[[Any], nn.Module]]) -> nn.Sequential:
    """The network with every layer of these types replaced by the result of the function."""
    net = [layers.get(type(layer), lambda same: same)(layer) for layer in network.layers(nn.Identity)]
    return nn.Sequential(*net)


def steps_of(network: Network, net: nn.Module, divergence: Callable[[], Tensor]) -> Steps:
    """Steps on the loss of one forward pass plus the weighted KL divergence, which is computed after the pass."""
    optimizer, weight = torch.optim.Adam(net.parameters()), kl_weight(network)

    def steps() -> None:
        for _ in range(network.steps):
            rows = torch.randint(len(network.x), (BATCH,))
            optimizer.zero_grad()
            loss = network.loss(net(network.x[rows]), network.y[rows])
            (loss + weight * divergence()).backward()
            optimizer.step()

    return steps, list(net.parameters())


@dataclass(frozen=True)
class Trainer:
    """A row of the tables of steps and of memory.

    Attributes:
        package: name of the package, as in pip and `REQUIREMENTS`.
        module: the module to import.
        steps: makes the training steps of a network.
    """

    name: str
    package: str
    module: str
    steps: Callable[[Network], Steps]


TRAINERS = (
    Trainer("NumPyro, dropout", "numpyro", "numpyro", numpyro_training.dropout),
    Trainer("NumPyro, mean field", "numpyro", "numpyro", numpyro_training.mean_field),
    Trainer("bayesian-torch, mean field", "bayesian-torch", "bayesian_torch", bayesian_torch),
    Trainer("torchbnn, mean field", "torchbnn", "torchbnn", torchbnn),
    Trainer("TyXe, mean field, local", "tyxe", "tyxe", tyxe),
)


def installed(trainers: Sequence[Trainer] = TRAINERS, say: Callable[[str], object] = print) -> list[Trainer]:
    """The trainers whose packages can be imported; `say` is called with a line for every other package, with the reason."""
    lacking = {}
    for package, module in {trainer.package: trainer.module for trainer in trainers}.items():
        try:
            import_module(module)
        except ImportError as error:
            lacking[package] = error
            say(f"without {package}, which does not import ({error}): see {REQUIREMENTS}")
    return [trainer for trainer in trainers if trainer.package not in lacking]


def releases(trainers: Iterable[Trainer]) -> dict[str, str]:
    """The version of every trainer's package."""
    return {package: metadata.version(package) for package in sorted({trainer.package for trainer in trainers})}
