"""Prediction: draws of functions and the mixture that they make.

    f_t = network(x; W_t),   W_t ~ q,   t = 1 ... S            [S, N, D]
    p(y | x) = mean_t p(y | f_t)
    E[y]     = mean_t E[y | f_t]
    Var[y]   = mean_t Var[y | f_t] + mean_t E[y | f_t]^2 - E[y]^2

For a Gaussian likelihood these are Gal & Ghahramani's (2016) mean and variance, 1/tau + mean f_t^2 - (mean f_t)^2, where
the mean over t divides by S. One W_t serves all x, so draws are functions and joint over the points. Where only single
points matter, ``joint=False`` draws a noise for every point, by the laws of `reparam.LocalReparam`.

Where only mean and variance are wanted, ``keep="moments"`` holds no draws: memory is that of the points, whatever S.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, overload

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import Independent

from pyrodrop.closed_form import dropout_moments
from pyrodrop.data.dataset import check_inputs
from pyrodrop.devices import seeded
from pyrodrop.functions import blocks, local_blocks
from pyrodrop.moments import Moments, RunningMoments, component_moments
from pyrodrop.names import known
from pyrodrop.tiles import cost

Keep = Literal["draws", "moments"]
Method = Literal["draws", "analytic"]

_BYTES = 256 * 2**20  # of drawn weights held at a time
_TILE_BYTES = {
    "cpu": 16 * 2**20,
    "cuda": 512 * 2**20,
}  # of activations held at a time: what fits a cache, or fills a GPU


@dataclass(frozen=True)
class Prediction:
    """What a posterior says at N points, in the units of y.

    Attributes:
        f: draws of the function, ``[S, N, D]``, logits for a classifier.
        law: the law of y at each component of the predictive mixture, batch shape ``[T, N]``. T = S for draws of
            networks, and 1 where the predictive law is known in closed form.
        seed: of the draws of y.
        f_sd: standard deviation of f where it is known in closed form, ``[N, D]``.
        joint: whether f are draws of functions, so that what two points have in common can be read off them. False:
            every point had noise of its own, and only each point alone has the right law.
    """

    f: Tensor
    law: TorchDistribution
    seed: int = 0
    f_sd: Tensor | None = None
    joint: bool = True

    @property
    def mean(self) -> Tensor:
        """E[y], ``[N, D]``; the mean probabilities of the classes for a classifier."""
        return component_moments(self.law)[0].mean(0)

    @property
    def variance(self) -> Tensor:
        """Var[y], observation noise included, ``[N, D]``. The sum of squares is centred first: it cannot cancel."""
        mean, variance = component_moments(self.law)
        return variance.mean(0) + mean.var(0, correction=0)

    @property
    def sd(self) -> Tensor:
        """Standard deviation of y, ``[N, D]``."""
        return self.variance.sqrt()

    @property
    def spread(self) -> Tensor:
        """Standard deviation of the function alone, without observation noise, ``[N, D]``."""
        return self.f.std(0, correction=0) if self.f_sd is None else self.f_sd

    @property
    def y(self) -> Tensor:
        """A draw of y for every draw of f, ``[S, N, ...]``; the same ones every time."""
        return self.sample_y(len(self.f))

    def sample_y(self, num_samples: int) -> Tensor:
        """Draws of y, ``[num_samples, N, ...]``, each component in turn."""
        components = self.law.batch_shape[0]
        rounds = math.ceil(num_samples / components)
        with seeded(self.seed, self.f.device), torch.no_grad():
            draws: Tensor = self.law.sample((rounds,))
        return draws.flatten(0, 1)[:num_samples]

    def log_density(self, y: Tensor) -> Tensor:
        """log p(y_n | x_n) under the mixture, ``[N]``, by a shift-stable log of the mean."""
        y = self._aligned(y)
        return torch.logsumexp(self.law.log_prob(y), 0) - math.log(self.law.batch_shape[0])

    def cdf(self, y: Tensor) -> Tensor:
        """P(Y <= y) under the mixture, per point and column: ``[N, D]``."""
        law = self.law.base_dist if isinstance(self.law, Independent) else self.law
        return law.cdf(self._aligned(y)).mean(0)

    def _aligned(self, y: Tensor) -> Tensor:
        """y with the shape of one component's draws; a ValueError rather than a broadcast if it has another."""
        want = self.law.batch_shape[1:] + self.law.event_shape
        if y.dim() == 1 and want == (len(y), 1):
            y = y[:, None]
        if y.shape != want:
            raise ValueError(f"y must have the shape of the prediction, {tuple(want)}; got {tuple(y.shape)}")
        return y.to(self.f.device)


class Predicts(Protocol):
    """Anything that predicts: a fit, a Gaussian process."""

    def predict(self, x: Tensor, num_samples: int = ..., *, seed: int = ...) -> Prediction: ...


@overload
def predict(
    run: Predicts,
    x: Tensor,
    num_samples: int = ...,
    *,
    seed: int = ...,
    joint: bool = ...,
    keep: Literal["draws"] = ...,
) -> Prediction: ...
@overload
def predict(
    run: Predicts, x: Tensor, num_samples: int = ..., *, seed: int = ..., joint: bool = ..., keep: Literal["moments"]
) -> Moments: ...
@overload
def predict(run: Predicts, x: Tensor, *, keep: Keep = ..., method: Literal["analytic"]) -> Moments: ...
def predict(
    run: Predicts,
    x: Tensor,
    num_samples: int = 1000,
    *,
    seed: int = 0,
    joint: bool = True,
    keep: Keep = "draws",
    method: Method = "draws",
) -> Prediction | Moments:
    """Predict at x from `num_samples` draws of functions.

    Args:
        run: a `Fit`, or anything with its `predict`; `joint`, `keep` and `method` are a `Fit`'s alone.
        x: points, ``[N, ...]`` in the units of the training data.
        num_samples: S, number of functions drawn; ``method="analytic"`` draws none.
        seed: of the draws; the caller's random state is left alone. One seed means the same functions at any x.
        joint: draw functions, one weight for all points. False draws a noise for every point, and the result says so:
            each point alone has the right law (for convolutions `reparam.LocalReparam` says which), any two do not.
        keep: ``"draws"`` for a `Prediction`, ``"moments"`` for `Moments`, which hold no draws and take memory of N alone.
        method: ``"analytic"`` for `Moments` in closed form, without draws, where dropout at theta = 0 is all of the
            posterior's noise and meets the last layer only: one hidden layer whose units are dropped.

    Raises:
        ValueError: x with NaN or infinite values, of another width than the model's, or empty; no closed form.
        TypeError: joint=False for a guide that does not know its posteriors.
    """
    usual = {"joint": True, "keep": "draws", "method": "draws"}
    asked = {"joint": joint, "keep": keep, "method": method}
    options: dict[str, Any] = {name: value for name, value in asked.items() if value != usual[name]}
    return run.predict(x, num_samples, seed=seed, **options)


def draw_functions(
    model: Any,
    guide: Callable[..., Any],
    x: Tensor,
    num_samples: int,
    *,
    seed: int,
    device: torch.device,
    joint: bool = True,
    keep: Keep = "draws",
    method: Method = "draws",
) -> Prediction | Moments:
    """`predict` for a model of `pyrodrop.models` and any guide that draws its weights, in blocks and tiles."""
    known(keep, ("draws", "moments"), "thing to keep of a prediction")
    known(method, ("draws", "analytic"), "method of prediction")
    if num_samples < 1:
        raise ValueError(f"num_samples is the number of functions drawn and must be at least 1; got {num_samples}")
    if not hasattr(model, "outputs"):
        raise TypeError(
            f"predict draws functions from models of pyrodrop.models; for a {type(model).__name__} use pyro.infer.Predictive"
        )
    where = x.device if isinstance(x, Tensor) else torch.device("cpu")
    x = check_inputs(x)
    with seeded(seed, device), torch.no_grad():
        if method == "analytic":
            if not joint:
                raise ValueError("method='analytic' draws nothing, jointly or by point; got joint=False")
            return dropout_moments(model, guide, x, device)
        tiles = _tiles(model, guide, x, num_samples, device, joint)
        if keep == "moments":
            running = RunningMoments(len(x))
            for _, first, output in tiles:
                law, f = (part(output, model.targets) for part in (model.likelihood, model.likelihood.location))
                running.add(first, law, f)
            like = torch.empty(0, dtype=f.dtype, device=where)
            return running.result(like, joint=joint)
        outputs: Tensor | None = None
        for draw, first, output in tiles:
            if outputs is None:
                outputs = output.new_empty((num_samples, len(x), *output.shape[2:]))
            outputs[draw : draw + len(output), first : first + output.shape[1]] = output
        law = model.likelihood(outputs, model.targets)
        f = model.likelihood.location(outputs, model.targets)
    return Prediction(f=f.to(where), law=_to(law, where), seed=seed, joint=joint)


def _tiles(
    model: Any, guide: Callable[..., Any], x: Tensor, num_samples: int, device: torch.device, joint: bool
) -> Iterator[tuple[int, int, Tensor]]:
    """Outputs of all draws at all points, a tile ``[t, n, outputs]`` at a time with its first draw and point."""
    sites = model.weight_sites()
    one = x[:1].to(device)
    most = _TILE_BYTES.get(device.type, _TILE_BYTES["cpu"]) // next(iter(sites.values())).element_size()
    drawn = 0
    for block in blocks(guide, sites, one, num_samples, _BYTES) if joint else local_blocks(guide, sites, num_samples):
        block = replace(block, mapped=model.batches_weights)
        draws, points = cost(block, model.outputs, one).tile(block.num_draws, len(x), most)
        for first in range(0, len(x), points):
            some = x[first : first + points].to(device)
            for start in range(0, block.num_draws, draws):
                yield drawn + start, first, block(model.outputs, some, slice(start, start + draws))
        drawn += block.num_draws


def _to(law: TorchDistribution, device: torch.device) -> TorchDistribution:
    """The same law with its parameters on `device`."""
    if isinstance(law, Independent):
        return _to(law.base_dist, device).to_event(law.reinterpreted_batch_ndims)
    own: dict[str, Any] = {
        name: value.to(device) for name in law.arg_constraints if isinstance(value := law.__dict__.get(name), Tensor)
    }
    return type(law)(**own)
