"""Weights g(theta, noise): the user's Reg(theta) replaces the KL divergence, or the user's density serves to estimate it.

L = -beta sum_n ln p(y_n | x_n, g(theta, eps)) + Reg(theta)            Psaros, Dropout as variational inference, eq. 6
"""

from __future__ import annotations

from torch import Tensor
from torch.distributions import Distribution

from pyrodrop.distributions import PooledNormal, Pushforward
from pyrodrop.divergences.table import EXACT, Convention, pair, refuse

REGULARIZER = Convention("up_to_constant", "the user's regulariser replaces the KL divergence")


def _tag(q: Pushforward, p: Distribution) -> Convention:
    return EXACT if q.regularizer is None else REGULARIZER


@pair(Pushforward, Distribution, _tag)
def _regularizer(q: Pushforward, p: Distribution) -> Tensor:
    if q.regularizer is None:
        raise NotImplementedError("without a regularizer, the KL divergence is estimated by Monte Carlo")
    return q.regularizer(q.loc)


def _neither(q: Pushforward, p: Distribution) -> str | None:
    if q.regularizer is not None or (q.density is not None and not isinstance(p, PooledNormal)):
        return None
    return (
        "a weight g(loc, noise) needs a regularizer (Reg of its parameters) or a density (for a Monte Carlo estimate)"
    )


refuse(Pushforward, Distribution, _neither)
