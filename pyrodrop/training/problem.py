"""What is trained: a model and a guide on data, checked, copied and on their device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import constraints

from pyrodrop.data import Dataset
from pyrodrop.devices import seeded
from pyrodrop.engines import Batch, Moving, Parameter, Watch, evaluate
from pyrodrop.engines.moving import places_of
from pyrodrop.networks.mixing import mixes_examples
from pyrodrop.networks.modes import evaluating, undisturbed
from pyrodrop.reparam import STRATEGIES, reparameterize
from pyrodrop.reparam.local import draws_by_row
from pyrodrop.training.autoguides import autoguides, check_model, prepare


@dataclass
class Problem:
    """A model, a guide and their data.

    Attributes:
        model, guide: copies of the user's, which training changes; themselves where the guide holds an autoguide.
        data: the data set.
        trained: model and guide as the estimator sees them.
        estimator: its name.
        moving: the buffers that a step moves, as `parameters` has found.
        changes: the Python attributes that a step changes, as words; empty if there are none.
    """

    model: Any
    guide: Any
    data: Dataset
    trained: tuple[Callable[..., Any], Callable[..., Any]]
    estimator: str = "shared"
    moving: Moving = field(default_factory=Moving)
    changes: str = ""

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
        if autoguides(guide):  # it holds the model, which a copy forgets
            check_model(guide, model)
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
        if strategy is not None and mixes_examples(model, data.x):
            raise ValueError(
                f"estimator={estimator!r} gives each example noise of its own; in this network the output of one row of x "
                "depends on the others: use estimator='shared'"
            )
        if strategy is not None and hasattr(model, "mixes_in_training") and model.mixes_in_training(data.x):
            raise ValueError(
                f"estimator={estimator!r} gives each example noise of its own; in training mode the output of one row of x "
                "depends on the others, as under BatchNorm: use estimator='shared', or put those layers in evaluation mode "
                "(.eval()) before the model is made"
            )
        trained = (model, guide) if strategy is None else reparameterize(model, guide, strategy)
        return cls(model, guide, data, trained, estimator)

    def noise_by_row(self) -> list[str]:
        """Names of the weights whose noise training draws for every row of an example by itself (`LocalReparam`)."""
        if self.estimator != "local" or not hasattr(self.model, "examined"):
            return []
        sites = self.model.examined(self.data.x).rows
        guides = getattr(self.guide, "members", [self.guide])
        return [
            name
            for name in sites
            if any(draws_by_row(one.posterior(name)) if hasattr(one, "posterior") else True for one in guides)
        ]

    def parameters(self, batch: Batch, precision: torch.dtype | None) -> dict[str, Parameter]:
        """Every parameter that Pyro sees in guide and model, by name; the rest that a call changes: `moving` and `changes`.

        Draws no random number of the caller's and leaves model and guide as they were.

        Raises:
            ValueError: the minibatch is too small for a network that normalises over its rows.
            RuntimeError: there is no parameter.
        """
        with evaluating(self.model):
            prepare(self.guide, batch.device, batch.x, batch.y, **batch.kwargs)
        with poutine.trace(param_only=True) as capture, undisturbed(self.model, self.guide):
            seen = self._call(batch, precision)
        self.moving, self.changes = seen.moving, seen.changes
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

    def try_(self, batches: Sequence[Batch], precision: torch.dtype | None) -> None:
        """Raise a ValueError for minibatches that a network with running statistics cannot be trained on."""
        for batch in batches if len(self.moving) else []:
            with undisturbed(self.model, self.guide):
                self._call(batch, precision)

    def kept(self) -> dict[str, Tensor]:
        """The buffers that training may move, as they are now, by name: what a checkpoint holds beside the parameters."""
        places = places_of(self.model, self.guide)
        if hasattr(self.model, "moving_buffers"):  # it knows; its other buffers are initial values
            known = {id(buffer) for buffer in self.model.moving_buffers().values()}
            places = {
                n: own
                for n, own in places.items()
                if n in self.moving.places or id(own[0][0]._buffers[own[0][1]]) in known or not n.startswith("model.")
            }
        return Moving((), places).named()

    def _call(self, batch: Batch, precision: torch.dtype | None) -> Watch:
        """Call guide and model once; what that changes in them."""
        try:
            with Watch(self.model, self.guide) as seen, torch.no_grad(), seeded(0, batch.device):
                evaluate(*self.trained, batch, precision)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise ValueError(
                "a network that normalises over the rows of a minibatch (nn.BatchNorm in training mode) needs at least 2 of "
                f"them; got a minibatch of {len(batch.y)} row(s), the last of an epoch where batch_size does not divide the "
                "data. Choose another batch_size, or put these layers in evaluation mode before the model is made"
            ) from error
        return seen

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


@contextmanager
def training_mode(*problems: Problem) -> Iterator[None]:
    """Have models and guides in training mode, and in evaluation mode afterwards.

    A model of `pyrodrop.models` knows which of its network's submodules were in training mode when it was made; of other
    models and of guides those are in training mode that are so now.
    """
    for problem in problems:
        if hasattr(problem.model, "moving_buffers"):
            problem.model.train()
    try:
        yield
    finally:
        for problem in problems:
            for part in (problem.model, problem.guide):
                if isinstance(part, torch.nn.Module):
                    part.eval()


def restart(model: Any, guide: Any, seed: int) -> tuple[Any, Any]:
    """Copies that start anew: new initial values of the network, by its modules' own ``reset_parameters()`` under this seed.

    Args:
        model: a model with a method ``reset_parameters()``, such as those of `pyrodrop.models`.
        guide: its guide, with a method ``restart(model)``, which those of `pyrodrop.guides` have.
        seed: of the new values; the caller's random state is left alone.

    Raises:
        TypeError: model or guide has no such method.
        ValueError: a module of the network has parameters and no ``reset_parameters()``; the message names it.
    """
    for part, method, role in ((model, "reset_parameters", "model"), (guide, "restart", "guide")):
        if not callable(getattr(part, method, None)):
            call = "restart(model)" if role == "guide" else "reset_parameters()"
            raise TypeError(
                f"a new start needs a {role} that can begin anew, by a method {call}; {type(part).__name__} has none: give "
                "lists of models and guides that were built anew"
            )
    model, guide = copy.deepcopy((model, guide))
    device = next((parameter.device for parameter in guide.parameters()), torch.device("cpu"))
    with seeded(seed, device):
        model.reset_parameters()
        guide.restart(model)
    return model, guide
