"""New initial parameters for every fit: those of ``guide.restart(model)``, stacked.

A single copy of model and guide is restarted in place for one seed after another, so that many fits do not need separate
models.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pyrodrop.devices import seeded
from pyrodrop.models import NetworkModel
from pyrodrop.steps import Loss
from pyrodrop.training.problem import Problem

_OTHERWISE = "starts='model' has all fits start from the weights of the model"


class NewStarts:
    """Initial parameters of fits that start from ``model.reset_parameters()`` and ``guide.restart(model)``.

    Args:
        model, guide: the model and guide, which are copied on their device; random numbers are drawn there.

    Raises:
        TypeError: the guide has no method ``restart(model)``.
        ValueError: a module of the network has parameters but no ``reset_parameters()``; restarting the guide changes more
            than its parameters.
    """

    def __init__(self, model: NetworkModel, guide: Any) -> None:
        if not callable(getattr(guide, "restart", None)):
            raise TypeError(
                f"new initial weights need a guide with a method restart(model); {type(guide).__name__} has none. "
                f"{_OTHERWISE}"
            )
        self.model: NetworkModel
        self.guide: Any
        self.model, self.guide = copy.deepcopy((model, guide))
        self.device: torch.device = next((parameter.device for parameter in guide.parameters()), torch.device("cpu"))
        try:
            self._restart(0)
        except ValueError as error:
            raise ValueError(f"{error}. In calibration {_OTHERWISE}") from error
        before = dict(self.guide.named_buffers())
        changed = [name for name, value in guide.named_buffers() if not torch.equal(value, before[name])]
        if changed:
            raise ValueError(
                f"restart of {type(guide).__name__} changes {', '.join(changed)}, which are no parameters and which "
                f"all fits of calibration share. {_OTHERWISE}"
            )

    def stacked(self, problem: Problem, loss: Loss, seeds: Sequence[int]) -> dict[str, Tensor]:
        """The initial values of the trained parameters, ``[len(seeds), ...]`` by the names of `loss`, one for each seed.

        Args:
            problem: a problem of the same model and guide; it is not changed.

        Raises:
            ValueError: a trained parameter is a parameter of neither model nor guide.
        """
        names = {id(value): name for name, value in _parameters(problem.model, problem.guide).items()}
        strange = [name for name, parameter in loss.parameters.items() if id(parameter.unconstrained) not in names]
        if strange:
            raise ValueError(
                f"new initial values need parameters of model and guide; {', '.join(strange)} are no such. {_OTHERWISE}"
            )
        parameters = _parameters(self.model, self.guide)
        here = {name: parameters[names[id(parameter.unconstrained)]] for name, parameter in loss.parameters.items()}
        starts = {name: torch.empty(len(seeds), *value.shape).to(value) for name, value in here.items()}
        for r, seed in enumerate(seeds):
            self._restart(seed)
            for name, value in here.items():
                starts[name][r] = value.detach()
        return {name: value.to(loss.parameters[name].unconstrained.device) for name, value in starts.items()}

    def _restart(self, seed: int) -> None:
        """Restart model and guide in place."""
        with seeded(seed, self.device):
            self.model.reset_parameters()
            self.guide.restart(self.model)


def _parameters(model: nn.Module, guide: nn.Module) -> dict[str, nn.Parameter]:
    parts = (("model", model), ("guide", guide))
    return {f"{role}.{name}": value for role, module in parts for name, value in module.named_parameters()}
