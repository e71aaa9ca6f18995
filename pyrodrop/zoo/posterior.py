"""Exact posteriors for methods of any package: data, log density of weights, draws, and moments with standard errors.

    h_0 = x,   h_l = g(W_l h_(l-1) + b_l),   f = loc + scale (W_L h_(L-1) + b_L)
    W_l ~ N(0, prior_sd^2),   b_l ~ N(0, 1),   y ~ N(f, noise_sd^2), or a label with probabilities softmax(f)

Draws are written in the format of posteriordb, https://github.com/stan-dev/posteriordb.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any

import torch
from pyro.ops.stats import effective_sample_size
from torch import Tensor
from torch.distributions import Normal

from pyrodrop.arrays import tensor_of
from pyrodrop.likelihoods import Gaussian
from pyrodrop.sampling import Sampled
from pyrodrop.scaling import Standardize
from pyrodrop.zoo import trained
from pyrodrop.zoo.exact import Problem

_normal = functools.partial(Normal, validate_args=False)


class ExactPosterior:
    """The posterior of a small network, with stored draws; `pyrodrop.zoo.problem` makes it.

    Attributes:
        name, summary: ``exact/NAME``, and one line.
        train, test: the data, in their units. In ``exact/foong`` y of the test part are placeholders.
        x, points: inputs ``[N, D]`` and ``[P, D]`` of the training and the test part, as the network takes them, float64.
        y: observations ``[N, 1]`` in their units, or labels ``[N]``.
        loc, scale: of f in the units of y; 0 and 1 for classes.
        noise_sd: standard deviation of the noise in the units of y; None for classes.
        widths, activation: of the network.
        shapes, prior_sd: of weights and biases by name, in the order of a flat vector, which has `num_weights` numbers.
    """

    def __init__(self, problem: Problem) -> None:
        likelihood = problem.likelihood()
        self.problem, self.name, self.summary = problem, problem.name, problem.summary
        self.widths, self.activation = tuple(problem.widths), problem.activation
        self.train, self.test = problem.data()
        inputs, targets = self.train.inputs or Standardize(), self.train.targets or Standardize()
        self.x, self.points = (inputs(data.x.double()) for data in (self.train, self.test))
        self.y = self.train.y.double() if self.train.y.is_floating_point() else self.train.y
        self.loc, self.scale = targets.loc.double(), targets.scale.double()
        self.noise_sd = float(likelihood.precision) ** -0.5 if isinstance(likelihood, Gaussian) else None  # type: ignore[arg-type]
        self.shapes = {name: tuple(value.shape) for name, value in problem.model().weight_sites().items()}
        self.prior_sd = dict(zip(self.shapes, [sd for scale in problem.scales for sd in (scale, 1.0)], strict=True))
        self.num_weights = sum(map(math.prod, self.shapes.values()))

    @functools.cached_property
    def sampled(self) -> Sampled:
        """The stored draws, as `pyrodrop.zoo.load` returns them."""
        return trained.restore(self.problem, trained.pull(self.name))  # type: ignore[return-value]

    def log_density(self, weights: Any) -> Tensor:
        """ln p(y | x, w) + ln p(w) in nats, ``[...]``, with all constants; it can be differentiated.

        Args:
            weights: flat vectors ``[..., num_weights]``, or ``[..., *shape]`` by name, of one or several sets of weights.

        Raises:
            TypeError: weights are no arrays of real numbers.
            ValueError: a name or shape is not one of `shapes`, or leading dimensions or dtypes differ.
        """
        by_name = self.by_name(weights)
        prior = {name: _normal(0.0, sd).log_prob(by_name[name]) for name, sd in self.prior_sd.items()}
        return self._log_likelihood(by_name) + sum(prior[n].flatten(-len(self.shapes[n])).sum(-1) for n in prior)

    def potential(self, weights: Any) -> Tensor:
        """Minus `log_density`, the potential energy of Hamiltonian samplers."""
        return -self.log_density(weights)

    def f(self, weights: Any, x: Tensor | None = None) -> Tensor:
        """The function in the units of y, or logits, ``[..., P, outputs]``.

        Args:
            weights: as of `log_density`, which raises the same errors.
            x: inputs ``[P, D]`` as the network takes them; `points` if None.
        """
        by_name = self.by_name(weights)
        h = (self.points if x is None else x).to(by_name["layers.0.weight"])
        for layer in range(len(self.widths) - 1):
            h = getattr(torch, self.activation)(h) if layer else h
            h = h @ by_name[f"layers.{layer}.weight"].mT + by_name[f"layers.{layer}.bias"].unsqueeze(-2)
        return self.loc.to(h) + self.scale.to(h) * h

    def by_name(self, weights: Any) -> dict[str, Tensor]:
        """Weights as tensors ``[..., *shape]`` by name, in the order of `shapes`; raises the errors of `log_density`."""
        if not isinstance(weights, Mapping):
            flat = tensor_of(weights, "weights")
            if flat.shape[-1:] != (self.num_weights,):
                raise ValueError(f"weights must be [..., {self.num_weights}]; got shape {list(flat.shape)}")
            parts = flat.split([math.prod(shape) for shape in self.shapes.values()], -1)
            sizes = zip(self.shapes.items(), parts, strict=True)
            weights = {name: vector.reshape(*flat.shape[:-1], *shape) for (name, shape), vector in sizes}
        if weights.keys() != self.shapes.keys():
            raise ValueError(
                f"weights must have the names {', '.join(self.shapes)}; got {', '.join(map(str, weights))}"
            )
        values = {name: tensor_of(weights[name], f"weights[{name!r}]") for name in self.shapes}
        first = values["layers.0.weight"]
        leading = list(first.shape[:-2])
        for name, shape in self.shapes.items():
            value = values[name]
            if list(value.shape) != [*leading, *shape] or value.dtype != first.dtype or not value.is_floating_point():
                raise ValueError(
                    f"weights[{name!r}] must be real numbers [..., {', '.join(map(str, shape))}], of the leading dimensions "
                    f"{leading} and the dtype of the others; got shape {list(value.shape)} of {value.dtype}"
                )
        return values

    def moments(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Moments under the posterior and their Monte Carlo standard errors, from the stored draws.

        ``mean`` and ``sd`` are of f at the test points, ``[P, 1]``, or of the probabilities ``[P, classes]``;
        ``log_likelihood`` is the mean of ln p(y | x, w), a scalar. A standard error is sd(z) / sqrt(effective draws of z),
        where z is f or ln p, and, by the delta method, (f - mean)^2 / (2 sd) for ``sd``.
        """
        f = self.f(self.sampled.samples).double()
        f = f if self.noise_sd else f.softmax(-1)
        sd, mean = torch.std_mean(f, (0, 1))
        log_likelihood = self._log_likelihood(self.sampled.samples).double()
        return {
            "mean": (mean, _error(f)),
            "sd": (sd, _error((f - mean).square() / (2 * sd).clamp_min(1e-300))),
            "log_likelihood": (log_likelihood.mean(), _error(log_likelihood)),
        }

    def parameters(self) -> list[str]:
        """The names of the numbers of a flat vector, as in Stan and posteriordb: ``layers.0.weight[1,2]``."""
        return [
            f"{name}[{','.join(str(place + 1) for place in places)}]"
            for name, shape in self.shapes.items()
            for places in itertools.product(*map(range, shape))
        ]

    def to_json(self) -> list[dict[str, list[float]]]:
        """The draws as in the files of posteriordb: for every chain, its draws by the names of `parameters`."""
        flat = torch.cat([self.sampled.samples[name].flatten(2) for name in self.shapes], -1)
        return [dict(zip(self.parameters(), chain.mT.tolist(), strict=True)) for chain in flat]

    def _log_likelihood(self, by_name: Mapping[str, Tensor]) -> Tensor:
        f = self.f(by_name, self.x)
        if self.noise_sd is None:
            return f.log_softmax(-1)[..., torch.arange(len(self.y)), self.y].sum(-1)
        return _normal(f, self.noise_sd).log_prob(self.y.to(f)).sum((-2, -1))


def _error(z: Tensor) -> Tensor:
    """Monte Carlo standard error of the mean of ``[chains, draws, ...]``; at most all draws count as effective."""
    sd, most = z.flatten(0, 1).std(0), z.shape[0] * z.shape[1]
    return torch.where(sd > 0, sd / effective_sample_size(z, 0, 1).clamp_max(most).sqrt(), 0.0)
