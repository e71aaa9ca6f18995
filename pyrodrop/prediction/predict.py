"""Predict with draws of functions."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, TypeVar, cast

import torch
from torch import Tensor
from tqdm import tqdm

from pyrodrop.arrays import is_frame
from pyrodrop.changes import evaluating
from pyrodrop.checks import Count, Inputs, Seed, checked, num_rows, parts, shown
from pyrodrop.data.dataset import check_inputs
from pyrodrop.devices import available, seeded
from pyrodrop.likelihoods import per_row
from pyrodrop.models.network import NetworkModel
from pyrodrop.prediction.draws import drawn
from pyrodrop.prediction.prediction import Prediction, Predicts
from pyrodrop.threads import exclusive

F = TypeVar("F", bound=Callable[..., Any])


def predict(run: Predicts, x: Inputs, num_samples: int = 1000, *, seed: int = 0) -> Prediction:
    """Predict at x with `num_samples` functions sampled from the posterior, with the network in evaluation mode.

    On a terminal a progress bar appears after two seconds.

    Args:
        run: a `Fit`, `Replicates`, a `Sampled` or a `Reading`, or an object with a method ``predict``, such as a Gaussian
            process of `pyrodrop.analysis`.
        x: points, ``[N, ...]`` in the units of the training data, or a tuple or mapping of tensors as in training. If the
            network's examples depend on each other, it is called on all points at once. After training on
            `data.Dataset.from_frame` also a DataFrame, whose columns are found by name. Minibatches of a loader are the
            points of a call each: with the same seed their functions are the same.
        num_samples: S, number of sampled functions, each with one set of weights for all points.
        seed: seed of the samples; the caller's random state is unchanged. The same seed gives the same functions at any x.

    Returns:
        A `Prediction` with f ``[S, N, ...]`` in the units of y, and in float64 where float32 would round a y far from zero
        (`Dataset.standardized`). For a fit of a Pyro program, x is as for `Fit.predict`, and the result is a dictionary of
        draws by site.

    Raises:
        ValueError: x is empty, has NaN or infinite values, or another width than in training; a number is out of range; the
            guide was made for another model.
        TypeError: an argument is of the wrong kind.
        RuntimeError: x requires a gradient, or the call is inside of a transform of torch.func: the derivative would be 0.

    Example:
        >>> import torch, pyrodrop
        >>> _ = torch.manual_seed(0)
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> model = pyrodrop.models.MLP(
        ...     [1, 8, 1], prior=pyrodrop.priors.Gaussian(), likelihood=pyrodrop.likelihoods.Gaussian(precision=10.0)
        ... )
        >>> guide = pyrodrop.guides.BernoulliDropout(model, drop_rate=0.1, mask_input=False)
        >>> fit = pyrodrop.fit(model, guide, (x, x**2), steps=5)
        >>> pyrodrop.predict(fit, x, num_samples=50).f.shape
        torch.Size([50, 20, 1])
    """
    if not callable(getattr(run, "predict", None)):
        raise TypeError(f"run must be a Fit, or an object with a method predict; got {shown(run)}")
    return run.predict(x, num_samples, seed=seed)


def uncompiled(function: F) -> F:
    """Exclude the function from `torch.compile`: Dynamo cannot trace the varying sizes of the blocks of draws."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (torch.compiler.disable(function) if torch.compiler.is_compiling() else function)(*args, **kwargs)

    return cast(F, call)


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
    """`predict` for a model of `pyrodrop.models` and any guide that samples its weights. Other arguments are as there.

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
        outputs = _outputs(model, x, _tiles(model, guide, x, num_samples, device), num_samples)
        outputs = outputs if widened is None else widened(outputs, x)
        likelihood, targets = (_on(module, outputs.device) for module in (model.likelihood, model.targets))
        distribution, f = likelihood.predictive(outputs, targets)
    return Prediction(f=f, distribution=per_row(distribution, 2), seed=seed, missing=likelihood.missing)


def _outputs(model: Any, x: Inputs, tiles: Iterable[tuple[int, int, Tensor]], num_samples: int) -> Tensor:
    """Outputs ``[S, N, ...]`` that arrive in tiles, on the device of x."""
    outputs, device = None, parts(x)[0].device
    for draw, first, output in tiles:
        if outputs is None:
            dtype = model.targets.widened(output[:0]).dtype  # of f, which is made in the memory of the outputs
            _check_memory((num_samples, num_rows(x), *output.shape[2:]), dtype, device, model.likelihood.copies)
            outputs = output.new_empty((num_samples, num_rows(x), *output.shape[2:]), device=device, dtype=dtype)
        outputs[draw : draw + len(output), first : first + output.shape[1]] = output
    assert outputs is not None
    return outputs


def _check_memory(shape: Sequence[int], dtype: torch.dtype, device: torch.device, copies: int) -> None:
    """Raise a ValueError if `copies` tensors of outputs of this shape exceed the available memory."""
    need, free = copies * math.prod(shape) * dtype.itemsize, available(device)
    if need > free:
        raise ValueError(
            f"the outputs of {shape[0]:,} functions at {shape[1]:,} points take {need / 2**30:,.1f} GiB, and "
            f"{free / 2**30:,.1f} GiB are free: use a smaller num_samples than {shape[0]}, or fewer points at a time"
        )


def _tiles(
    model: Any, guide: Callable[..., Any], x: Inputs, num_samples: int, device: torch.device
) -> Iterator[tuple[int, int, Tensor]]:
    """Outputs of all draws at all points in tiles: index of the first draw and point, and outputs ``[t, n, ...]``.

    On a terminal a progress bar of functions times points appears after two seconds.
    """
    first_of_block, form = 0, "{desc}: {percentage:3.0f}%|{bar}| [{elapsed}<{remaining}]"
    total = num_samples * num_rows(x)
    with tqdm(total=total, desc="predict", bar_format=form, delay=2.0, leave=False, disable=None) as bar:
        for block in drawn(model, guide, x, num_samples, device):
            for draw, first, output in block.tiles(x, device):
                yield first_of_block + draw, first, output
                bar.update(len(output) * output.shape[1])
            first_of_block += block.num_draws


def _on(module: Any, device: torch.device) -> Any:
    """The module if it is on `device`, otherwise a copy of it there."""
    tensors = [*module.parameters(), *module.buffers()]
    return module if all(tensor.device == device for tensor in tensors) else copy.deepcopy(module).to(device)
