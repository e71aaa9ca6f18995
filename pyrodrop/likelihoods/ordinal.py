"""Ordinal likelihood: ordered classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from pyro.nn import PyroParam
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import logsigmoid

from pyrodrop.arguments import count
from pyrodrop.arrays import tensor_of
from pyrodrop.likelihoods.classes import check_classes, labels
from pyrodrop.likelihoods.likelihood import Likelihood
from pyrodrop.scaling import Standardize


class Ordinal(Likelihood):
    """Ordered classes, such as grades; the network has one output, which is larger for higher classes.

        P(y <= k) = sigmoid(c_k - f)        f [N, 1], y [N] in 0 ... K - 1,   c_0 < ... < c_(K-2) learned

    The cutpoints between the classes are learned. They are initialised so that at f = 0 the class probabilities equal the
    frequencies in the training data. Predictions are class probabilities, as for `Categorical`.

    References:
        McCullagh (1980), https://doi.org/10.1111/j.2517-6161.1980.tb01109.x: the proportional odds model.

    Args:
        classes: K, at least 2.
        cutpoints: K - 1 ascending numbers, which stay fixed; learned if None.

    Raises:
        ValueError: `classes` is less than 2, or `cutpoints` are not K - 1 ascending numbers.
        TypeError: `classes` is no whole number, or `cutpoints` no list of numbers.

    Example:
        >>> import torch
        >>> from pyrodrop import likelihoods
        >>> from pyrodrop.scaling import Standardize
        >>> likelihood = likelihoods.Ordinal(3)
        >>> likelihood.start(torch.tensor([0, 1, 1, 2]))
        >>> likelihood(torch.tensor([[0.0], [2.0]]), Standardize()).probs.detach()
        tensor([[0.2506, 0.4988, 0.2506],
                [0.0433, 0.2448, 0.7119]])
    """

    scales = ("gaps",)
    first: Any
    gaps: Any

    def __init__(self, classes: int, cutpoints: Sequence[float] | None = None) -> None:
        super().__init__()
        self.classes: int = count(classes, "classes", "the number of classes", least=2)
        self.learned: bool = cutpoints is None
        self.copies: int = 7 * self.classes
        if cutpoints is None:
            self.first = PyroParam(torch.tensor(-1.0), constraints.real)
            self.gaps = PyroParam(torch.ones(self.classes - 2), constraints.positive)
            return
        fixed = tensor_of(cutpoints, "cutpoints").to(torch.get_default_dtype())
        if fixed.shape != (self.classes - 1,) or not bool((fixed.diff() > 0).all()) or not bool(fixed.isfinite().all()):
            raise ValueError(
                f"cutpoints must be {self.classes - 1} ascending numbers, between {self.classes} classes; got "
                f"{fixed.tolist()}"
            )
        self.register_buffer("first", fixed[0].clone())
        self.register_buffer("gaps", fixed.diff())

    @property
    def cutpoints(self) -> Tensor:
        """c, ``[K - 1]``, ascending."""
        first = self.first[None]
        return torch.cat([first, first + self.gaps.cumsum(0)])

    def forward(self, output: Tensor, targets: Standardize) -> TorchDistribution:
        above = self.cutpoints.to(output.dtype) - output  # c_k - f, [..., N, K - 1]
        upto, beyond = logsigmoid(above), logsigmoid(-above)  # ln P(y <= k), ln P(y > k)
        # sigmoid(b) - sigmoid(a) = sigmoid(b) sigmoid(-a) (1 - exp(a - b))
        apart = (-(above[..., :-1] - above[..., 1:]).exp()).log1p()
        between = upto[..., 1:] + beyond[..., :-1] + apart
        return dist.Categorical(logits=torch.cat([upto[..., :1], between, beyond[..., -1:]], -1))

    def location(self, output: Tensor, targets: Standardize) -> Tensor:
        return output

    @property
    def unknown(self) -> str:
        cutpoints = self.cutpoints.detach().cpu()
        started = not torch.equal(cutpoints, torch.arange(-1.0, self.classes - 2).to(cutpoints))
        return "" if started or not self.learned else "cutpoints"

    def start(self, y: Tensor) -> None:
        if not self.unknown:
            return  # fixed, or started before
        y = y.detach().cpu().long().flatten()
        if not 0 <= int(y.min()) <= int(y.max()) < self.classes:
            return  # `check` raises an error
        shares = torch.bincount(y, minlength=self.classes).double() + 1e-2
        cuts = torch.logit((shares.cumsum(0) / shares.sum())[:-1])
        self.first, self.gaps = cuts[0].to(self.first), cuts.diff().to(self.first)

    def as_target(self, y: Tensor) -> Tensor:
        return labels(y)

    def outputs(self, targets: int) -> int:
        return 1

    def check(self, y: Tensor, output: Tensor, targets: Standardize) -> None:
        if output.shape[-1] != 1:
            raise ValueError(
                f"an Ordinal likelihood needs a network with one output; this one has outputs "
                f"[N, {', '.join(map(str, output.shape[1:]))}]"
            )
        check_classes(self.as_target(y), output, self.classes)

    def describe(self) -> str:
        return f"Ordinal({self.classes}{'' if self.learned else ', fixed cutpoints'})"
