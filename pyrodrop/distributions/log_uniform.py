"""The log-uniform prior: the logarithm of the absolute value of a weight is uniform, p(w) = 1 / |w|. It is improper.

Improper means that the density does not integrate to a finite number: the posterior may not exist, and the ELBO is not a
bound on the evidence.
"""

from __future__ import annotations

import torch
from pyro.distributions import TorchDistribution
from pyro.distributions.util import broadcast_shape
from torch import Tensor
from torch.distributions import constraints

from pyrodrop.distributions.weight import Size


class LogUniform(TorchDistribution):
    """The improper prior ``p(log |w|) = const``, elementwise.

    References:
        Kingma, Salimans & Welling (2015), https://arxiv.org/abs/1506.02557, section 3.
        Hron, Matthews & Ghahramani (2018), https://arxiv.org/abs/1807.01969.

    Args:
        shape: batch shape; apply ``to_event`` for the distribution of one weight tensor.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012

    def __init__(self, shape: Size = ()) -> None:
        super().__init__(torch.Size(shape))

    support = constraints.real

    def expand(self, batch_shape: Size, _instance: None = None) -> LogUniform:
        return LogUniform(batch_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        return -value.abs().log().expand(broadcast_shape(value.shape, self.batch_shape))

    def sample(self, sample_shape: Size = ()) -> Tensor:
        raise ValueError(
            "the log-uniform prior is improper and cannot be sampled; use a proper prior, such as priors.Gaussian"
        )
