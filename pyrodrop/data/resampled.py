"""Data sets for the members of an ensemble: rows drawn with replacement, or noise added to y.

    bootstrapped   (x_i, y_i)_i=1..N,   i_1, ..., i_N ~ Uniform(1 ... N)
    perturbed      (x_i, y_i + noise e_i),   e_i ~ N(0, 1)

Efron (1979), Bootstrap Methods, https://doi.org/10.1214/aos/1176344552; Osband, Aslanides & Cassirer (2018),
arXiv:1806.03335, section 3. Every member keeps the number of rows and the standardisations of the data, so that
`pyrodrop.fit_replicates` trains all of them together.

For linear regression under a Gaussian prior, `perturbed` with the standard deviation of the noise and `priors.Anchored` give
draws from the posterior. The bootstrap is not exact: its spread comes from the residuals and is near 0 where the network
passes through all rows, regardless of the noise of the likelihood.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

import torch

from pyrodrop.checks import Count, Real, Seed, checked
from pyrodrop.data.dataset import Data, Dataset


@checked
def bootstrapped(
    data: Data, count: Annotated[int, Count("the number of data sets")], *, seed: Seed = 0
) -> list[Dataset]:
    """Data sets of as many rows as the data, drawn with replacement.

    Args:
        data: a `Dataset` or a pair (x, y); y may have missing values.
        count: number of data sets.
        seed: seed of the first data set. Data set r uses ``seed + r``, so a larger `count` only appends data sets.

    Raises:
        TypeError, ValueError: as `Dataset`, or `count` or `seed` is no whole number in range.

    Example:
        >>> import torch
        >>> from pyrodrop import data
        >>> sets = data.bootstrapped((torch.arange(4.0), torch.arange(4.0)), 2)
        >>> [member.x.flatten().tolist() == member.y.tolist() for member in sets], len(sets[0])
        ([True, True], 4)
    """
    whole = Dataset.of(data, missing=True)
    rows = [torch.randint(len(whole), (len(whole),), generator=_generator(seed + r)) for r in range(count)]
    return [whole.rows(chosen) for chosen in rows]


@checked
def perturbed(
    data: Data,
    count: Annotated[int, Count("the number of data sets")],
    *,
    noise: Annotated[float, Real("the standard deviation of the noise, in the units of y", above=0)],
    seed: Seed = 0,
) -> list[Dataset]:
    """Data sets with Gaussian noise added to y.

    Args:
        data: a `Dataset` or a pair (x, y), whose y are real numbers; missing values stay missing.
        count: number of data sets.
        noise: standard deviation of the noise, in the units of y. Use that of the observations, ``precision ** -0.5`` of a
            `likelihoods.Gaussian`.
        seed: seed of the first data set. Data set r uses ``seed + r``.

    Raises:
        TypeError: y has whole numbers, such as class labels or counts; or an argument is of the wrong kind.
        ValueError: y has open ends, or an argument is out of range.

    Example:
        >>> import torch
        >>> from pyrodrop import data
        >>> sets = data.perturbed((torch.arange(4.0), torch.zeros(4)), 2, noise=0.1)
        >>> bool((sets[0].y != sets[1].y).all())
        True
    """
    whole = Dataset.of(data, missing=True)
    if not whole.y.is_floating_point():
        raise TypeError(
            f"data must have a y of real numbers, to which noise is added; got {whole.y.dtype}: use bootstrapped"
        )
    if bool(whole.y.isinf().any()):
        raise ValueError(
            "data must have a y of observations, to which noise is added; got inf, open ends of intervals, in a Dataset, "
            "tuple or array"
        )
    sets = []
    for r in range(count):
        draws = torch.randn(whole.y.shape, generator=_generator(seed + r), dtype=torch.float64)
        sets.append(whole.with_values(y=whole.y + noise * draws.to(whole.y)))
    return sets


def _generator(seed: int) -> torch.Generator:
    """A generator whose random numbers differ from those of anchors and initial weights with the same seed."""
    digest = hashlib.blake2b(f"resampled {seed}".encode(), digest_size=7).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big"))
