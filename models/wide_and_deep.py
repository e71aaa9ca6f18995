"""A linear model beside a network.

    f = b + B^T x + s N([x]; W)      B, b and s are fixed,   W_l ~ prior,   [x] is the nearest point of a box
    y ~ likelihood(f)

B and b are from a regression that was solved in closed form, and s is the standard deviation of its residuals, so that the
network N learns the residuals in units of their standard deviation. For columns over powers of ten, both have
(ln([x] - o) - m) / d in place of x. Cheng et al. (2016), Wide & Deep Learning,
https://arxiv.org/abs/1606.07792, train line and network together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from pyrodrop.checks import counts
from pyrodrop.likelihoods import Likelihood
from pyrodrop.models.mlp import Perceptron
from pyrodrop.models.network import NetworkModel
from pyrodrop.networks.assignment import PriorSetting
from pyrodrop.networks.sites import starting_from

LEAST = 1e-5  # of x less o, of which a logarithm is taken


class WideAndDeep(NetworkModel):
    """A multilayer perceptron with priors on its weights, beside a line that is not trained.

    Args:
        widths, activation, prior, likelihood, bias_prior, seed: as of `MLP`; names of sites are ``deep.layers.0.weight``,
            ...
        logs: columns of x of which line and network have logarithms; values less than 1e-5 above o count as these.

    Until `set_line` is called, the line is 0 and s is 1; until `set_range` is called, the box is unbounded. If the
    likelihood needs more outputs than y has columns, such as `likelihoods.HeteroscedasticGaussian`, `set_line` sets line and
    s for the first outputs; for all other outputs the line is 0 and s is 1.

    Shapes:
        x ``[N, widths[0]]``; f ``[N, widths[-1]]``.

    Raises:
        TypeError, ValueError: as `MLP`.

    Example:
        >>> import torch, pyrodrop
        >>> model = pyrodrop.models.WideAndDeep(
        ...     [2, 16, 1], prior=pyrodrop.priors.Gaussian(), likelihood=pyrodrop.likelihoods.Gaussian(precision=10.0)
        ... )
        >>> model.set_line(torch.tensor([[1.0], [2.0]]), torch.tensor([3.0]), torch.tensor([0.0]))
        >>> model(torch.tensor([[0.0, 0.0], [1.0, 1.0]])).squeeze().detach()
        tensor([3., 6.])
    """

    def __init__(
        self,
        widths: Sequence[int],
        activation: str | Callable[[Tensor], Tensor] = "relu",
        *,
        prior: PriorSetting,
        likelihood: Likelihood,
        bias_prior: PriorSetting | None = None,
        logs: Sequence[int] = (),
        seed: int | None = 0,
    ) -> None:
        with starting_from(seed):
            super().__init__(
                WideNetwork(widths, activation, logs),
                prior=prior,
                likelihood=likelihood,
                bias_prior=bias_prior,
                in_features=widths[0],
            )

    @torch.no_grad()
    def set_range(self, low: Tensor, high: Tensor, *, of_line: bool = False, of_logs: Tensor | None = None) -> None:
        """Set the box, such as the range of the training data, beyond which the network is constant in x.

        Args:
            low, high: smallest and largest values of the columns of x, ``[D]``, in standardised units if x is standardised.
            of_line: whether the line is also constant beyond the box; if False, it is not changed.
            of_logs: o, m and d of the columns `logs`, ``[3, len(logs)]``.
        """
        network: WideNetwork = self.network  # type: ignore[assignment]
        for ends, values in ((network.low, low), (network.high, high)):
            for row in range(1 + of_line):
                ends[row].copy_(values)
        if of_logs is not None:
            network.of_logs.copy_(of_logs)

    @torch.no_grad()
    def set_line(self, slopes: Tensor, intercept: Tensor, scale: Tensor, *, alone: bool = False) -> None:
        """Set the line and the scale s of the network, in standardised units if the data are standardised.

        Args:
            slopes: B, ``[D, T]`` for the first T outputs.
            intercept: b, ``[T]``.
            scale: s, ``[T]``.
            alone: whether the network is switched off, so that all its outputs are 0.

        Raises:
            ValueError: the shapes differ from these.
        """
        network: WideNetwork = self.network  # type: ignore[assignment]
        columns = slopes.shape[-1]
        if slopes.shape != network.slopes[:, :columns].shape or not intercept.shape == scale.shape == (columns,):
            raise ValueError(
                f"slopes must have shape [{len(network.slopes)}, T], intercept and scale [T]; got {list(slopes.shape)}, "
                f"{list(intercept.shape)} and {list(scale.shape)}"
            )
        network.slopes[:, :columns] = slopes
        network.intercept[:columns] = intercept
        network.scale[:columns] = scale
        network.deep_is_on.fill_(float(not alone))


class WideNetwork(nn.Module):
    """The plain `nn.Module` of `WideAndDeep`."""

    slopes: Tensor
    intercept: Tensor
    scale: Tensor
    deep_is_on: Tensor
    low: Tensor  # of x of the network and of the line, [2, D]
    high: Tensor
    of_logs: Tensor

    def __init__(
        self, widths: Sequence[int], activation: str | Callable[[Tensor], Tensor], logs: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.deep = Perceptron(widths, activation)
        self.logs = list(counts(logs, "logs", "columns of x that are taken by logarithm", least=0))
        if any(column >= widths[0] for column in self.logs):
            raise ValueError(f"logs must be columns of x, 0 to {widths[0] - 1}; got {self.logs}")
        buffers = {"of_logs": torch.tensor([[-1.0], [0.0], [1.0]]).repeat(1, len(self.logs))} if self.logs else {}
        buffers |= {"slopes": torch.zeros(widths[0], widths[-1]), "intercept": torch.zeros(widths[-1])}
        buffers |= {"scale": torch.ones(widths[-1]), "deep_is_on": torch.tensor(1.0)}
        buffers |= {name: torch.full((2, widths[0]), end) for name, end in (("low", -math.inf), ("high", math.inf))}
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x: Tensor) -> Tensor:
        line = self.intercept + self.seen(x, 1) @ self.slopes
        return line + self.deep_is_on * self.scale * self.deep(self.seen(x))

    def seen(self, x: Tensor, by: int = 0) -> Tensor:
        """x as the network has it, or the line (1): in its box, and logarithms of values above o."""
        inside = x.clamp(self.low[by], self.high[by])
        if not self.logs:
            return inside
        zeros, loc, scale = self.of_logs
        logs = ((inside[..., self.logs] - zeros).clamp(min=LEAST).log() - loc) / scale
        return inside.index_copy(-1, torch.tensor(self.logs, device=x.device), logs)
