"""The result of `pyrodrop.fit_replicates`: trained models and guides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pyrodrop.arguments import count as whole_number
from pyrodrop.arguments import seed as checked_seed
from pyrodrop.cards import Card, carded, number
from pyrodrop.constraints import Seed, checked
from pyrodrop.distributions.rebuilt import rebuilt
from pyrodrop.failed import Failed
from pyrodrop.files import under
from pyrodrop.prediction.module import Draws
from pyrodrop.prediction.predict import Keep
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.stored import Stored
from pyrodrop.training.result import Fit, restoring, stored_fit


@carded
@dataclass(repr=False)
class Replicates(Sequence[Fit]):
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

    def card(self) -> Card:
        """What is printed of the replicates."""
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

    def predict(self, x: Any = None, num_samples: int = 1000, *, seed: int = 0) -> Any:
        """Predict with the mixture of all replicates that did not fail, as an ensemble.

        Args:
            x: points, ``[N, ...]``; of a Pyro program, the arguments as of `Fit.predict`, whose draws are then joined.
            num_samples: number of draws in all. Each replicate contributes an equal share, rounded up, of at least one draw;
                with `weights`, its weight times the number of draws, rounded up or down.
            seed: of the draws.

        Returns:
            A `Prediction`, or draws by site of a program.

        Raises:
            TypeError: a number is no whole number, or the likelihood has no mixture of its distributions.
            ValueError: fewer draws than replicates, all replicates failed, or as `Fit.predict`.
        """
        members, shares = self._shares(num_samples, "num_samples")
        seed = checked_seed(seed)
        each: list[Any] = [
            fit.predict(x, share, seed=seed + number)
            for number, (fit, share) in enumerate(zip(members, shares, strict=True))
        ]
        if isinstance(each[0], dict):
            return {name: torch.cat([draws[name] for draws in each]) for name in each[0]}
        f, distribution = torch.cat([prediction.f for prediction in each]), _joined([p.distribution for p in each])
        return Prediction(f, distribution, seed, missing=each[0].missing)

    @checked
    def module(self, draws: int = 100, *, keep: Keep = "moments", seed: Seed = 0, x: Any = None) -> Draws:
        """The mixture of all replicates that did not fail as one `torch.nn.Module`; see `Fit.module`.

        Args:
            draws, seed: as `num_samples` and `seed` of `predict`.
            keep, x: as of `Fit.module`.

        Raises:
            TypeError, ValueError: as `Fit.module` and `predict`.
        """
        members, shares = self._shares(draws, "draws")
        numbered = enumerate(zip(members, shares, strict=True))
        return Draws([fit._functions(share, seed + number, x) for number, (fit, share) in numbered], keep)

    def _shares(self, num_samples: int, name: str) -> tuple[list[Fit], list[int]]:
        """The replicates that predict, and the number of draws of each; a ValueError if there are too few of either."""
        members = [fit for number, fit in enumerate(self.fits) if number not in self.failed]
        if not members:
            raise ValueError(
                f"a prediction needs at least one replicate that did not fail; got {len(self.fits)} failed ones"
            )
        what = f"the number of draws in all, at least one for each of {len(members)} replicates,"
        draws = whole_number(num_samples, name, what, least=len(members) if self.weights is None else 1)
        if self.weights is None:
            return members, [-(-draws // len(members))] * len(members)
        weights = torch.tensor(self.weights, dtype=torch.float64)
        wanted = weights / weights.sum() * draws
        shares = wanted.floor()
        most = (wanted - shares).topk(draws - int(shares.sum())).indices  # of the largest remainders
        shares[most] += 1
        chosen = [(fit, int(share)) for fit, share in zip(self.fits, shares, strict=True) if share]
        return [fit for fit, _ in chosen], [share for _, share in chosen]

    def save(self, path: str | Path) -> Path:
        """Write all fits to one safetensors file, as `Fit.save` does one.

        Raises:
            TypeError: as `Fit.save`.
            OSError: the file cannot be written; the message names it.
        """
        return stored_replicates(self).write(path, kind="replicates")

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


def stored_replicates(replicates: Replicates) -> Stored:
    """The content of a file of replicates: that of every fit, whose number precedes names of tensors."""
    fits = [stored_fit(fit) for fit in replicates.fits]
    tensors = {f"{r}.{name}": value for r, fit in enumerate(fits) for name, value in fit.tensors.items()}
    about = {
        "fits": [fit.about for fit in fits],
        "failed": {str(r): step for r, step in replicates.failed.items()},
    }
    return Stored(tensors, about if replicates.weights is None else {**about, "weights": replicates.weights})


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


def _joined(distributions: Sequence[Any]) -> Any:
    """Distributions of one class, concatenated along their first axis."""
    try:
        return rebuilt(lambda *values: torch.cat(values), *distributions)
    except TypeError as error:
        raise TypeError(
            "replicates predict as a mixture of their distributions of y, which is made of the parameters of each: predict "
            f"with each fit by itself. {error}"
        ) from error
