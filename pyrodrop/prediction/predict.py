"""Predict with draws of functions."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, cast

import torch
from torch import Tensor

from pyrodrop.arrays import is_frame
from pyrodrop.changes import evaluating
from pyrodrop.checks import Count, Inputs, Seed, checked, num_rows, parts, shown
from pyrodrop.data.dataset import check_inputs
from pyrodrop.devices import available, seeded
from pyrodrop.likelihoods import per_row
from pyrodrop.models.network import NetworkModel
from pyrodrop.prediction.draws import drawn
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.threads import exclusive

F = TypeVar("F", bound=Callable[..., Any])


def uncompiled(function: F) -> F:
    """Exclude the function from `torch.compile`: Dynamo cannot trace the varying sizes of the blocks of draws."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (torch.compiler.disable(function) if torch.compiler.is_compiling() else function)(*args, **kwargs)

    return cast(F, call)


def predict(run: Any, x: Any, num_samples: int = 1000, *, seed: int = 0) -> Any:
    """Predict at x, as ``run.predict(x, num_samples, seed=seed)``.

    Args:
        run: a fit, replicates, samples, a reading, or a Gaussian process of `pyrodrop.analysis`.
        x, num_samples, seed: points ``[N, ...]`` in the units of the training data, the number of functions that are drawn,
            and their seed.

    Returns:
        A `Prediction` with f ``[S, N, ...]``; for a Pyro program a dictionary of draws by site.

    Raises:
        TypeError: `run` has no method ``predict``; or as the method, which also raises a ValueError.
    """
    if not callable(getattr(run, "predict", None)):
        raise TypeError(f"run must be a Fit, or an object with a method predict; got {shown(run)}")
    return run.predict(x, num_samples, seed=seed)


@uncompiled
@checked
@exclusive()
def draw_functions(
    model: Any,
    guide: Callable[..., Any],
    x: Inputs,
    num_samples: Annotated[int, Count("the number of functions drawn")],
    *,
    seed: Seed,
    device: torch.device,
    widened: Callable[[Tensor, Inputs], Tensor] | None = None,
) -> Prediction:
    """`Posterior.predict` for a model of `pyrodrop.models` and any guide that samples its weights.

    Args:
        device: the device that the model is on; the result is on the device of x.
        widened: a function from draws of the outputs ``[S, N, ...]`` and x to the draws to be used.

    Raises:
        TypeError: the model is not one of `pyrodrop.models`.
        ValueError, TypeError: as `predict`.
    """
    if not isinstance(model, NetworkModel):
        raise TypeError(
            f"predict supports models of pyrodrop.models; for a {type(model).__name__} use pyro.infer.Predictive"
        )

    columns = model.columns
    x = check_inputs(x) if columns is None or not is_frame(x) else columns.x(x, "x")
    with seeded(seed, device), torch.no_grad(), evaluating(model, guide):
        outputs = _outputs(model, guide, x, num_samples, device)
        outputs = outputs if widened is None else widened(outputs, x)
        likelihood, targets = model.likelihood, model.targets
        if device != outputs.device:
            likelihood, targets = copy.deepcopy((likelihood, targets))
            likelihood.to(outputs.device)
            targets.to(outputs.device)
        distribution, f = likelihood(outputs, targets), likelihood.location(outputs, targets)
    return Prediction(f=f, distribution=per_row(distribution, 2), seed=seed)


def _outputs(model: Any, guide: Callable[..., Any], x: Inputs, num_samples: int, device: torch.device) -> Tensor:
    """Outputs of all draws at all points, ``[S, N, ...]``, on the device of x."""
    outputs, place, first_of_block = None, parts(x)[0].device, 0
    for block in drawn(model, guide, x, num_samples, device):
        for draw, first, output in block.tiles(x, device):
            if outputs is None:
                dtype = model.targets.widened(output[:0]).dtype  # of f, which is made in the memory of the outputs
                shape = (num_samples, num_rows(x), *output.shape[2:])
                need, free = model.likelihood.copies * math.prod(shape) * dtype.itemsize, available(place)
                if need > free:
                    raise ValueError(
                        f"the outputs of {shape[0]:,} functions at {shape[1]:,} points take {need / 2**30:,.1f} GiB, and "
                        f"{free / 2**30:,.1f} GiB are free: use a smaller num_samples than {shape[0]}, or fewer points at "
                        "a time"
                    )
                outputs = output.new_empty(shape, device=place, dtype=dtype)
            draws = slice(first_of_block + draw, first_of_block + draw + len(output))
            outputs[draws, first : first + output.shape[1]] = output
        first_of_block += block.num_draws
    assert outputs is not None
    return outputs
