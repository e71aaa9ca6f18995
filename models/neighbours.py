"""Outputs of known rows, drawn with weights that fall with the distance of these rows from x.

    w_j(x) = exp(-|m(x) - m_j|^2 / 2 b^2 - |[x] - x_j|^2 / 2 c^2) / sum_k ...      [x] is the nearest point of a box
    z ~ N(0, 1),   f(x) = the f_j at which the sum of the weights up to j reaches Phi(z)
    y ~ likelihood(f),   so that p(y | x) = sum_j w_j(x) p(y | f_j)

The index m is the first output of a network, or the probabilities of labels, and m_j its value at row j. With f_j = y_j, y
has peaks at values that repeat, and is skewed where the known ones are: the kernel estimate of a conditional density,
Rosenblatt (1969), Conditional Probability Density and Regression Estimators, with an index that was learned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from pyrodrop.checks import count, instance
from pyrodrop.likelihoods import Categorical, Likelihood
from pyrodrop.models.network import NetworkModel
from pyrodrop.models.wide_and_deep import WideNetwork
from pyrodrop.priors import Gaussian


class Neighbours(NetworkModel):
    """The distribution of y at known rows that are near x, by functions of one level z at the site ``level``.

    Args:
        widths, logs: of the network of the index, a `WideAndDeep`: x ``[N, D]``, outputs ``[N, O]``.
        rows: J, the number of known rows; until `set_rows` is called, their outputs are 0.
        likelihood: the distribution of y given the outputs of a known row.

    Raises:
        RuntimeError: on calls: a gradient in x is needed, between whose steps f is constant.
    """

    def __init__(self, widths: Sequence[int], rows: int, *, likelihood: Likelihood, logs: Sequence[int] = ()) -> None:
        rows = count(rows, "rows", "the number of known rows")
        instance(likelihood, Likelihood, "likelihood", "a Likelihood, such as likelihoods.Gaussian()")
        network = _Network(WideNetwork(widths, "relu", logs), rows, isinstance(likelihood, Categorical))
        prior = {"level": Gaussian()}
        super().__init__(network, prior=prior, likelihood=likelihood, bias_prior=None, in_features=widths[0])

    @torch.no_grad()
    def set_rows(self, weights: Mapping[str, Tensor], **values: Tensor) -> None:
        """Set weights of the index by name, and x ``[J, D]``, m ``[J, 1]``, or of labels ``[J, O]``, f ``[J, O]`` in the
        order in which the level passes them, and the bandwidths b and c as near ``[2]``; all of standardised data."""
        state = self.network.state_dict()
        for name, value in {**{f"index.{name}": value for name, value in weights.items()}, **values}.items():
            state[name].copy_(value)


class _Network(nn.Module):
    def __init__(self, index: WideNetwork, rows: int, labels: bool) -> None:
        super().__init__()
        self.index, self.labels = index.requires_grad_(False), labels
        self.level = nn.Parameter(torch.zeros(1, 1))
        inputs, outputs = index.slopes.shape
        for name, columns in (("x", inputs), ("m", outputs if labels else 1), ("f", outputs)):
            self.register_buffer(name, torch.zeros(rows, columns))
        self.register_buffer("near", torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            raise RuntimeError(
                "the functions of models.Neighbours are steps without a gradient in x: take recipe.fit(neighbours=False)"
            )
        m = index_of(self.index(x), self.labels)
        near = closeness(m, self.index.seen(x), self.m, self.x, *self.near)  # type: ignore[arg-type, misc]
        place = (near.softmax(-1).cumsum(-1) < (1 + torch.erf(self.level[0] / math.sqrt(2))) / 2).sum(-1)
        f: Tensor = self.f  # type: ignore[assignment]
        return f[place.clamp(max=len(f) - 1)]


def index_of(outputs: Tensor, labels: bool) -> Tensor:
    """The index m of outputs ``[N, O]`` of its network: probabilities of labels, or the first one, ``[N, 1]``."""
    return outputs.softmax(-1) if labels else outputs[:, :1]


def closeness(m: Tensor, x: Tensor, m_rows: Tensor, x_rows: Tensor, b: Tensor | float, c: Tensor | float) -> Tensor:
    """Logarithms of the weights of J rows at N points, up to a constant for each point, ``[N, J]``."""
    return (_squares(m, m_rows) / b**2 + _squares(x, x_rows) / c**2) / -2


def _squares(points: Tensor, rows: Tensor) -> Tensor:
    return points.square().sum(1)[:, None] - 2 * points @ rows.T + rows.square().sum(1)
