"""An ensemble: an equal mixture of posteriors of one kind, trained from different starts.

    q(W) = mean_m q_m(W)

Every draw takes one member at random. The mean of the members' ELBOs, which training maximises, is a lower bound on the
mixture's, since the divergence is convex in q; it is what `Fit.elbo` reports. Lakshminarayanan, Pritzel & Blundell (2017).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyrodrop.guides.guide import Guide, HasWeights, RateKind
from pyrodrop.modules import LocalModule, announce


class Ensemble(LocalModule):
    """Several guides as one.

    Args:
        model: the model whose weights to infer.
        guide: makes a member of the model, such as ``guides.Point`` or ``lambda m: guides.MeanField(m)``.
        members: how many, at least 1. Each starts from new weights, drawn by ``model.reset_parameters()`` from torch's
            generator; what the model fits as points (biases without a prior) is one for all.

    Raises:
        TypeError: the model has no ``reset_parameters()``, or `guide` makes no `Guide`.
        ValueError: a module of its network has parameters and no ``reset_parameters()``.

    Example:
        >>> from pyrodrop import guides, likelihoods, models, priors
        >>> model = models.MLP([4, 8, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian())
        >>> guide = guides.Ensemble(model, guides.Point, members=5)
        >>> guide.describe()
        'Ensemble(5 x Point)'
        >>> guide.draw(10)["layers.0.weight"].unique(dim=0).shape
        torch.Size([5, 8, 4])
    """

    def __init__(self, model: HasWeights, guide: Callable[[HasWeights], Guide], members: int = 5) -> None:
        super().__init__()
        if members < 1:
            raise ValueError(
                f"members is the number of posteriors of an ensemble and must be at least 1; got {members}"
            )
        for index in range(members):
            member = guide(_anew(model))
            if not isinstance(member, Guide):
                raise TypeError(
                    "guide makes a member of an ensemble, one of pyrodrop.guides or of one's own that is a Guide (an "
                    f"ensemble of ensembles is one ensemble of more members); got a {type(member).__name__}"
                )
            setattr(self, f"member_{index}", member)
        self.sites = self.members[0].sites

    @property
    def members(self) -> list[Guide]:
        """The guides that it is made of."""
        return [module for module in self.children() if isinstance(module, Guide)]

    def restart(self, model: HasWeights) -> None:
        """Start every member anew, each from new weights of its own."""
        for member in self.members:
            member.restart(_anew(model))

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """One member's draw, of a member taken at random."""
        announce(self)  # the optimiser is to know all members, whichever is drawn first
        members = self.members
        return members[int(torch.randint(len(members), ()))](*args, **kwargs)

    def draw(self, num_samples: int) -> dict[str, Tensor]:
        """That many weights of every site, the members as equally represented as can be, in random order."""
        order = torch.randperm(num_samples)
        members = self.members
        shares = [len(range(m, num_samples, len(members))) for m in range(len(members))]
        parts = [member.draw(share) for member, share in zip(members, shares, strict=True) if share]
        return {name: torch.cat([part[name] for part in parts])[order] for name in self.sites}

    def mean(self) -> dict[str, Tensor]:
        """The mixture's mean of every weight. Functions are averaged by `predict`, not by this."""
        means = [member.mean() for member in self.members]
        return {name: torch.stack([mean[name] for mean in means]).mean(0) for name in self.sites}

    def rates(self) -> dict[str, Any]:
        """The members' rates, by ``member.name``."""
        return {f"{m}.{n}": r for m, member in enumerate(self.members) for n, r in member.rates().items()}

    @property
    def rate_kind(self) -> RateKind:
        """What `rates` returns: the members' kind."""
        return self.members[0].rate_kind

    def describe(self) -> str:
        """One line for tables and saved files."""
        return f"Ensemble({len(self.members)} x {self.members[0].describe()})"


def _anew(model: HasWeights) -> HasWeights:
    """A copy of the model with new initial weights, from torch's generator."""
    if not callable(getattr(model, "reset_parameters", None)):
        raise TypeError(
            "the members of an ensemble start anew, by a method reset_parameters() that models of pyrodrop.models have; "
            f"{type(model).__name__} has none"
        )
    model = copy.deepcopy(model)
    model.reset_parameters()  # type: ignore[attr-defined]
    return model
