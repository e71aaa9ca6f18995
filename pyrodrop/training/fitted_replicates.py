"""The result of `pyrodrop.fit_replicates`: trained models and guides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pyrodrop.checks import count as whole_number
from pyrodrop.checks import seed as checked_seed
from pyrodrop.failed import Failed
from pyrodrop.files import under
from pyrodrop.parts import Card, number
from pyrodrop.prediction.posterior import Member, Posterior
from pyrodrop.prediction.stored import Stored
from pyrodrop.training.result import Fit, restoring


@dataclass(repr=False)
class Replicates(Posterior, Sequence[Fit]):
    """R independent fits, as a sequence.

    Attributes:
        fits: one per replicate; a failed one has its parameters before the step that failed.
        failed: for every replicate whose loss or gradient stopped being finite, the number of that step, counted from 0, by
            the replicate's number.
        weights: of all fits in predictions, not negative, with the sum 1; None for equal weights of those that did not fail.
    """

    fits: list[Fit]
    failed: dict[int, int] = field(default_factory=dict)
    weights: list[float] | None = None
    kind = "replicates"

    def card(self) -> Card:
        ends = [float(fit.losses[-max(1, len(fit.losses) // 10) :].mean()) for fit in self.fits if len(fit.losses)]
        facts = self.fits[0].card().facts if self.fits else {}
        if ends:
            facts["loss"] = f"{number(min(ends))} to {number(max(ends))} in the last tenth of the steps"
        facts["failed"] = ", ".join(f"number {r} at step {step}" for r, step in self.failed.items())
        return Card(f"{len(self.fits)} replicates, the first of which is", facts)

    def __len__(self) -> int:
        return len(self.fits)

    def __getitem__(self, index: Any) -> Any:
        return self.fits[index]

    def _members(self, count: int, seed: int, name: str) -> list[Member]:
        working = [fit for number, fit in enumerate(self.fits) if number not in self.failed]
        if not working:
            raise ValueError(
                f"a prediction needs at least one replicate that did not fail; got {len(self.fits)} failed ones"
            )
        what = f"the number of draws in all, at least one for each of {len(working)} replicates,"
        draws = whole_number(count, name, what, least=len(working) if self.weights is None else 1)
        chosen, shares = working, [-(-draws // len(working))] * len(working)
        if self.weights is not None:
            weights = torch.tensor(self.weights, dtype=torch.float64)
            wanted = weights / weights.sum() * draws
            rounded = wanted.floor()
            rounded[(wanted - rounded).topk(draws - int(rounded.sum())).indices] += 1  # of the largest remainders
            chosen, shares = self.fits, [int(share) for share in rounded]
        numbered = enumerate((fit, share) for fit, share in zip(chosen, shares, strict=True) if share)
        return [(fit, share, checked_seed(seed) + number) for number, (fit, share) in numbered]

    def stored(self) -> Stored:
        fits = [fit.stored() for fit in self.fits]
        tensors = {f"{r}.{name}": value for r, fit in enumerate(fits) for name, value in fit.tensors.items()}
        about = {
            "fits": [fit.about for fit in fits],
            "failed": {str(r): step for r, step in self.failed.items()},
        }
        return Stored(tensors, about if self.weights is None else {**about, "weights": self.weights})

    @classmethod
    def load(
        cls,
        path: str | Path,
        models: Sequence[Callable[..., Any]] | None = None,
        guides: Sequence[Callable[..., Any]] | None = None,
        *,
        device: str | torch.device = "auto",
        allow: Collection[str] = (),
    ) -> Replicates:
        """Read saved replicates, as `Fit.load` does one. Everything in the file is checked before any of them changes.

        Args:
            path: of the file.
            models, guides: built like the saved ones, one for each replicate, in their order; None for what the file
                describes.
            device, allow: as of `Fit.load`.

        Raises:
            ValueError: the file has another number of replicates, or as `Fit.load`.
            OSError: the file cannot be read; the message names it.
        """
        return restored(Stored.read(path), models, guides, device, allow)


def restored(
    stored: Stored,
    models: Sequence[Callable[..., Any]] | None,
    guides: Sequence[Callable[..., Any]] | None,
    device: str | torch.device = "auto",
    allow: Collection[str] = (),
) -> Replicates:
    """Replicates that were read from a file, put into models and guides once all are checked."""
    stored.check_kind("replicates")
    about, where = stored.record, stored.where
    fits, steps = about.records("fits"), about.record("failed")
    count = len(fits)
    failed = {r: steps.whole(str(r)) for r in range(count) if str(r) in steps.content}
    if len(failed) < len(steps.content):
        raise Failed(f"{where} must have steps of {count} replicates as failed, by their numbers")
    weights = about.numbers("weights", count) if "weights" in about.content else None
    if weights is not None and (min(weights) < 0 or abs(sum(weights) - 1) > 1e-6):
        raise Failed(f"{where} must have weights with the sum 1 that are not negative")
    pairs = [[None] * count if parts is None else list(parts) for parts in (models, guides)]
    for name, parts in zip(("models", "guides"), pairs, strict=True):
        if len(parts) != count:
            raise ValueError(
                f"{where} has {count} replicates, each of which needs a model and a guide; got {len(parts)} {name}"
            )
    each = [
        Stored(under(f"{r}.", stored.tensors), fit.content, f"{where}, replicate {r},") for r, fit in enumerate(fits)
    ]
    put = [restoring(Fit, one, model, guide, device, allow) for one, model, guide in zip(each, *pairs, strict=True)]
    return Replicates([load() for load in put], failed, weights)
