"""What is trained: a model and a guide on data, checked, copied and on their device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from pyro import poutine
from pyro.infer.autoguide import AutoGuide
from torch import Tensor
from torch.distributions import constraints

from pyrodrop.data import Dataset
from pyrodrop.devices import seeded
from pyrodrop.reparam import STRATEGIES, reparameterize
from pyrodrop.stepper import Batch, Parameter, evaluate


@dataclass
class Problem:
    """A model, a guide and their data.

    Attributes:
        model, guide: copies of the user's, which training changes.
        data: the data set.
        trained: model and guide as the estimator sees them.
    """

    model: Any
    guide: Any
    data: Dataset
    trained: tuple[Callable[..., Any], Callable[..., Any]]

    @classmethod
    def of(
        cls,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        data: Dataset | tuple[Tensor, Tensor],
        estimator: str,
        device: torch.device,
    ) -> Problem:
        """Copy, standardise, check and move; a ValueError for what cannot be trained."""
        data = Dataset.of(data)
        if isinstance(guide, AutoGuide):  # it holds the model and keeps its parameters in Pyro's store
            model = copy.deepcopy(model)
        else:
            model, guide = copy.deepcopy((model, guide))
        if hasattr(model, "standardize"):
            model.standardize(data)
        if hasattr(model, "check"):
            model.check(data)
        for part in (model, guide):
            if isinstance(part, torch.nn.Module):
                part.to(device)
        strategy = STRATEGIES[estimator]
        trained = (model, guide) if strategy is None else reparameterize(model, guide, strategy)
        return cls(model, guide, data, trained)

    def parameters(self, batch: Batch, precision: torch.dtype | None) -> dict[str, Parameter]:
        """Every parameter that Pyro sees in guide and model, by name. Draws no random number of the caller's."""
        with poutine.trace(param_only=True) as capture, torch.no_grad(), seeded(0, batch.x.device):
            evaluate(*self.trained, batch, precision)
        sites: dict[str, Any] = dict(capture.trace.nodes)
        found = {
            name: Parameter(site["value"].unconstrained(), site["kwargs"].get("constraint", constraints.real))
            for name, site in sites.items()
        }
        if not found:
            raise RuntimeError(
                "neither model nor guide has a parameter that Pyro can see, so no step could change anything: parameters "
                "must be pyro.param statements or live in a PyroModule, not in a module reached through a closure"
            )
        return {name: parameter for name, parameter in found.items() if parameter.unconstrained.requires_grad}

    def tensors(self) -> dict[str, Tensor]:
        """What model and guide hold that is no parameter: rates, precisions, standardisations, prior scales."""
        held: dict[str, Tensor] = {}
        for role, part in (("model", self.model), ("guide", self.guide)):
            if isinstance(part, torch.nn.Module):
                held |= {f"{role}.{name}": buffer for name, buffer in part.named_buffers()}
        priors = getattr(self.model, "priors", {})
        return held | {
            f"prior.{site}.{n}": value for site, prior in priors.items() for n, value in prior.numbers().items()
        }


def restart(model: Any, guide: Any, seed: int) -> tuple[Any, Any]:
    """Copies that start elsewhere: the entries of every parameter in another random order.

    That is another draw of the same initialisation, wherever a layer's entries are initialised alike, as PyTorch's are.
    """
    model, guide = copy.deepcopy((model, guide))
    with seeded(seed, torch.device("cpu")), torch.no_grad():
        for part in (model, guide):
            for parameter in part.parameters():
                order = torch.randperm(parameter.numel()).to(parameter.device)
                parameter.copy_(parameter.flatten()[order].reshape(parameter.shape))
    return model, guide
