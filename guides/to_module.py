"""Convert a network from `pyrodrop.read` back to the user's module.

    W = p M        p the keep rate of the weight's units, M the weight of a unit that is kept

The module drops units itself, as it did before, so its passes in training mode are draws from the posterior.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from pyrodrop.changes import STAYS
from pyrodrop.checks import HasPosterior, shown
from pyrodrop.distributions import BernoulliMixture
from pyrodrop.distributions.noise_form import is_constant
from pyrodrop.networks.sites import thaw


def to_module(run: Any) -> nn.Module:
    """The network of a run that began with `pyrodrop.read`, with its trained weights, to save, export or serve.

    Args:
        run: a `Reading`, or a `Fit` of its model and guide.

    Returns:
        A copy of the user's network on the device of the run, with trained parameters (fixed ones stay fixed). It is in
        evaluation mode, where it computes with mean weights. After ``net.train()``, with BatchNorm in evaluation mode, its
        passes are draws from the posterior, with independent masks per example.

    Raises:
        TypeError: the network of `run` is not from `pyrodrop.read`, or its guide is none of `pyrodrop.guides`.
        ValueError: the guide is not the dropout of the network: it has other rates, noise besides masks, or masks that the
            network does not draw; or the run standardised its data, which the network does not.

    Example:
        >>> import torch, pyrodrop
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
        >>> reading = pyrodrop.read(
        ...     net, torch.randn(8, 4), likelihood=pyrodrop.likelihoods.Categorical(), weight_decay=1e-4, num_data=1000
        ... )
        >>> torch.allclose(pyrodrop.guides.to_module(reading)[3].weight, net[3].weight)
        True
    """
    model, guide = getattr(run, "model", None), getattr(run, "guide", None)
    dropouts: Any = getattr(model, "dropouts", None)
    if model is None or dropouts is None or not isinstance(guide, HasPosterior):
        raise TypeError(
            "run must be a Reading of pyrodrop.read, or a Fit of its model and a guide of pyrodrop.guides, whose network "
            f"drops units itself; got {shown(run)}: Fit.compress gives a plain network of posterior means"
        )
    for units, data in ((model.inputs, "x"), (model.targets, "y")):
        if bool((units.loc != 0).any() or (units.scale != 1).any()):
            raise ValueError(
                f"the run standardised {data}, which the network itself does not: train on data as they are"
            )
    network = copy.deepcopy(model.network)
    values: dict[str, Tensor] = {name: model.free[name] for name in model.free}
    values |= {name: _weight(name, guide.posterior(name), dropouts.carried.get(name)) for name in model.weight_sites()}
    thaw(network, model.parameter_names, values, model.fixed)
    for module in network.modules():
        module.__dict__.pop(STAYS, None)
    return network.eval()


def _weight(name: str, q: Any, call: Any) -> Tensor:
    """p M, for a posterior that is the dropout of the network."""
    if call is None:
        if not is_constant(q):
            raise ValueError(f"the guide has noise on {name!r}, which the network does not draw")
        return q.loc  # type: ignore[no-any-return]
    rate = torch.as_tensor(q.drop_rate if type(q) is BernoulliMixture else float("nan"))
    if not bool((rate == call.drop_rate).all()) or q.theta > 0 or q.per != "input" or q.units != call.units:
        raise ValueError(
            f"the network drops units of {name!r} with rate {call.drop_rate:g}; the guide has {type(q).__name__} with other "
            "noise there, of which a pass of the network is no draw"
        )
    return (1 - call.drop_rate) * q.loc  # type: ignore[no-any-return]
