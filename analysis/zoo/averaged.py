"""Weight averaging: standard dropout at test time for a network trained with dropout."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pyrodrop.analysis.comparison.predicts import Predicts
from pyrodrop.guides import Guide, Point
from pyrodrop.models import MLP, NetworkModel
from pyrodrop.training.result import Fit


def averaged(run: Predicts) -> Fit:
    """The trained network with its mean weights, as a fit without weight uncertainty.

    Under dropout they are the weights of standard dropout at test time, scaled by 1 - drop_rate: Srivastava et al. (2014),
    Dropout, https://jmlr.org/papers/v15/srivastava14a.html, section 4.
    """
    assert isinstance(run, Fit)
    assert isinstance(run.model, NetworkModel)
    guide = run.guide
    assert isinstance(guide, Guide)
    point = Point(run.model)
    with torch.no_grad():
        for name, mean in guide.mean().items():
            point.loc[name].copy_(mean)
    return Fit(run.model, point.to(run.device), run.data, run.history, run.settings, run.device)


def last_units(average: Fit, x: Tensor) -> Tensor:
    """The outputs ``[N, K]`` of an MLP's last hidden layer with the mean weights, for x in the units of the data."""
    assert isinstance(average.model, MLP)
    assert isinstance(average.guide, Point)
    seen: list[Tensor] = []
    last: nn.Module = average.model.network.layers[-1]  # type: ignore[union-attr, index, assignment]
    hook = last.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with hook, torch.no_grad():
        average.model.outputs(average.guide.mean(), x.to(average.device))
    return seen[-1].cpu()
