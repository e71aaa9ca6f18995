"""LeNet-300-100, the fully connected benchmark network of the compression literature.

    784 - 300 - 100 - 10,   266,200 weights at ``layers.0.weight``, ``layers.1.weight``, ``layers.2.weight``

LeCun, Bottou, Bengio & Haffner (1998), Gradient-based Learning Applied to Document Recognition,
https://doi.org/10.1109/5.726791. Biases are not counted as weights, as in Han et al. (2015) and Molchanov et al. (2017).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from pyrodrop.likelihoods import Likelihood
from pyrodrop.models.mlp import MLP
from pyrodrop.networks.assignment import PriorSetting


class LeNet300100(MLP):
    """An `MLP` with two hidden layers for flattened digits, x ``[N, 784]``, f ``[N, 10]``; arguments are those of `MLP`."""

    def __init__(
        self,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        *,
        prior: PriorSetting,
        likelihood: Likelihood,
        bias_prior: PriorSetting | None = None,
        seed: int | None = 0,
    ) -> None:
        super().__init__(
            [784, 300, 100, 10], activation, prior=prior, likelihood=likelihood, bias_prior=bias_prior, seed=seed
        )  # fmt: skip
