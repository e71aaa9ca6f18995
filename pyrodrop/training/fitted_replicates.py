"""The result of `pyrodrop.fit_replicates`: trained models and guides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pyrodrop.arguments import count as whole_number
from pyrodrop.arguments import seed as checked_seed
from pyrodrop.distributions.rebuilt import rebuilt
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.training.fitted import Fit


@dataclass
class Replicates(Sequence[Fit]):
    """R independent fits, as a sequence.

    Attributes:
        fits: one per replicate; a failed one has its parameters before the step that failed.
        failed: the number of that step for every replicate whose loss or gradient stopped being finite, by the replicate's
            number.
    """

    fits: list[Fit]
    failed: dict[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.fits)

    def __getitem__(self, index: Any) -> Any:
        return self.fits[index]

    def __iter__(self) -> Iterator[Fit]:
        return iter(self.fits)

    def predict(self, x: Tensor, num_samples: int = 1000, *, seed: int = 0) -> Prediction:
        """Predict with the equal mixture of all replicates that did not fail, as an ensemble.

        Args:
            x: points, ``[N, ...]``.
            num_samples: number of draws in all, at least one per replicate; each contributes an equal share, rounded up.
            seed: of the draws.

        Raises:
            TypeError: a number is no whole number, or the likelihood has no mixture of its distributions.
            ValueError: fewer draws than replicates, all replicates failed, or as `Fit.predict`.
        """
        members = [fit for number, fit in enumerate(self.fits) if number not in self.failed]
        if not members:
            raise ValueError(
                f"a prediction needs at least one replicate that did not fail; got {len(self.fits)} failed ones"
            )
        what = f"the number of draws in all, at least one for each of {len(members)} replicates,"
        num_samples, seed = whole_number(num_samples, "num_samples", what, least=len(members)), checked_seed(seed)
        share = -(-num_samples // len(members))
        parts = [fit.predict(x, share, seed=seed + number) for number, fit in enumerate(members)]
        law = _joined([part.law for part in parts])
        return Prediction(f=torch.cat([part.f for part in parts]), law=law, seed=seed)


def _joined(laws: Sequence[Any]) -> Any:
    """Distributions of one class, concatenated along their first axis."""
    try:
        return rebuilt(lambda *values: torch.cat(values), *laws)
    except TypeError as error:
        raise TypeError(
            "replicates predict as a mixture of their distributions of y, which is made of the parameters of each: predict "
            f"with each fit by itself. {error}"
        ) from error
