"""Values of y of known rows, drawn with weights that fall with the distance of these rows from x.

    w_j(x) = exp(-|m(x) - m_j|^2 / 2 b^2 - |[x] - x_j|^2 / 2 c^2) / sum_k ...      [x] is the nearest point of a box
    z ~ N(0, 1),   f(x) = the f_j at which the sum of the weights up to j reaches Phi(z)
    y ~ likelihood(f),   so that p(y | x) = sum_j w_j(x) p(y | f_j)

The index m is the first output of a network, or the probabilities of labels, and m_j its value at row j. f_j is for instance
y_j: then the distribution of y has peaks at values that repeat, and is skewed where y is. It is the kernel estimate of a
conditional density, Rosenblatt (1969), Conditional Probability Density and Regression Estimators, with a learned index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from pyrodrop.checks import count
from pyrodrop.likelihoods import Categorical, Likelihood
from pyrodrop.models.network import NetworkModel
from pyrodrop.models.wide_and_deep import WideNetwork
from pyrodrop.priors import Gaussian


class Neighbours(NetworkModel):
    """The distribution of y at known rows that are near x, as functions of one latent level at the site ``level``.

    Args:
        widths, activation, logs: of the network of the index m, one of `WideAndDeep`.
        rows: J, the number of known rows.
        likelihood: the distribution of y given the outputs f_j of one of these rows.

    Until `set_rows` is called, all f_j are 0.

    Shapes:
        x ``[N, widths[0]]``; outputs ``[N, widths[-1]]``.

    Raises:
        TypeError, ValueError: as `MLP`, or `rows` is no positive whole number.
        RuntimeError: on calls: a gradient in x is needed, between whose steps f is constant.

    Example:
        >>> import torch, pyrodrop
        >>> model = pyrodrop.models.Neighbours([1, 1], 3, likelihood=pyrodrop.likelihoods.Gaussian(precision=4.0))
        >>> x = torch.tensor([[0.0], [1.0], [2.0]])
        >>> f = torch.tensor([[5.0], [5.0], [7.0]])
        >>> model.set_rows(x, torch.zeros(3, 1), f, model.network.index.state_dict(), (1.0, 0.1))
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
        labels = isinstance(likelihood, Categorical)
        network = _Network(widths, count(rows, "rows", "the number of known rows"), activation, logs, labels)
        prior = {"level": Gaussian()}
        super().__init__(network, prior=prior, likelihood=likelihood, bias_prior=None, in_features=widths[0])

    @torch.no_grad()
    def set_rows(self, x: Tensor, m: Tensor, f: Tensor, index: Mapping[str, Tensor], near: tuple[float, float]) -> None:
        """Set the known rows and the index, in standardised units if the data are standardised.

        Args:
            x: of the rows, as the index has it, ``[J, D]``.
            m: the index at the rows, ``[J, 1]``, or ``[J, widths[-1]]`` of labels, such as that of networks that were not
                trained on them.
            f: outputs, ``[J, widths[-1]]``, in the order in which the level passes them.
            index: the state of the network of m.
            near: the bandwidths b and c.

        Raises:
            ValueError: the shapes differ from these.
            RuntimeError: `index` is the state of another network.
        """
        network: _Network = self.network  # type: ignore[assignment]
        buffers = network.x, network.m, network.f
        if [each.shape for each in (x, m, f)] != [each.shape for each in buffers]:
            wanted, got = ([list(each.shape) for each in of] for of in (buffers, (x, m, f)))
            raise ValueError(f"x, m and f must have shapes {wanted}; got {got}")
        network.index.load_state_dict(index)
        for buffer, values in zip((*buffers, network.near), (x, m, f, torch.tensor(near)), strict=True):
            buffer.copy_(values)


class _Network(nn.Module):
    x: Tensor
    m: Tensor
    f: Tensor
    near: Tensor

    def __init__(
        self,
        widths: Sequence[int],
        rows: int,
        activation: str | Callable[[Tensor], Tensor],
        logs: Sequence[int],
        labels: bool,
    ) -> None:
        super().__init__()
        self.labels = labels
        self.index = WideNetwork(widths, activation, logs).requires_grad_(False)
        self.level = nn.Parameter(torch.zeros(1, 1))
        self.register_buffer("x", torch.zeros(rows, widths[0]))
        self.register_buffer("m", torch.zeros(rows, widths[-1] if labels else 1))
        self.register_buffer("f", torch.zeros(rows, widths[-1]))
        self.register_buffer("near", torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            raise RuntimeError(
                "models.Neighbours has no gradient in x, as its functions are steps: take recipe.fit(neighbours=False)"
            )
        m = index_of(self.index(x), self.labels)
        weights = weighted(m, self.index.seen(x), self.m, self.x, self.near[0], self.near[1])
        place = (weights.cumsum(-1) < torch.special.ndtr(self.level[0])).sum(-1)
        return self.f[place.clamp(max=len(self.f) - 1)]

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.level)


def index_of(outputs: Tensor, labels: bool) -> Tensor:
    """The index m of outputs ``[N, O]`` of its network: probabilities of labels, or the first one, ``[N, 1]``."""
    return outputs.softmax(-1) if labels else outputs[:, :1]


def weighted(
    m: Tensor,
    x: Tensor,
    m_rows: Tensor,
    x_rows: Tensor,
    b: Tensor | float,
    c: Tensor | float,
    known: Tensor | None = None,
) -> Tensor:
    """Weights ``[N, J]`` of rows with index ``[J, I]`` and x ``[J, D]`` at N points, of those that are `known` there."""
    logs = (_squares(m, m_rows) / b**2 + _squares(x, x_rows) / c**2) / -2
    return (logs if known is None else logs.masked_fill(~known, -torch.inf)).softmax(-1)


def _squares(points: Tensor, rows: Tensor) -> Tensor:
    """Squared distances, ``[N, J]``."""
    return points.square().sum(1)[:, None] - 2 * points @ rows.T + rows.square().sum(1)
