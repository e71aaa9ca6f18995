"""Weights g(theta, noise): the user's Reg(theta) replaces the KL divergence.

L = -beta sum_n ln p(y_n | x_n, g(theta, eps)) + Reg(theta)            Psaros, Dropout as variational inference, eq. 6
"""

from __future__ import annotations

from torch import Tensor
from torch.distributions import Distribution

from pyrodrop.distributions import PooledNormal, Pushforward
from pyrodrop.divergences.table import Convention, pair

REGULARIZER = Convention("up_to_constant", "the user's regulariser replaces the KL divergence")


@pair(Pushforward, PooledNormal, REGULARIZER)
@pair(Pushforward, Distribution, REGULARIZER)
def _regularizer(q: Pushforward, p: Distribution) -> Tensor:
    return q.regularizer(q.loc)
