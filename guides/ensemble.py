"""An ensemble: a mixture, with equal weights, of posteriors of one kind that are trained from different starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyrodrop.checks import HasWeights, count, instance
from pyrodrop.guides.guide import Guide, RateKind, check_model
from pyrodrop.modules import LocalModule, announce
from pyrodrop.networks.sites import started_anew, starting_from
from pyrodrop.parts import Part


class Ensemble(Part, LocalModule):
    """Several guides of one model, used as one guide.

        q(W) = mean_m q_m(W)

    Every sample comes from one member chosen at random. Training maximises the mean of the members' ELBOs, which `Fit.elbo`
    reports. It is a lower bound on the ELBO of the mixture, because the KL divergence is convex in q.

    Members share the model. To give every member its own, train `Point`s by `pyrodrop.fit_replicates` with
    ``starts="new"``, which is also faster.

    References:
        Lakshminarayanan, Pritzel & Blundell (2017), https://arxiv.org/abs/1612.01474.

    Args:
        model: the model whose weights are inferred.
        guide: function of the model that returns a member, such as ``guides.Point`` or ``lambda m: guides.MeanField(m)``.
        members: number of members, at least 1. Each starts from new weights, which ``model.reset_parameters()`` draws.
            Parameters of the model without a prior (such as biases) are shared by all members.
        seed: seed of the new weights. None draws them from torch's generator.

    Raises:
        TypeError: the model has no ``reset_parameters()``, `guide` is no function or does not return a `Guide`, or `members`
            or `seed` is no whole number.
        ValueError: `members` is below 1, `seed` is negative, or a module of the network has parameters but no
            ``reset_parameters()``.

    Example:
        >>> from pyrodrop import guides, likelihoods, models, priors
        >>> model = models.MLP([4, 8, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian())
        >>> guide = guides.Ensemble(model, guides.Point, members=5)
        >>> guide.describe()
        'Ensemble(5 x Point)'
        >>> guide.draw(10)["layers.0.weight"].unique(dim=0).shape
        torch.Size([5, 8, 4])
    """

    def __init__(
        self, model: HasWeights, guide: Callable[[HasWeights], Guide], members: int = 5, *, seed: int | None = 0
    ) -> None:
        super().__init__()
        check_model(model, "an ensemble")
        instance(guide, Callable, "guide", "a function of the model that returns a member, such as guides.Point")
        count(members, "members", "the number of posteriors of an ensemble")
        with starting_from(seed):
            made = [guide(started_anew(model)) for _ in range(members)]
        for index, member in enumerate(made):
            if not isinstance(member, Guide):
                raise TypeError(
                    "guide must return a Guide, one of pyrodrop.guides or a subclass of Guide (instead of an ensemble of "
                    f"ensembles, use one ensemble with more members); got {type(member).__name__}"
                )
            setattr(self, f"member_{index}", member)
        self.sites: tuple[str, ...] = self.members[0].sites

    @property
    def members(self) -> list[Guide]:
        """The guides of the ensemble."""
        return [module for module in self.children() if isinstance(module, Guide)]

    def restart(self, model: HasWeights) -> None:
        """Reset every member to a new start, each with its own new weights."""
        for member in self.members:
            member.restart(started_anew(model))

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Sample the weights of one member, chosen at random."""
        announce(self)  # register the parameters of all members with the optimiser
        members = self.members
        return members[int(torch.randint(len(members), ()))](*args, **kwargs)

    def draw(self, num_samples: int) -> dict[str, Tensor]:
        """Sample every weight, ``[num_samples, ...]`` by site name, in random order.

        The numbers of samples per member differ by at most 1.

        Raises:
            ValueError: `num_samples` is below 1.
            TypeError: it is no whole number.
        """
        count(num_samples, "num_samples", "the number of samples")
        order = torch.randperm(num_samples)
        members = self.members
        shares = [len(range(m, num_samples, len(members))) for m in range(len(members))]
        draws = [member.draw(share) for member, share in zip(members, shares, strict=True) if share]
        return {name: torch.cat([of_member[name] for of_member in draws])[order] for name in self.sites}

    def mean(self) -> dict[str, Tensor]:
        """The mean of every weight under the mixture. `predict` averages the members' functions and does not use this."""
        means = [member.mean() for member in self.members]
        return {name: torch.stack([mean[name] for mean in means]).mean(0) for name in self.sites}

    def rates(self) -> dict[str, Any]:
        """The rates of all members, with keys ``member.name`` such as ``0.layers.0.weight``."""
        return {f"{m}.{n}": r for m, member in enumerate(self.members) for n, r in member.rates().items()}

    @property
    def rate_kind(self) -> RateKind:
        """The kind of rates of the members."""
        return self.members[0].rate_kind

    def describe(self) -> str:
        return f"Ensemble({len(self.members)} x {self.members[0].describe()})"


def members_of(guide: Any) -> list[Any]:
    """The guides of an ensemble, or the one guide."""
    return list(guide.members) if isinstance(guide, Ensemble) else [guide]
