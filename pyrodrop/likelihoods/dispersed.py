"""Likelihoods with a positive parameter beside the mean: its three forms, written once.

a number      fixed, or learned from there
None          learned, from a start that the y of the training data give
"network"     an output of the network: the outputs are 2 D for y [N, D], the second half is its logarithm
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
from pyro.nn import PyroParam
from torch import Tensor
from torch.distributions import constraints

from pyrodrop.arguments import flag, shown, variance
from pyrodrop.likelihoods.likelihood import Likelihood
from pyrodrop.scaling import Standardize

Dispersion: TypeAlias = float | Literal["network"] | None
_LEAST, _MOST = 1e-3, 1e6  # of starts from data: those of counts that vary less than their mean are below 0


class Dispersed(Likelihood):
    """A likelihood whose distribution has a mean or location, and the parameter `parameter`.

    Subclasses implement `distribution` and `estimate`.
    """

    parameter: str
    copies = 4

    def __init__(self, value: Dispersion, learned: bool, what: str) -> None:
        super().__init__()
        self._from_data, self.by_network = value is None, isinstance(value, str)
        self.learned = flag(learned, "learned", f"whether the {self.parameter} is trained") or self._from_data
        if self.by_network:
            if value != "network":
                raise ValueError(f"{self.parameter} must be a positive number, None or 'network'; got {shown(value)}")
            if learned:
                raise ValueError(
                    f"learned is for a {self.parameter} that is one number; got {self.parameter}='network'"
                )
            return
        start = torch.tensor(1.0 if value is None else variance(value, self.parameter, what))
        if self.learned:
            setattr(self, self.parameter, PyroParam(start, constraints.positive))
        else:
            self.register_buffer(self.parameter, start)

    def forward(self, output: Tensor, targets: Standardize) -> Any:
        if not self.by_network:
            return self.distribution(output, getattr(self, self.parameter).to(output.dtype), targets).to_event(1)
        mean, log_parameter = self._halves(output)
        return self.distribution(mean, log_parameter.exp() * self.unit(targets), targets).to_event(1)

    def distribution(self, output: Tensor, parameter: Tensor, targets: Standardize) -> Any:
        """The distribution of single numbers, from the outputs ``[..., N, D]`` and the parameter, which broadcasts."""
        raise NotImplementedError

    def estimate(self, y: Tensor) -> Tensor:
        """A start of the parameter, from all observations as one column, float64."""
        raise NotImplementedError

    def unit(self, targets: Standardize) -> Tensor | float:
        """What an output of 0 is, in the units of the parameter."""
        return 1.0

    def mean_of(self, output: Tensor) -> Tensor:
        """The outputs without those of the parameter."""
        return self._halves(output)[0] if self.by_network else output

    def _halves(self, output: Tensor) -> tuple[Tensor, Tensor]:
        if output.shape[-1] % 2:
            raise ValueError(
                f"output must have 2 D columns under a {type(self).__name__} whose {self.parameter} the network gives; got "
                f"shape {list(output.shape)}"
            )
        first, second = output.chunk(2, -1)
        return first, second

    def start(self, y: Tensor) -> None:
        if not self._from_data or float(getattr(self, self.parameter).detach()) != 1.0:
            return
        y = y.detach().double().flatten()
        value = float(self.estimate(y[~y.isnan()]))
        if value == value:
            before: Tensor = getattr(self, self.parameter).detach()
            setattr(self, self.parameter, torch.full_like(before, min(max(value, _LEAST), _MOST)))

    def outputs(self, targets: int) -> int:
        return 2 * targets if self.by_network else targets

    def describe(self) -> str:
        if self.by_network:
            return f"{type(self).__name__}({self.parameter} from the network)"
        value = float(getattr(self, self.parameter).detach())
        return f"{type(self).__name__}({self.parameter}={value:g}{', learned' if self.learned else ''})"


def log_mean(output: Tensor, targets: Standardize) -> Tensor:
    """ln m of a positive mean m = s exp(output), where s is the mean of y if it is standardised, and 1 otherwise."""
    return output + torch.where(targets.loc > 0, targets.loc, 1.0).log()
