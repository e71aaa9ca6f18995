"""Combinations that cannot be trained, of options with each other and with model, guide and data: one sentence each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyro.infer import RenyiELBO

from pyrodrop.checks import HasWeights, shown
from pyrodrop.data import Keywords
from pyrodrop.data.loader import Loader
from pyrodrop.distributions import BernoulliMixture
from pyrodrop.guides.ensemble import members_of
from pyrodrop.guides.guide import Guide
from pyrodrop.models.network import NetworkModel
from pyrodrop.training.rows import takes_num_data
from pyrodrop.training.settings import Settings


def check(model: Any, guide: Any, data: Any, example: Any, settings: Settings) -> None:
    """Raise a ValueError, with the first sentence that applies, for what cannot be trained together.

    Args:
        example: a few rows of the data; None for keyword arguments.
    """
    for sentence in _of_options(settings):
        raise ValueError(sentence)
    of_data = (
        _of_arguments(model, data, settings) if example is None else _of_rows(model, guide, data, example, settings)
    )
    for sentence in of_data:
        raise ValueError(sentence)


def _of_options(settings: Settings) -> Iterator[str]:
    estimator, kl_weight = settings.estimator, settings.kl_weight
    if isinstance(settings.objective, RenyiELBO) and estimator != "shared":
        yield (
            "estimator must be 'shared' with the objective RenyiELBO, which weighs draws of the weights by the density "
            f"of all rows; got {estimator!r}, under which rows have noise of their own"
        )
    if settings.average and settings.steps is None:
        yield f"average must be 0 for a Training, which has no last step; got {settings.average}: it belongs to fit"
    if settings.objective is not None and (callable(kl_weight) or kl_weight != 1):
        yield (
            "kl_weight must be 1 with an objective, since a loss object of Pyro does not give its terms one by one; got "
            f"{shown(kl_weight)}. pyro.poutine.scale in model or guide weights sites under any objective"
        )


def _of_arguments(model: Any, data: Keywords, settings: Settings) -> Iterator[str]:
    if isinstance(model, HasWeights):
        yield (
            f"data must be (x, y) or a Dataset for a model of a network, {type(model).__name__}, which is "
            f"standardised and checked by them; got {shown(data.values)}, as of the keyword arguments of a Pyro "
            "program"
        )
    if settings.estimator != "shared":
        yield (
            "estimator must be 'shared' where data are keyword arguments of a Pyro program; got "
            f"{settings.estimator!r}, which shares noise between the rows of x"
        )
    if settings.batch_size is not None:
        yield (
            "batch_size must be None where data are the keyword arguments of a Pyro program, which has no rows; got "
            f"{settings.batch_size}. In the program, pyro.plate(name, size, subsample_size=...) takes a minibatch at every "
            "step"
        )


def _of_rows(model: Any, guide: Any, data: Any, example: Any, settings: Settings) -> Iterator[str]:
    size, estimator, x = settings.batch_size, settings.estimator, example.x
    network = model if isinstance(model, NetworkModel) else None
    loads, rows = isinstance(data, Loader), len(data)
    taken = len(example) if loads else min(size or rows, rows)
    if loads and size is not None:
        yield f"batch_size must be None where a loader makes the minibatches; got {size}"
    apart = f"estimator={estimator!r} draws independent noise per example; in "
    if estimator != "shared" and network is not None and network.mixes_examples(x):
        yield f"{apart}this network the output of one row of x depends on the others: use estimator='shared'"
    if estimator != "shared" and network is not None and network.mixes_in_training(x):
        yield (
            f"{apart}training mode the output of one row of x depends on the others, as under BatchNorm: use "
            "estimator='shared', or put those layers in evaluation mode (.eval()) before the model is made"
        )
    if isinstance(settings.objective, RenyiELBO) and (loads or taken < rows):
        yield (
            "batch_size must be None and data in memory with objective RenyiELBO, which takes the mean over draws of "
            f"exp(log weight): that of a part of the rows, scaled to all, has another expectation; got batch_size {size}"
        )
    for member in members_of(guide) if isinstance(settings.objective, RenyiELBO) else ():
        for name in member.sites if isinstance(member, Guide) else ():
            q = member.posterior(name)
            if isinstance(q, BernoulliMixture) and q.theta == 0:
                yield (
                    "the objective RenyiELBO weighs draws by the density of the posterior, which at theta = 0 has atoms "
                    f"and none: use theta > 0, or another posterior; got {member.describe()}, at {name!r}"
                )
    for name, function in (("model", model), ("guide", guide)):
        if taken < rows and not takes_num_data(function):
            yield (
                f"training on minibatches needs a {name} that takes the size of the data set, {name}(x, y, num_data=N); "
                f"this one takes no num_data, so batch_size must be None or at least {rows}; got {taken}"
            )
    if taken < rows and network is not None and network.takes_all_rows(x):
        yield f"this network can only be called on all {rows} rows of x together: batch_size must be None; got {taken}"
