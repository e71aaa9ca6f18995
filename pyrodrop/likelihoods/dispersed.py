"""Base of the likelihoods with a mean or location and a positive parameter, which the user specifies as

a number      fixed, the same for all of y; or the initial value of a learned parameter
a list        one number per column of y [N, D], fixed or initial values
None          learned, initialised from y of the training data
"network"     of `NegativeBinomial`, an output of the network: 2 D outputs for y [N, D], the second half is its logarithm

A learned parameter gets one value per column of y [N, D] when the model first receives training data
(`NetworkModel.standardize`). For y of other shapes, such as images, whose last axis is no list of targets, it is one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
from pyro.nn import PyroParam
from torch import Tensor
from torch.distributions import constraints

from pyrodrop.checks import flag, shown, variance
from pyrodrop.likelihoods.likelihood import Likelihood
from pyrodrop.scaling import Standardize

Dispersion: TypeAlias = float | Sequence[float] | Literal["network"] | None
_SHOWN = 5  # numbers of columns in a description
FAR, _FAR_PARAMETER = 60.0, 20.0  # bounds of logarithms, beyond which products of both leave the range of float32


class Dispersed(Likelihood):
    """A likelihood whose distribution has a mean or location, and the parameter `parameter`.

    Subclasses implement `distribution` and `estimate`.
    """

    parameter: str
    predictable: bool = False  # whether it may be an output of the network
    copies = 5

    def __init__(self, value: Dispersion, learned: bool, what: str) -> None:
        super().__init__()
        self.estimated: bool = value is None
        self.by_network: bool = self.predictable and isinstance(value, str)
        self.learned: bool = flag(learned, "learned", f"whether the {self.parameter} is trained") or value is None
        if self.by_network:
            if value != "network":
                raise ValueError(f"{self.parameter} must be a positive number, None or 'network'; got {shown(value)}")
            if learned:
                raise ValueError(
                    f"learned is for a {self.parameter} that is one number; got {self.parameter}='network'"
                )
            return
        if isinstance(value, list | tuple) and value:
            start = torch.tensor([variance(each, self.parameter, f"{what}, per column of y,") for each in value])
        else:
            start = torch.tensor(1.0 if value is None else variance(value, self.parameter, what))
        if self.learned:
            self.from_data = (f"{self.parameter}_unconstrained",)
            setattr(self, self.parameter, PyroParam(start, constraints.positive))
        else:
            self.register_buffer(self.parameter, start)

    def forward(self, output: Tensor, targets: Standardize) -> Any:
        if not self.by_network:
            return self.distribution(output, self.number(output), targets).to_event(1)
        mean, log_parameter = halves(output, self.describe())
        return self.distribution(mean, log_parameter.clamp(-_FAR_PARAMETER, _FAR_PARAMETER).exp(), targets).to_event(1)

    def number(self, output: Tensor) -> Tensor:
        """The parameter in the dtype of the outputs: one value, or one per output; a ValueError for any other number."""
        value: Tensor = getattr(self, self.parameter)
        if value.dim() and value.shape != output.shape[-1:]:
            raise ValueError(
                f"{self.parameter} must be a number, or have one value for each of {output.shape[-1]} outputs; got "
                f"{len(value)} values"
            )
        return value.to(output.dtype)

    def distribution(self, output: Tensor, parameter: Tensor, targets: Standardize) -> Any:
        """The distribution of each element of y, from outputs ``[..., N, D]`` and a parameter that broadcasts to them."""
        raise TypeError(f"{type(self).__name__} must implement distribution(output, parameter, targets)")

    def location(self, output: Tensor, targets: Standardize) -> Tensor:
        return targets.inverse(output)

    def estimate(self, y: Tensor) -> Tensor:
        """Initial value of the parameter from the observations of one column, float64."""
        raise TypeError(f"{type(self).__name__} must implement estimate(y)")

    def start(self, y: Tensor) -> None:
        if not self.learned:
            return
        number: Tensor = getattr(self, self.parameter).detach()
        if number.dim() == 0:
            if self.estimated and float(number) == 1.0:  # it still has its value from construction
                value = self.estimates(y)
                if bool(_usable(value).all()):  # it is not for equal y
                    setattr(self, self.parameter, value.to(number))
            elif y.dim() == 2 and y.shape[1] > 1:
                setattr(self, self.parameter, number.expand(y.shape[1]))

    def estimates(self, y: Tensor) -> Tensor:
        """`estimate` of the columns of y ``[N, D]``; a constant column gets the mean of the others.

        If there is one column, or y has another shape, the mean of the estimates.
        """
        columns = y.detach().double().reshape(len(y), -1).unbind(1)
        values = torch.stack([self.estimate(column) for column in columns])
        if y.dim() != 2 or y.shape[1] == 1:
            return values.mean()
        return torch.where(_usable(values), values, values[_usable(values)].mean())

    def outputs(self, targets: int) -> int:
        return 2 * targets if self.by_network else targets

    def describe(self) -> str:
        if self.by_network:
            return f"{type(self).__name__}({self.parameter} from the network)"
        value: Tensor = getattr(self, self.parameter).detach()
        numbers = ", ".join(f"{number:g}" for number in value.flatten()[:_SHOWN].tolist())
        numbers = f"[{numbers}{', ...' if value.numel() > _SHOWN else ''}]" if value.dim() else numbers
        return f"{type(self).__name__}({self.parameter}={numbers}{', learned' if self.learned else ''})"


def _usable(values: Tensor) -> Tensor:
    return (values >= 1e-36) & (values <= 1e36)


def log_mean(output: Tensor, targets: Standardize) -> Tensor:
    """ln m of a positive mean m = s exp(output), where s is the mean of y if it is standardised, and 1 otherwise.

    Outputs are clamped to [-60, 60], so that products of exponentials stay in the range of float32.
    """
    return output.clamp(-FAR, FAR) + torch.where(targets.loc > 0, targets.loc, 1.0).log()


def halves(output: Tensor, what: str) -> tuple[Tensor, Tensor]:
    """The two halves of the columns of outputs; a ValueError for an odd number of them."""
    if output.shape[-1] % 2:
        raise ValueError(f"output must have 2 D columns under a {what}; got shape {list(output.shape)}")
    return output.chunk(2, -1)  # type: ignore[return-value]
