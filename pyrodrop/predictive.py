"""Prediction: draws of functions and the mixture that they make.

    f_t = network(x; W_t),   W_t ~ q,   t = 1 ... S            [S, N, D]
    p(y | x) = mean_t p(y | f_t)
    E[y]     = mean_t E[y | f_t]
    Var[y]   = mean_t Var[y | f_t] + mean_t E[y | f_t]^2 - E[y]^2

For a Gaussian likelihood these are Gal & Ghahramani's (2016) mean and variance, 1/tau + mean f_t^2 - (mean f_t)^2, where
the mean over t divides by S. One W_t serves all x, so draws are functions and joint over the points.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import pyro
import torch
from pyro import poutine
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import Independent

from pyrodrop.data.dataset import check_inputs
from pyrodrop.devices import seeded

_BYTES = 256 * 2**20  # of activations and weights held at a time


@dataclass(frozen=True)
class Prediction:
    """What a posterior says at N points, in the units of y.

    Attributes:
        f: draws of the function, ``[S, N, D]``, logits for a classifier.
        law: the law of y at each component of the predictive mixture, batch shape ``[T, N]``. T = S for draws of
            networks, and 1 where the predictive law is known in closed form.
        seed: of the draws of y.
        f_sd: standard deviation of f where it is known in closed form, ``[N, D]``.
    """

    f: Tensor
    law: TorchDistribution
    seed: int = 0
    f_sd: Tensor | None = None

    @property
    def mean(self) -> Tensor:
        """E[y], ``[N, D]``."""
        return self.law.mean.mean(0)

    @property
    def variance(self) -> Tensor:
        """Var[y], observation noise included, ``[N, D]``. The sum of squares is centred first: it cannot cancel."""
        return self.law.variance.mean(0) + self.law.mean.var(0, correction=0)

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


def predict(run: Predicts, x: Tensor, num_samples: int = 1000, *, seed: int = 0) -> Prediction:
    """Predict at x from `num_samples` draws of functions.

    Args:
        run: a `Fit`, or anything with its `predict`.
        x: points, ``[N, ...]`` in the units of the training data.
        num_samples: S, number of functions drawn.
        seed: of the draws; the caller's random state is left alone.

    Raises:
        ValueError: x with NaN or infinite values, of another width than the model's, or empty.
    """
    return run.predict(x, num_samples, seed=seed)


def draw_functions(
    model: Any, guide: Callable[..., Any], x: Tensor, num_samples: int, *, seed: int, device: torch.device
) -> Prediction:
    """`predict` for a model of `pyrodrop.models` and any guide that draws its weights, in chunks of draws."""
    if num_samples < 1:
        raise ValueError(f"num_samples is the number of functions drawn and must be at least 1; got {num_samples}")
    if not hasattr(model, "outputs"):
        raise TypeError(
            f"predict draws functions from models of pyrodrop.models; for a {type(model).__name__} use pyro.infer.Predictive"
        )
    where = x.device if isinstance(x, Tensor) else torch.device("cpu")
    x = check_inputs(x).to(device)
    sites = model.weight_sites()
    per_draw = sum(w.numel() + len(x) * w.shape[0] for w in sites.values()) * next(iter(sites.values())).element_size()
    chunk = max(1, min(num_samples, _BYTES // per_draw))
    outputs = []
    with seeded(seed, device), torch.no_grad():
        for first in range(0, num_samples, chunk):
            draws = min(chunk, num_samples - first)
            weights = _draw(guide, x, draws)
            outputs.append(model.outputs({n: weights[n] for n in sites}, x))
        output = torch.cat(outputs)
        law = model.likelihood(output, model.targets)
        f = model.likelihood.location(output, model.targets)
    return Prediction(f=f.to(where), law=_to(law, where), seed=seed)


def _draw(guide: Callable[..., Any], x: Tensor, num_samples: int) -> dict[str, Tensor]:
    """Weights ``[num_samples, ...]`` of any guide: one of `pyrodrop.guides` knows how, another is run in a plate."""
    if hasattr(guide, "draw"):
        return guide.draw(num_samples)  # type: ignore[no-any-return]
    with poutine.block(), pyro.plate("draws", num_samples):
        return guide(x)  # type: ignore[no-any-return]


def _to(law: TorchDistribution, device: torch.device) -> TorchDistribution:
    """The same law with its parameters on `device`."""
    if isinstance(law, Independent):
        return _to(law.base_dist, device).to_event(law.reinterpreted_batch_ndims)
    own: dict[str, Any] = {
        name: value.to(device) for name in law.arg_constraints if isinstance(value := law.__dict__.get(name), Tensor)
    }
    return type(law)(**own)
