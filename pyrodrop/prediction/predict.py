"""Predict with sampled functions, in blocks of samples and tiles of points, or in closed form."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar, cast, overload

import torch
from torch import Tensor
from tqdm import tqdm

from pyrodrop.arrays import is_frame
from pyrodrop.changes import evaluating
from pyrodrop.checks import Count, Flag, Inputs, Seed, checked, mapped, num_rows, parts, shown
from pyrodrop.data.dataset import check_inputs
from pyrodrop.devices import available, seeded
from pyrodrop.likelihoods import per_row
from pyrodrop.models.network import NetworkModel, mixes_examples, repeatable
from pyrodrop.models.trained_network import TrainedNetwork
from pyrodrop.networks.checks import cannot_run
from pyrodrop.prediction.blocks import Block, Masks, blocks
from pyrodrop.prediction.closed_form import dropout_moments
from pyrodrop.prediction.moments import Moments, RunningMoments
from pyrodrop.prediction.prediction import Prediction, Predicts
from pyrodrop.prediction.tiles import cost
from pyrodrop.threads import exclusive

Keep = Literal["draws", "moments"]
Method = Literal["draws", "analytic"]
F = TypeVar("F", bound=Callable[..., Any])

BLOCK_BYTES = 256 * 2**20  # of sampled weights at a time
_TILE_BYTES = {
    "cpu": 16 * 2**20,
    "cuda": 512 * 2**20,
}  # of activations at a time: fits the CPU's cache, or occupies a GPU
_APART = 64  # points, below which convolutions of several samples are faster together


@overload
def predict(
    run: Predicts,
    x: Inputs,
    num_samples: int = ...,
    *,
    seed: int = ...,
    joint: bool = ...,
    keep: Literal["draws"] = ...,
) -> Prediction: ...
@overload
def predict(
    run: Predicts, x: Inputs, num_samples: int = ..., *, seed: int = ..., joint: bool = ..., keep: Literal["moments"]
) -> Moments: ...
@overload
def predict(run: Predicts, x: Inputs, *, keep: Keep = ..., method: Literal["analytic"]) -> Moments: ...
def predict(
    run: Predicts,
    x: Inputs,
    num_samples: int = 1000,
    *,
    seed: int = 0,
    joint: bool = True,
    keep: Keep = "draws",
    method: Method = "draws",
) -> Prediction | Moments:
    """Predict at x with `num_samples` functions sampled from the posterior, with the network in evaluation mode.

    On a terminal a progress bar appears after two seconds.

    Args:
        run: a `Fit`, `Replicates`, a `Sampled` or a `Reading`, or an object with a method ``predict``, such as a Gaussian
            process of `pyrodrop.analysis`, which does not take `joint`, `keep` and `method`; replicates take `joint`.
        x: points, ``[N, ...]`` in the units of the training data, or a tuple or mapping of tensors as in training. If the
            network's examples depend on each other, it is called on all points at once. After training on
            `data.Dataset.from_frame` also a DataFrame, whose columns are found by name. Minibatches of a loader are the
            points of a call each: with the same seed their functions are the same.
        num_samples: S, number of sampled functions; ignored by ``method="analytic"``.
        seed: seed of the samples; the caller's random state is unchanged. The same seed gives the same functions at any x.
        joint: sample functions, with one set of weights for all points. With False, noise is sampled independently per
            point; then only the marginal distribution of each point is correct, not the dependence between points (see
            `Prediction`, and `reparam.LocalReparam` for convolutions).
        keep: ``"draws"`` returns a `Prediction` with all samples; ``"moments"`` returns `Moments`, whose memory does not
            depend on S.
        method: ``"analytic"`` returns `Moments` in closed form, without sampling. It requires dropout at theta = 0 on the
            input of the last layer as the only noise, as in a network with one hidden layer whose units are dropped.

    Returns:
        A `Prediction` with f ``[S, N, ...]``, or `Moments` with mean and variance ``[N, ...]``, in the units of y, and in
        float64 where float32 would round a y far from zero (`Dataset.standardized`). For a fit of a Pyro program, x is as
        for `Fit.predict`, and the result is a dictionary of draws by site.

    Raises:
        ValueError: x is empty, has NaN or infinite values, or another width than in training; a number is out of range; the
            guide was made for another model; there is no closed form; ``joint=False`` for a network whose examples depend on
            each other.
        TypeError: ``joint=False`` or ``method="analytic"`` for a guide without a method ``posterior``; an argument of the
            wrong kind.
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
        >>> pyrodrop.predict(fit, x, method="analytic").mean.shape
        torch.Size([20, 1])
    """
    if not callable(getattr(run, "predict", None)):
        raise TypeError(f"run must be a Fit, or an object with a method predict; got {shown(run)}")
    options = (("joint", joint, True), ("keep", keep, "draws"), ("method", method, "draws"))
    changed: dict[str, Any] = {
        name: value for name, value, default in options if (type(value), value) != (type(default), default)
    }
    return run.predict(x, num_samples, seed=seed, **changed)


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
    joint: Annotated[bool, Flag("whether to sample functions, with one set of weights for all points,")] = True,
    keep: Keep = "draws",
    method: Method = "draws",
) -> Prediction | Moments:
    """`predict` for a model of `pyrodrop.models` and any guide that samples its weights. Other arguments are as there.

    Args:
        device: the device that the model is on; the result is on the device of x.

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
        if method == "analytic":
            if not joint:
                raise ValueError("method='analytic' does not sample, so joint must be True; got joint=False")
            return dropout_moments(model, guide, x, device)
        tiles = _shown(_tiles(model, guide, x, num_samples, device, joint), num_samples * num_rows(x))
        if keep == "moments":
            return _moments(model, x, tiles, joint)
        outputs = _outputs(model, x, tiles, num_samples)
        likelihood, targets = (_on(module, outputs.device) for module in (model.likelihood, model.targets))
        distribution, f = likelihood.predictive(outputs, targets)
    return Prediction(f=f, distribution=per_row(distribution, 2), seed=seed, joint=joint, missing=likelihood.missing)


def _shown(tiles: Iterable[tuple[int, int, Tensor]], total: int) -> Iterator[tuple[int, int, Tensor]]:
    """The tiles, with a progress bar of functions times points on a terminal after two seconds."""
    form = "{desc}: {percentage:3.0f}%|{bar}| [{elapsed}<{remaining}]"
    with tqdm(total=total, desc="predict", bar_format=form, delay=2.0, leave=False, disable=None) as bar:
        for draw, first, output in tiles:
            yield draw, first, output
            bar.update(len(output) * output.shape[1])


def _moments(model: Any, x: Inputs, tiles: Iterable[tuple[int, int, Tensor]], joint: bool) -> Moments:
    """The moments of outputs that arrive in tiles, on the device of x."""
    running = RunningMoments(num_rows(x))
    for _, first, output in tiles:
        f = model.likelihood.location(output, model.targets)
        running.add(first, per_row(model.likelihood(output, model.targets), 2), f)
    return running.result(torch.empty(0, dtype=f.dtype, device=parts(x)[0].device), joint=joint)


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
            f"{free / 2**30:,.1f} GiB are free: use keep='moments', whose memory does not depend on num_samples, a smaller "
            f"num_samples than {shape[0]}, or fewer points at a time"
        )


def _tiles(
    model: Any, guide: Callable[..., Any], x: Inputs, num_samples: int, device: torch.device, joint: bool
) -> Iterator[tuple[int, int, Tensor]]:
    """Outputs of all samples at all points in tiles: index of the first sample and point, and outputs ``[t, n, ...]``."""
    sites = model.weight_sites()
    together = mixes_examples(model, x)
    if together and not joint:
        raise ValueError(
            "joint=False needs a network that computes every example separately; in this network the output of one example "
            "depends on others, as in a graph: use joint=True"
        )
    example = _rows(x, slice(None) if together else slice(1), device)
    masks = masks_of(model, example, together, joint)
    drawn = 0
    for block in blocks(guide, sites, example, num_samples, BLOCK_BYTES, masks, joint):
        for draw, first, output in tiles_of(model, block, x, device, together):
            yield drawn + draw, first, output
        drawn += block.num_draws


def masks_of(model: Any, x: Inputs, together: bool, joint: bool = True) -> Masks:
    """Drop rate and shape of the masks that are not noise of a weight, by name; empty for most models.

    Args:
        x: one point, or all of them if the network needs them together.
        joint: whether every mask is to be the same for all points.

    Raises:
        ValueError: the network cannot be called on x, or one mask for all points does not exist.
    """
    try:
        masks: Masks = model.noise_shapes(x)
    except (RuntimeError, IndexError) as error:
        raise ValueError(cannot_run(x, error, together=together)) from error
    wrong = [name for name, (_, shape) in masks.items() if shape is None]
    if wrong and joint and not together:
        raise ValueError(
            f"the dropout {', '.join(wrong)} merges the points with their rows in an order that is unknown, so that a "
            "function, with one mask for all points, cannot be drawn: use joint=False, or read the network with several "
            "examples that differ"
        )
    return masks


def tiles_of(
    model: Any, block: Block, x: Inputs, device: torch.device, together: bool
) -> Iterator[tuple[int, int, Tensor]]:
    """Outputs of a block's samples at all points in tiles: index of the first sample and point, and outputs ``[t, n, ...]``.

    Args:
        x: the points, ``[N, ...]``.

    Raises:
        ValueError: the network cannot be called on x, or does not return one row per point.
    """
    size = 1 if together else num_rows(x)  # number of points that can be computed separately
    example = _rows(x, slice(None) if together else slice(1), device)
    mapped = model.batches_weights or (block.local and model.maps_weights)
    block = replace(block, mapped=mapped, of_draws=model.of_draws if isinstance(model, TrainedNetwork) else None)
    most = _elements(model, device)
    try:
        with repeatable(model):
            counted = cost(block, model.outputs, example, together)
    except (RuntimeError, IndexError) as error:
        raise ValueError(cannot_run(example, error, together=together)) from error
    draws, points = counted.tile(block.num_draws, size, most)
    if counted.apart and device.type == "cpu" and size >= _APART:
        draws, points = counted.tile(1, size, most)
        block = replace(block, mapped=False)
    for first in range(0, size, points):
        rows = example if together else _rows(x, slice(first, first + points), device)
        for start in range(0, block.num_draws, draws):
            with repeatable(model):
                output = block(model.outputs, rows, slice(start, start + draws))
            if output.dim() < 2 or output.shape[1] != num_rows(rows):
                raise ValueError(
                    f"the network must return one row per example, [{num_rows(rows)}, ...] here; got "
                    f"{list(output.shape[1:])}: does it squeeze the axis of the examples if there is only one example?"
                )
            yield start, first, output


def rows_at_once(model: Any, x: Inputs, device: torch.device) -> int:
    """The number of rows to evaluate at a time with one set of weights, for a network that computes them separately."""
    whole = Block(1, {name: weight[None] for name, weight in model.weight_sites().items()}, {}, {})
    with repeatable(model):
        counted = cost(whole, model.outputs, x)
    return counted.tile(1, num_rows(x), _elements(model, device))[1]


def _elements(model: Any, device: torch.device) -> int:
    """The maximum number of activations in a tile."""
    return _TILE_BYTES.get(device.type, _TILE_BYTES["cpu"]) // next(iter(model.weight_sites().values())).element_size()


def _rows(x: Inputs, rows: slice, device: torch.device) -> Any:
    return mapped(lambda tensor: tensor[rows].to(device), x)


def _on(module: Any, device: torch.device) -> Any:
    """The module if it is on `device`, otherwise a copy of it there."""
    tensors = [*module.parameters(), *module.buffers()]
    return module if all(tensor.device == device for tensor in tensors) else copy.deepcopy(module).to(device)
