"""Values of y of known rows, drawn with weights that fall with the distance of these rows from x.

    w_j(x) = exp(-(m(x) - m_j)^2 / 2 b^2 - |[x] - x_j|^2 / 2 c^2) / sum_k ...      [x] is the nearest point of a box
    z ~ N(0, 1),   f(x) = the y_j at which the sum of the weights of smaller and equal y reaches Phi(z)
    y ~ likelihood(f),   so that p(y | x) = sum_j w_j(x) p(y | y_j)

The index m is a network, and m_j its value at row j. The distribution of y has peaks at values that repeat, and is skewed
where y is: the kernel estimate of a conditional density, Rosenblatt (1969), Conditional Probability Density and Regression
Estimators, with an index that was learned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from pyrodrop.checks import count
from pyrodrop.likelihoods import Likelihood
from pyrodrop.models.network import NetworkModel
from pyrodrop.models.wide_and_deep import WideNetwork
from pyrodrop.priors import Gaussian


class Neighbours(NetworkModel):
    """The distribution of y at known rows that are near x, as functions of one latent level at the site ``level``.

    Args:
        widths, activation, logs: of the index m, a network of `WideAndDeep`. Outputs after the first are 0.
        rows: J, the number of known rows.
        likelihood: the distribution of y around one of the known values.

    Until `set_rows` is called, the known values are 0.

    Shapes:
        x ``[N, widths[0]]``; outputs ``[N, widths[-1]]``.

    Raises:
        TypeError, ValueError: as `MLP`, or `rows` is no positive whole number.
        RuntimeError: on calls: a gradient in x is needed, between whose steps f is constant.

    Example:
        >>> import torch, pyrodrop
        >>> model = pyrodrop.models.Neighbours([1, 1], 3, likelihood=pyrodrop.likelihoods.Gaussian(precision=4.0))
        >>> x = torch.tensor([[0.0], [1.0], [2.0]])
        >>> model.set_rows(x, torch.zeros(3), torch.tensor([5.0, 5.0, 7.0]), model.network.index.state_dict(), (1.0, 0.1))
        >>> model.outputs({"level": torch.zeros(1, 1)}, x).flatten()
        tensor([5., 5., 7.])
    """

    def __init__(
        self,
        widths: Sequence[int],
        rows: int,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        *,
        likelihood: Likelihood,
        logs: Sequence[int] = (),
    ) -> None:
        network = _Network(widths, count(rows, "rows", "the number of known rows"), activation, logs)
        prior = {"level": Gaussian()}
        super().__init__(network, prior=prior, likelihood=likelihood, bias_prior=None, in_features=widths[0])

    @torch.no_grad()
    def set_rows(self, x: Tensor, m: Tensor, y: Tensor, index: Mapping[str, Tensor], near: tuple[float, float]) -> None:
        """Set the known rows and the index, in standardised units if the data are standardised.

        Args:
            x: of the rows, as the index has it, ``[J, D]``.
            m: the index at the rows, ``[J]``, such as that of networks that were not trained on them.
            y: observations, ``[J]``.
            index: the state of the network m.
            near: the bandwidths b and c.

        Raises:
            ValueError: the shapes differ from these.
            RuntimeError: `index` is the state of another network.
        """
        network: _Network = self.network  # type: ignore[assignment]
        rows = len(network.y)
        if x.shape != network.x.shape or m.shape != (rows,) or y.shape != (rows,):
            raise ValueError(
                f"x must have shape {list(network.x.shape)}, m and y [{rows}]; got {list(x.shape)}, {list(m.shape)} and "
                f"{list(y.shape)}"
            )
        network.index.load_state_dict(index)
        order = y.argsort()
        for buffer, values in ((network.x, x), (network.m, m), (network.y, y)):
            buffer.copy_(values[order])
        network.near.copy_(torch.tensor(near))


class _Network(nn.Module):
    x: Tensor  # of the known rows, in the order of y
    m: Tensor
    y: Tensor
    near: Tensor

    def __init__(
        self, widths: Sequence[int], rows: int, activation: str | Callable[[Tensor], Tensor], logs: Sequence[int]
    ) -> None:
        super().__init__()
        self.index = WideNetwork(widths, activation, logs).requires_grad_(False)
        self.level = nn.Parameter(torch.zeros(1, 1))
        self.zeros = widths[-1] - 1
        self.register_buffer("x", torch.zeros(rows, widths[0]))
        self.register_buffer("m", torch.zeros(rows))
        self.register_buffer("y", torch.zeros(rows))
        self.register_buffer("near", torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            raise RuntimeError(
                "models.Neighbours has no gradient in x, as its functions are steps: take recipe.fit(neighbours=False)"
            )
        weights = weighted(self.index(x)[:, 0], self.index.seen(x), self.m, self.x, self.near[0], self.near[1])
        place = (weights.cumsum(-1) < torch.special.ndtr(self.level[0])).sum(-1)
        return nn.functional.pad(self.y[place.clamp(max=len(self.y) - 1)][:, None], (0, self.zeros))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.level)


def weighted(
    m: Tensor,
    x: Tensor,
    m_rows: Tensor,
    x_rows: Tensor,
    b: Tensor | float,
    c: Tensor | float,
    known: Tensor | None = None,
) -> Tensor:
    """The weights w ``[N, J]`` of rows with index ``[J]`` and x ``[J, D]`` at N points, of those that are `known` there."""
    squares = x.square().sum(1)[:, None] - 2 * x @ x_rows.T + x_rows.square().sum(1)
    logs = ((m[:, None] - m_rows) / b).square() + squares / c**2
    return (logs / -2 if known is None else (logs / -2).masked_fill(~known, -torch.inf)).softmax(-1)
