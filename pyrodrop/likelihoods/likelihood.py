"""Base class of the likelihoods."""

from __future__ import annotations

from typing import Any

from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from pyrodrop.likelihoods.shapes import aligned, check_support, elements, per_row
from pyrodrop.modules import LocalModule
from pyrodrop.parts import Part, made
from pyrodrop.scaling import Standardize


class Likelihood(Part, LocalModule):
    """The distribution of an observation given the output of the network.

    A network works in standardised units, and `targets` converts them to the units of y. All arguments and results except
    `output` are in the units of y. A custom likelihood implements `forward`. It also implements `location` if f is not the
    output converted to the units of y.

    Raises:
        TypeError: an argument that the likelihood does not have, such as those of PyTorch's losses.
    """

    def __init__(self) -> None:
        super().__init__()

    def forward(self, output: Tensor, targets: Standardize) -> TorchDistribution:
        """The distribution of y given outputs ``[..., N, *outputs]``, where ``...`` indexes samples of the weights.

        Args:
            output: output of the network, with at least two dimensions.
            targets: the standardisation of y.

        Returns:
            A distribution with batch shape ``[..., N]``. Additional batch dimensions are interpreted as parts of one example
            (see `likelihoods.per_row`).
        """
        raise TypeError(f"{type(self).__name__} must implement forward(output, targets), which every likelihood needs")

    def location(self, output: Tensor, targets: Standardize) -> Tensor:
        """The function f that predictions report, in the units of y if y has units: ``[..., N, ...]``."""
        return targets.inverse(output)

    def start(self, y: Tensor) -> None:
        """Initialise learned parameters from the observations of the training data, before the first step."""

    def anew(self) -> Likelihood:
        """This likelihood as it was made, before training; itself if it has no parameters, or is of a class of yours."""
        trained = next(self.parameters(), None)
        try:
            return self if trained is None else made(self.made_with()).to(trained)  # type: ignore[no-any-return]
        except NotImplementedError:
            return self

    def units(self, targets: Standardize) -> Standardize:
        """The standardisation that `forward` and `location` get, computed from the standardisation of the columns of y."""
        return targets

    copies = 3  # peak memory of `forward` and `location` in multiples of the outputs, including them

    def as_target(self, y: Tensor) -> Tensor:
        """Convert y to the dtype that `log_prob` needs, without changing its shape.

        Raises:
            ValueError: y has an unsuitable dtype.
        """
        return y

    def outputs(self, targets: int) -> int:
        """Number of outputs that a network needs for a y with `targets` columns."""
        return targets

    def check(self, y: Tensor, output: Tensor, targets: Standardize) -> None:
        """Check before training that y has a shape and values that are possible under this likelihood.

        Args:
            y: all observations, ``[N, ...]``.
            output: output of the network for the first rows, ``[n, *outputs]`` with n >= 1.
            targets: the standardisation of y.

        Raises:
            TypeError: y are bools for a likelihood of real numbers.
            ValueError: the shape or dtype of y is wrong, or a value is outside the support.
        """
        y = self.as_target(y)
        if y.is_floating_point() and bool(y.isinf().any()):
            raise ValueError(
                f"y must be finite under {self.describe()}; got {int(y.isinf().sum())} infinite of {y.numel()} values"
            )
        if y.is_floating_point() and y.dim() == 2 and output.dim() == 2 and output.shape[1] != self.outputs(y.shape[1]):
            raise ValueError(
                f"y has {y.shape[1]} columns, for which {self.describe()} needs a network with "
                f"{self.outputs(y.shape[1])} outputs; this one has {output.shape[1]}"
            )
        distribution = per_row(self(output, targets), 1)
        y = aligned(y, distribution, len(y))
        if constraints.is_dependent(type(elements(distribution)).support):
            y = y[: len(output)]  # the support depends on the outputs, which are known for these rows only
        check_support(y, distribution, self.describe())

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        """Load parameters with one value per column of y, which are scalars before `start`."""
        for name in self.from_data:
            saved, number = state_dict.get(f"{prefix}{name}"), getattr(self, name)
            if saved is not None and number.dim() == 0 and saved.dim() == 1:
                number.data = number.data.expand(saved.shape).clone()
        super()._load_from_state_dict(state_dict, prefix, *rest)
