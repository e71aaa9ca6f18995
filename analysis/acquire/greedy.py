"""BatchBALD: rows whose labels are together most informative about the function.

    A_k = A_(k-1) + argmax_n I[y_n; f | y_A],   A = A_(k-1)
    I[y_A; f] = sum over the picks of I[y_n; f | y_A]

Kirsch, van Amersfoort & Gal (2019), https://arxiv.org/abs/1906.08158. I[y_A; f] is submodular, so that the greedy batch has
at least 1 - 1/e of the information of the best one. The conditional information is computed directly, not as a difference
between entropies of many labels:

    classes   I[y_n; f | y_A] = sum_c q_c ( H[ sum_s r_cs p(y_n | f_s) ] - sum_s r_cs H[y_n | f_s] )
              c = labels of A,   q_c = mean_s p(c | f_s),   r_cs = p(c | f_s) / (S q_c)

    real y    I[y_n; f | y_A] = 1/2 ln Var[y_n | y_A] - mean_s ln v_ns          v_ns: sd of the noise
              Var[y_n | y_A] = K_nn - K_nA K_AA^-1 K_An,   K = Cov_s[f_s] + diag(mean_s v_ns^2)

The sum over c has C^|A| terms. If there are few, all are enumerated. Otherwise the sum is estimated from samples of c, each
given one draw, where all draws are used equally often (systematic sampling). For a real y the entropy is that of a Gaussian
with the moments of the draws. This is at least the entropy of their mixture, so the information is an upper bound.
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from pyrodrop.analysis.acquire.draws import Classes, Gaussians, draws_of
from pyrodrop.checks import Count, Seed, checked, count
from pyrodrop.prediction.prediction import Prediction

_LEAST = 1e-12  # nats; less may be due to rounding


class Batch(NamedTuple):
    """Rows in the order in which they were picked.

    Attributes:
        rows: row numbers, ``[size]``.
        information: element k - 1 is I[y_A; f] for the labels of the first k rows, in nats, ``[size]`` in float64.
    """

    rows: Tensor
    information: Tensor


@checked
def batch(
    prediction: Prediction,
    size: int,
    *,
    configurations: Annotated[int, Count("the number of label configurations", most=2**20)] = 1000,
    seed: Seed = 0,
) -> Batch:
    """Rows whose labels are together most informative about the function: BatchBALD, by greedy selection.

    Unlike the best rows by `bald`, the batch does not contain redundant rows if another row is more informative.

    For labels the information is exact given the draws, as long as the rows selected so far have at most `configurations`
    labellings, C^k for k rows and C classes. Beyond that it is estimated from `configurations` sampled labellings. Up to the
    error of the estimate it is at most ln S for S draws: if `Batch.information` is close to this, use more draws.

    For a real y with Gaussian noise it is the information of a joint Gaussian with the covariance of y over the draws
    (moment-matched): a log-determinant, without sampling. It is not bounded by ln S, and is at least the information of the
    mixture, which `bald` computes. The first pick may therefore differ from the best row by `bald`.

    Kirsch, van Amersfoort & Gal (2019), BatchBALD, https://arxiv.org/abs/1906.08158.

    Args:
        prediction: prediction at the N rows of the pool, with joint draws.
        size: number of rows to pick, from 1 to N.
        configurations: largest number of labellings to enumerate, and the number to sample if there are more. The time of a
            pick is proportional to it.
        seed: seed of the sampled labellings.

    Returns:
        Row numbers and the joint information, see `Batch`.

    Raises:
        TypeError: `prediction` is no `Prediction`, or not of one label or one real y with Gaussian noise; an argument is of
            the wrong kind.
        ValueError: the prediction has one draw only, draws that are independent at every point (``joint=False``), or
            parameters that are not finite; no further label is informative before `size` rows are picked; noise is less than
            1e-6 of the standard deviation of a real y; a number is out of range.

    Example:
        >>> import torch, pyro.distributions as dist, pyrodrop
        >>> from pyrodrop.analysis import acquire
        >>> same, other = [[2.0, 2.0, -2.0, -2.0]] * 2, [[1.5, -1.5, 1.5, -1.5]]  # logits of 4 draws
        >>> f = torch.tensor(same + other).T[..., None]
        >>> prediction = pyrodrop.Prediction(f, dist.Bernoulli(logits=f).to_event(1))
        >>> acquire.bald(prediction)
        tensor([0.3278, 0.3278, 0.2181], dtype=torch.float64)
        >>> acquire.batch(prediction, 2).rows  # row 1 is as row 0
        tensor([0, 2])
    """
    draws = draws_of(prediction, "batch", joint=True)
    size = count(size, "size", "the number of rows to pick", most=prediction.f.shape[1])
    rows: list[int] = []
    information: list[float] = []
    for _ in range(size):
        if isinstance(draws, Classes):
            gains = _class_gains(draws, *_labellings(draws.log_probabilities(rows), configurations, seed))
        else:
            gains = _gaussian_gains(draws, rows)
        gains[rows] = -math.inf
        best = int(gains.argmax())
        if float(gains[best]) < _LEAST:
            raise ValueError(
                f"batch needs a prediction whose draws differ in what its labels tell, to pick {size} rows; got "
                f"{len(prediction.f)} draws between which no other label tells after {len(rows)} rows: predict with more "
                "draws, or pick fewer rows"
            )
        rows.append(best)
        information.append(float(gains[best]))
    device = prediction.f.device
    return Batch(
        torch.tensor(rows, device=device), torch.tensor(information, dtype=torch.float64, device=device).cumsum(0)
    )


def _labellings(log_p: Tensor, most: int, seed: int) -> tuple[Tensor, Tensor]:
    """r ``[K, S]`` and q ``[K]`` for ln p(y | f_s) of k rows, ``[S, k, C]``: K = C^k labellings, or K = `most` samples."""
    draws, rows, classes = log_p.shape
    if classes**rows <= most:
        joint = log_p.new_zeros(1, draws)
        for row in range(rows):
            joint = (joint[:, None] + log_p[:, row].T).flatten(0, 1)
        return joint.softmax(1), (joint.logsumexp(1) - math.log(draws)).exp()
    uniform = torch.rand(rows + 1, most, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    uniform = uniform.to(log_p.device)  # the same on every device, and in its first rows for any number of rows
    draw = ((uniform[0, 0] + torch.arange(most, device=log_p.device)) * (draws / most)).long().clamp_max(draws - 1)
    joint = log_p.new_zeros(most, draws)
    for row in range(rows):
        cdf = log_p[:, row].exp().cumsum(-1)[draw, :-1]
        label = (cdf <= uniform[row + 1, :, None]).sum(-1)
        joint += log_p[:, row].T[label]
    return joint.softmax(1), log_p.new_full((most,), 1 / most)


def _class_gains(draws: Classes, chosen: Tensor, mass: Tensor) -> Tensor:
    """I[y_n; f | y_A] of all points, ``[N]``, for r ``[K, S]`` and q ``[K]``."""
    gains = mass.new_empty(draws.logits.shape[1])
    weight = mass @ chosen  # of every draw, 1 / S up to sampling
    for rows, p in draws.blocks(len(mass) * draws.logits.shape[2]):
        mixed = torch.special.entr(chosen @ p.flatten(1)).reshape(len(mass), -1, p.shape[2]).sum(-1)
        gains[rows] = mass @ mixed - weight @ torch.special.entr(p).sum(-1)
    return gains.clamp_min(0)  # below 0 only by rounding


def _gaussian_gains(draws: Gaussians, rows: list[int]) -> Tensor:
    """I[y_n; f | y_A] of all points, ``[N]``, moment-matched."""
    centred, noise = draws.moments()
    its = centred[:, rows]
    root = torch.linalg.cholesky(its.T @ its + noise[rows].diag())
    known = torch.linalg.solve_triangular(root, its.T @ centred, upper=False).square().sum(0)
    left = (centred.square().sum(0) - known).clamp_min(0)  # below 0 only by rounding
    return 0.5 * (left + noise).log() - draws.scale.log().mean(0)
