"""Draws from the variational posteriors of many data sets, trained together.

One model and one guide are trained on every data set as replicates (`pyrodrop.training.stacked`). Replicate r has the
initial weights of ``seed + r``. The parameters of all replicates exist only stacked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from pyrodrop import threads
from pyrodrop.analysis.calibration.starts import NewStarts
from pyrodrop.changes import evaluating
from pyrodrop.checks import Inputs
from pyrodrop.data import Dataset
from pyrodrop.devices import seeded
from pyrodrop.models import NetworkModel
from pyrodrop.training.problem import Problem, autoguides, training_mode
from pyrodrop.training.settings import Settings
from pyrodrop.training.stacked import Stack, fitting, loss_of

_log = logging.getLogger("pyrodrop")


def check_guide(guide: Any) -> None:
    """Raise a TypeError for a guide that cannot be trained as replicates or drawn from."""
    if autoguides(guide):
        raise TypeError(
            "calibration trains all fits as replicates, which need guides with parameters of their own; those of an "
            "AutoGuide are in Pyro's global store: use a guide of pyrodrop.guides, or sbc_of_draws with fits of your own"
        )
    if not callable(getattr(guide, "draw", None)):
        raise TypeError(
            "make_guide must return a guide with a method draw(num_samples), which those of pyrodrop.guides have; got a "
            f"{type(guide).__name__}. For other ways of inference there is sbc_of_draws"
        )


def problem_of(model: NetworkModel, guide: Any, x: Inputs, y: Tensor, settings: Settings) -> Problem:
    """The problem of the first data set, under the joint distribution of parameters and data of `model`.

    Raises:
        ValueError: model or guide cannot be trained on the data.
        RuntimeError: the model that would be trained is not the one that generated the data.
    """
    data = Dataset(x, y)
    problem = Problem.of(model, guide, data, settings)
    trained = dict(problem.model.named_buffers())
    changed = [name for name, value in model.named_buffers() if not torch.equal(value, trained[name].to(value.device))]
    if changed:
        raise RuntimeError(
            f"preparing the model for its data changed {', '.join(changed)}, so that its prior depends on them"
        )
    return problem


@threads.exclusive()
def each_posterior(
    problem: Problem,
    y: Tensor,
    settings: Settings,
    starts: NewStarts | None,
    num_draws: int,
    seed: int,
    use: Callable[[int, dict[str, Tensor] | None], None],
    memory: float | None,
    progress: bool | None,
) -> None:
    """Train on every data set and pass on draws from each posterior.

    Args:
        problem: the problem of the first data set; its parameters are the same afterwards.
        y: observations of all data sets, ``[R, N, ...]``.
        starts: new initial parameters for each fit; if None, all start from those of the problem.
        seed: seed of the draws from the first posterior; posterior r uses ``seed + r``.
        use: called for r = 0 ... R - 1 in turn with r and the weights ``[S, ...]`` by site, or None if the fit failed.
        memory: most bytes that the fits may take, as in `pyrodrop.fit_replicates`.
    """
    assert isinstance(problem.data, Dataset)
    data = [Dataset(problem.data.x, observations) for observations in y]
    with settings.products(), training_mode(problem):
        loss = loss_of(problem, settings)
        together = fitting(loss, data[0], settings, memory)
        if together < len(data):
            _log.info("training %d of %d fits at a time, limited by memory", together, len(data))
        for first in range(0, len(data), together):
            some = data[first : first + together]
            seeds = range(settings.seed + first, settings.seed + first + len(some))
            stacked = None if starts is None else starts.stacked(problem, loss, seeds)
            stack = Stack([problem] * len(some), [loss] * len(some), settings, some, stacked)
            with seeded(seeds[0], settings.place):
                stack.run(progress)
            for number, drawn in enumerate(_drawn(stack, num_draws, seed + first)):
                use(first + number, drawn)


def _drawn(stack: Stack, num_draws: int, seed: int) -> Iterator[dict[str, Tensor] | None]:
    """Draws from the posterior of every replicate in turn. Restores the parameters of the guide afterwards."""
    guide, failed = stack.problems[0].guide, stack.failed()
    leaves = [parameter.unconstrained for parameter in stack.losses[0].parameters.values()]
    start = [leaf.detach().clone() for leaf in leaves]
    try:
        with evaluating(stack.problems[0].model, guide):
            for number in range(len(stack.problems)):
                if number in failed:
                    yield None
                    continue
                stack.put(number)
                with seeded(seed + number, stack.settings.place):
                    drawn = guide.draw(num_draws)
                # a point estimate is drawn as a view of the parameter that the next replicate changes
                yield {name: value.detach().clone() for name, value in drawn.items()}
    finally:
        with torch.no_grad():
            for leaf, value in zip(leaves, start, strict=True):
                leaf.copy_(value)
