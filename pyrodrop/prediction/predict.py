"""Predict by draws of functions, in blocks of draws and tiles of points, or in closed form."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal, overload

import torch
from torch import Tensor

from pyrodrop.data.dataset import check_inputs
from pyrodrop.devices import seeded
from pyrodrop.inputs import Inputs, mapped, num_rows, parts
from pyrodrop.likelihoods import per_row
from pyrodrop.names import one_of
from pyrodrop.networks.mixing import mixes_examples
from pyrodrop.networks.modes import evaluating, repeatable
from pyrodrop.prediction.blocks import Block, blocks, local_blocks
from pyrodrop.prediction.closed_form import dropout_moments
from pyrodrop.prediction.moments import Moments, RunningMoments
from pyrodrop.prediction.prediction import Prediction, Predicts
from pyrodrop.prediction.tiles import cost

Keep = Literal["draws", "moments"]
Method = Literal["draws", "analytic"]

_BYTES = 256 * 2**20  # of drawn weights held at a time
_TILE_BYTES = {
    "cpu": 16 * 2**20,
    "cuda": 512 * 2**20,
}  # of activations held at a time: what fits a cache, or fills a GPU


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
    """Predict at x from `num_samples` draws of functions. The network is in evaluation mode, and nothing of it changes.

    Args:
        run: a `Fit`, or anything with its `predict`; `joint`, `keep` and `method` are a `Fit`'s alone.
        x: points, ``[N, ...]`` in the units of the training data, or a tuple or mapping of tensors as in training. A network
            whose examples see each other gets all of them at once.
        num_samples: S, number of functions drawn; ``method="analytic"`` draws none.
        seed: of the draws; the caller's random state is left alone. One seed means the same functions at any x.
        joint: draw functions, one weight for all points. False draws a noise for every point, and the result says so:
            only the marginal distribution of each point is right (`Prediction.joint` says what holds for several rows of one
            point, `reparam.LocalReparam` for convolutions); what two points have in common is not.
        keep: ``"draws"`` for a `Prediction`, ``"moments"`` for `Moments`, which hold no draws and take memory of N alone.
        method: ``"analytic"`` for `Moments` in closed form, without draws, where dropout at theta = 0 is all of the
            posterior's noise and meets the last layer only: one hidden layer whose units are dropped.

    Raises:
        ValueError: x with NaN or infinite values, of another width than the model's, or empty; no closed form; joint=False
            for a network whose examples see each other.
        TypeError: joint=False for a guide that does not know its posteriors.
    """
    usual = {"joint": True, "keep": "draws", "method": "draws"}
    asked = {"joint": joint, "keep": keep, "method": method}
    options: dict[str, Any] = {name: value for name, value in asked.items() if value != usual[name]}
    return run.predict(x, num_samples, seed=seed, **options)


def draw_functions(
    model: Any,
    guide: Callable[..., Any],
    x: Inputs,
    num_samples: int,
    *,
    seed: int,
    device: torch.device,
    joint: bool = True,
    keep: Keep = "draws",
    method: Method = "draws",
) -> Prediction | Moments:
    """`predict` for a model of `pyrodrop.models` and any guide that draws its weights, in blocks and tiles."""
    one_of(keep, Keep, "keep")
    one_of(method, Method, "method")
    if num_samples < 1:
        raise ValueError(f"num_samples is the number of functions drawn and must be at least 1; got {num_samples}")
    if not hasattr(model, "outputs"):
        raise TypeError(
            f"predict draws functions from models of pyrodrop.models; for a {type(model).__name__} use pyro.infer.Predictive"
        )
    x = check_inputs(x)
    where = parts(x)[0].device
    with seeded(seed, device), torch.no_grad(), evaluating(model, guide):
        if method == "analytic":
            if not joint:
                raise ValueError("method='analytic' draws nothing, jointly or by point; got joint=False")
            return dropout_moments(model, guide, x, device)
        tiles = _tiles(model, guide, x, num_samples, device, joint)
        if keep == "moments":
            running = RunningMoments(num_rows(x))
            for _, first, output in tiles:
                f = model.likelihood.location(output, model.targets)
                running.add(first, per_row(model.likelihood(output, model.targets), 2), f)
            like = torch.empty(0, dtype=f.dtype, device=where)
            return running.result(like, joint=joint)
        outputs: Tensor | None = None
        for draw, first, output in tiles:
            if outputs is None:
                outputs = output.new_empty((num_samples, num_rows(x), *output.shape[2:]))
            outputs[draw : draw + len(output), first : first + output.shape[1]] = output
        assert outputs is not None
        likelihood, targets = (_on(part, where) for part in (model.likelihood, model.targets))
        outputs = outputs.to(where)
        law, f = per_row(likelihood(outputs, targets), 2), likelihood.location(outputs, targets)
    return Prediction(f=f, law=law, seed=seed, joint=joint)


def _tiles(
    model: Any, guide: Callable[..., Any], x: Inputs, num_samples: int, device: torch.device, joint: bool
) -> Iterator[tuple[int, int, Tensor]]:
    """Outputs of all draws at all points, a tile ``[t, n, ...]`` at a time with its first draw and point."""
    sites = model.weight_sites()
    together = mixes_examples(model, x)
    if together and not joint:
        raise ValueError(
            "joint=False draws a noise for every point, which is a prediction only where points are computed apart; in "
            "this network the output of one example depends on others, as in a graph: leave joint at True"
        )
    one = _rows(x, slice(None) if together else slice(1), device)
    drawn = 0
    for block in blocks(guide, sites, one, num_samples, _BYTES) if joint else local_blocks(guide, sites, num_samples):
        for draw, first, output in tiles_of(model, block, x, device, together):
            yield drawn + draw, first, output
        drawn += block.num_draws


def tiles_of(
    model: Any, block: Block, x: Inputs, device: torch.device, together: bool
) -> Iterator[tuple[int, int, Tensor]]:
    """Outputs of a block's draws at all points, a tile ``[t, n, ...]`` at a time with its first draw and point.

    Args:
        model: of `pyrodrop.models`.
        block: some draws.
        x: the points.
        device: where the model is.
        together: whether points cannot be computed apart.

    Raises:
        ValueError: the network cannot be called on x, or does not return a row per point.
    """
    size = 1 if together else num_rows(x)  # things that can be computed apart
    one = _rows(x, slice(None) if together else slice(1), device)
    block = replace(block, mapped=model.batches_weights)
    most = _TILE_BYTES.get(device.type, _TILE_BYTES["cpu"]) // next(iter(model.weight_sites().values())).element_size()
    try:
        with repeatable(model):
            counted = cost(block, model.outputs, one, together)
    except (RuntimeError, IndexError) as error:
        raise ValueError(cannot_run(one, together, error)) from error
    draws, points = counted.tile(block.num_draws, size, most)
    for first in range(0, size, points):
        some = one if together else _rows(x, slice(first, first + points), device)
        for start in range(0, block.num_draws, draws):
            with repeatable(model):
                output = block(model.outputs, some, slice(start, start + draws))
            if output.dim() < 2 or output.shape[1] != num_rows(some):
                raise ValueError(
                    f"the network must return one row per example, [{num_rows(some)}, ...] here; got "
                    f"{list(output.shape[1:])}: does it squeeze the axis of the examples away where there is one?"
                )
            yield start, first, output


def cannot_run(x: Inputs, together: bool, error: Exception) -> str:
    """What to say of a network that does not run at x."""
    shapes = ", ".join(str(list(part.shape)) for part in parts(x))
    text = (str(error).strip().splitlines() or [""])[0]
    why = " It takes all of its examples at once: predict at as many as it was trained on." if together else ""
    return f"the network cannot be called on x of shape {shapes}: {type(error).__name__}: {text}.{why}"


def _rows(x: Inputs, rows: slice, device: torch.device) -> Any:
    return mapped(lambda part: part[rows].to(device), x)


def _on(part: Any, device: torch.device) -> Any:
    """A module, or where its tensors are elsewhere a copy, on `device`."""
    held = [*part.parameters(), *part.buffers()]
    return part if all(value.device == device for value in held) else copy.deepcopy(part).to(device)
