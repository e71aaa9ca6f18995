"""Early stopping by the score on held-out rows."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor, nn

from pyrodrop.changes import tensors_of
from pyrodrop.checks import Count, checked, shown
from pyrodrop.data import Data, Dataset
from pyrodrop.models.network import NetworkModel
from pyrodrop.training.result import Fit


class EarlyStopping:
    """Ends a training when the score on held-out rows no longer improves, and restores the parameters with the best score.

    Pass it to `pyrodrop.fit` as ``after_epoch``. The score is the mean log density of y under the predictive distribution,
    with the same seed of the draws every time. The best parameters are restored even if the training makes all its steps.
    Schedules of the learning rate and of the weight of the KL divergence do not know when the training will end, so let them
    reach their end before you expect to stop.

    A posterior that was chosen by these rows predicts them better than new ones: evaluate it on other rows.

    Args:
        validation: rows that are not trained on: a `Dataset` or a pair (x, y).
        patience: number of scores in a row without improvement after which training ends.
        every: number of steps between scores; an epoch if None.
        num_samples: draws from the posterior for each score.

    Attributes:
        scores: the (number of steps, score) of every evaluation, with the score in nats per row.
        best: the (number of steps, score) with the largest score, or None before the first.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind or out of range; before the first step: the model is not one
            of `pyrodrop.models` or cannot be called on the rows, the guide is no module, or `fit` has a `checkpoint`.

    Example:
        >>> import torch, pyrodrop
        >>> from pyrodrop import guides, likelihoods, models, priors
        >>> x = torch.linspace(-1, 1, 40)[:, None]
        >>> model = models.MLP([1, 8, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(10.0))
        >>> stopping = pyrodrop.EarlyStopping((x[1::2], x[1::2] ** 2), patience=3, every=5)
        >>> run = pyrodrop.fit(
        ...     model, guides.Point(model), (x[::2], x[::2] ** 2), steps=1000, lr=0.1, after_epoch=stopping
        ... )
        >>> len(run.losses) < 1000, len(run.losses) - stopping.best[0]
        (True, 15)
    """

    @checked
    def __init__(
        self,
        validation: Data,
        *,
        patience: Annotated[int, Count("how many scores in a row may be no better than the best one")] = 10,
        every: Annotated[int, Count("the number of steps from one score to the next")] | None = None,
        num_samples: Annotated[int, Count("the number of draws for each score")] = 20,
    ) -> None:
        self.validation: Dataset = Dataset.of(validation, "validation", missing=True)
        self.patience: int = patience
        self.every: int | None = every
        self.num_samples: int = num_samples
        self._forget()

    def _forget(self) -> None:
        self.scores: list[tuple[int, float]] = []
        self.best: tuple[int, float] | None = None
        self._best_tensors: list[Tensor] = []

    def begin(self, fit: Fit, checkpoint: object) -> None:
        """Reset before a training begins; a TypeError or ValueError if this training cannot be stopped early."""
        if checkpoint is not None:
            raise ValueError(
                "checkpoint must be None with an EarlyStopping, which has the best parameters in memory, so that a run that "
                "continues from a file would lack them"
            )
        if not isinstance(fit.model, NetworkModel):
            raise TypeError(f"an EarlyStopping is for a model of pyrodrop.models; got {shown(fit.model)}")
        if not isinstance(fit.guide, nn.Module):
            raise TypeError(f"an EarlyStopping puts back the parameters of modules; got the guide {shown(fit.guide)}")
        self._score(fit)
        self._forget()

    def __call__(self, fit: Fit, epoch: float) -> bool:
        """Whether the training ends now."""
        done, score = len(fit.losses), self._score(fit)
        self.scores.append((done, score))
        if self.best is None or score > self.best[1]:
            tensors = tensors_of(fit.model, fit.guide).values()
            self.best, self._best_tensors = (done, score), [value.detach().clone() for value in tensors]
        return sum(step > self.best[0] for step, _ in self.scores) >= self.patience

    def restore(self, fit: Fit) -> None:
        """Put the best parameters and buffers back, after the training."""
        with torch.no_grad():
            for tensor, best in zip(tensors_of(fit.model, fit.guide).values(), self._best_tensors, strict=True):
                tensor.copy_(best)
        self._best_tensors = []

    def _score(self, fit: Fit) -> float:
        predicted = fit.predict(self.validation.x, self.num_samples, seed=0)
        score = float(predicted.log_density(self.validation.y).mean())
        return -math.inf if math.isnan(score) else score
