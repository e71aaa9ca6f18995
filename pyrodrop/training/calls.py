"""The arguments of Pyro programs in place of minibatches: every step has all of them, and an epoch is a step."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import torch
from pyro.infer import RenyiELBO
from torch import Tensor

from pyrodrop.compiled import Arguments, Batch, Call
from pyrodrop.data import Dataset, Keywords
from pyrodrop.data.loader import Loader
from pyrodrop.data.rows import Rows
from pyrodrop.data.streamed import Streamed
from pyrodrop.distributions import BernoulliMixture
from pyrodrop.guides.ensemble import members_of
from pyrodrop.guides.guide import Guide
from pyrodrop.inputs import mapped, over_tensors, tensors_in
from pyrodrop.training.loaded import LoadedMinibatches, ReadMinibatches
from pyrodrop.training.minibatches import Minibatches, StackedMinibatches, check_minibatches, usable
from pyrodrop.training.problem import Problem, describe
from pyrodrop.training.settings import Settings


class WholeCall:
    """The arguments of a Pyro program in place of minibatches: there is one, and an epoch is a step."""

    size = num_rows = per_epoch = 1

    def __init__(self, data: Keywords, device: torch.device) -> None:
        self._call = Call((), over_tensors(lambda tensor: usable(tensor, device), data.values))

    def first(self) -> Call:
        """The arguments."""
        return self._call

    def samples(self, steps: int | None) -> list[Call]:
        """The arguments, which are those of every step."""
        return [self._call]

    def next(self) -> Call:
        """The arguments."""
        return self._call

    def state(self) -> dict[str, Tensor]:
        """Nothing: there is one place."""
        return {}

    def load(self, state: Mapping[str, Tensor], name: str = "the state") -> None:
        """Nothing to do."""

    def coming(self) -> tuple[int, int]:
        """One row in place of a minibatch's, and as many steps as one likes."""
        return 1, sys.maxsize


def batches_of(data: Dataset | Keywords, settings: Settings) -> Minibatches | WholeCall:
    """The minibatches of a data set, or the arguments of a Pyro program."""
    if isinstance(data, Keywords):
        return WholeCall(data, settings.place)
    return Minibatches(data, settings.batch_size, settings.place)


def batches_for(problem: Problem, settings: Settings) -> Minibatches | LoadedMinibatches | WholeCall:
    """The minibatches of a problem, whose data may be read while training."""
    data = problem.data
    if isinstance(data, Loader):
        return LoadedMinibatches(data, settings.seed, settings.place, problem.targets_check())
    if isinstance(data, Rows):
        return ReadMinibatches(data, settings.batch_size, settings.place, problem.targets_check())
    return batches_of(problem.in_memory, settings)


class StackedCalls(WholeCall):
    """The arguments of R Pyro programs, ``[R, ...]``, in place of minibatches; replicates draw noise alone.

    Args:
        data: R mappings that differ in the values of tensors alone.
    """

    def __init__(self, data: Sequence[Keywords], device: torch.device) -> None:
        columns = zip(*(tensors_in(own.values) for own in data), strict=True)
        stacked = iter([torch.stack([usable(value, device) for value in column]) for column in columns])
        self._call = Call((), over_tensors(lambda _: next(stacked), data[0].values))


def arguments_of(data: Dataset | Keywords | Streamed, device: torch.device) -> Arguments:
    """All of the data as arguments of one call; of data that are read while training, a sample."""
    if isinstance(data, Streamed):
        data = data.sample
    if isinstance(data, Keywords):
        return Call((), data.on(device))
    return Batch(mapped(lambda x: x.to(device), data.x), data.y.to(device), {})


def stacked_batches_of(data: Sequence[Dataset | Keywords], settings: Settings) -> StackedMinibatches | StackedCalls:
    """The minibatches of several data sets at once, or the arguments of several calls of a Pyro program."""
    rows = [one for one in data if isinstance(one, Dataset)]
    if rows:
        return StackedMinibatches(rows, settings.batch_size, settings.place)
    return StackedCalls([one for one in data if isinstance(one, Keywords)], settings.place)


def check_batches(problem: Problem, settings: Settings, ranks: int = 1) -> None:
    """Raise a ValueError for minibatches that model, guide or network do not support, and for those of a Pyro program."""
    size, parts = settings.batch_size, settings.accumulate
    if isinstance(settings.objective, RenyiELBO):
        _check_weighted_draws(problem, size, ranks)
    if isinstance(problem.data, Loader):
        if size is not None or parts > 1 or ranks > 1:
            raise ValueError(
                "batch_size must be None, accumulate 1 and the process alone (distributed=False) where a loader makes the "
                f"minibatches; got batch_size {size}, accumulate {parts}, {ranks} rank(s). Pass its data set with "
                "batch_size: then every rank reads its own rows"
            )
        size = len(problem.data.sample)
        check_minibatches(size, problem.data.sample.x, problem.model, problem.guide, of=len(problem.data))
    elif isinstance(problem.data, Dataset | Rows):
        given, rows = problem.example, len(problem.data)
        check_minibatches(size, given.x, problem.model, problem.guide, parts=parts, ranks=ranks, of=rows)
    elif size is not None or parts > 1 or ranks > 1:
        got = f"batch_size {size}, accumulate {parts}, {ranks} rank(s)"
        raise ValueError(
            "batch_size must be None, accumulate 1 and the process alone (distributed=False) where data are the keyword "
            f"arguments of a Pyro program, which has no rows; got {got}. In the program, "
            "pyro.plate(name, size, subsample_size=...) takes a minibatch at every step"
        )


def _check_weighted_draws(problem: Problem, size: int | None, ranks: int) -> None:
    """Raise a ValueError where the mean of importance weights p(y, W) / q(W) over draws is not that of all rows."""
    all_rows = size is None or (isinstance(problem.data, Dataset) and size >= len(problem.data))
    if not all_rows or isinstance(problem.data, Loader) or ranks > 1:
        raise ValueError(
            "batch_size must be None, data in memory and the process alone (distributed=False) with objective RenyiELBO, "
            "which takes the mean over draws of exp(log weight): that of a part of the rows, scaled to all, has another "
            f"expectation; got batch_size {size}, {ranks} rank(s). pyrodrop.AlphaDivergence can be trained on minibatches"
        )
    guide = problem.guide
    for member in members_of(guide):
        for name in member.sites if isinstance(member, Guide) else ():
            q = member.posterior(name)
            if isinstance(q, BernoulliMixture) and q.theta == 0:
                raise ValueError(
                    "the objective RenyiELBO weighs draws by the density of the posterior, which at theta = 0 has atoms and "
                    f"none: use theta > 0, or another posterior; got {describe(guide)}, at {name!r}. "
                    "pyrodrop.AlphaDivergence needs no density"
                )
