"""One weight in closed form: how the spread of a posterior changes with the number of observations.

    y_n ~ N(w, 1),   n = 1 ... N,   w ~ N(0, 1)           observations with mean 1

    exact                      sd = 1 / sqrt(N + 1)
    dropout, w = m z           sd = m sqrt(r (1 - r)),    z ~ Bernoulli(1 - r)
      weight decay             m = N / (N + 1 - r)        v = (1 - r) m minimises E[sum_n (y_n - w)^2] / 2 + v^2 / 2
      ELBO                     m = N / (N + 1)            the penalty is the KL divergence, (1 - r) m^2 / 2
      ELBO, learned rate       r = 1 / (1 + exp(N^2 / (2 (N + 1))))
    noise, w ~ N(m, a m^2)     sd = sqrt(a) m,            m = [N + sqrt(N^2 + 4 c)] / (2 c),   c = (N + 1) (1 + a)

The weight decay is that of a plain network: v is the weight behind `torch.nn.Dropout`, which divides by 1 - r, and v^2 / 2
is minus the log density of its prior. Either way sd / E[w] = sqrt(r / (1 - r)), which depends on the rate alone: the spread
tends to a constant while the exact one falls as 1 / sqrt(N). The last line is for a fixed a, under the ELBO, whose entropy
term ln m keeps m from 0; a Gaussian with a learned a is the exact posterior here.
"""

from __future__ import annotations

import math
from typing import Literal


def exact_sd(n: int) -> float:
    """Standard deviation of the posterior after n observations."""
    return 1 / math.sqrt(n + 1)


def dropout(n: int, rate: float, penalty: Literal["decay", "elbo"]) -> tuple[float, float]:
    """Mean and standard deviation of the weight under dropout with a fixed rate in [0, 1)."""
    m = n / (n + 1 - rate) if penalty == "decay" else n / (n + 1)
    return (1 - rate) * m, m * math.sqrt(rate * (1 - rate))


def learned_rate(n: int) -> float:
    """The rate that maximises the ELBO, together with m."""
    return 1 / (1 + math.exp(min(n**2 / (2 * (n + 1)), 700.0)))


def gaussian_noise(n: int, alpha: float) -> tuple[float, float]:
    """Mean and standard deviation of the weight under Gaussian noise with a fixed relative variance alpha."""
    c = (n + 1) * (1 + alpha)
    m = (n + math.sqrt(n**2 + 4 * c)) / (2 * c)
    return m, math.sqrt(alpha) * m
