"""TyXe: independent normal weights and biases with its own guide in Pyro's SVI and local reparameterisation.

Pyro's argument checks are on, as by default, and the parameters have a store of their own. TyXe's guide reads them by a
function that Pyro 1.9 no longer has; here it reads them by their path.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pyro
import torch
from pyro.infer import SVI, TraceMeanField_ELBO
from pyro.optim import PyroOptim
from torch import Tensor, nn

from pyrodrop.analysis.benchmarks.networks import BATCH, Network, Steps


def mean_field(network: Network) -> Steps:
    """Steps of a `VariationalBNN` under `local_reparameterization`, as its `fit` makes them; prior N(0, 1)."""
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
    with store.scope() as own:
        bnn = tyxe.VariationalBNN(network.build(nn.Identity), prior, likelihood, AutoNormal)
        svi = SVI(bnn.model, bnn.guide, PyroOptim(torch.optim.Adam, {"lr": 1e-3}), TraceMeanField_ELBO())
        bnn.guide((network.x[:BATCH],))  # makes the guide's parameters

    def steps() -> None:
        with store.scope(own), tyxe.poutine.local_reparameterization():
            for _ in range(network.steps):
                rows = torch.randint(count, (BATCH,))
                svi.step((network.x[rows],), network.y[rows])

    return steps, list(bnn.net_guide.parameters())
