"""The worth of a fit: the log density of its training data, and those of predictors that need no training.

    fit       mean_n ln 1/S sum_s p(y_n | x_n, W_s),   W_s ~ q           S = 16, at most 1000 rows
    beside    a constant, ridge regression, a Gaussian process, and a point estimate of the network: the means of the
              weights, or their initial values, with a last layer that is refitted in closed form

All of these but the constant predict each row from the other rows (`pyrodrop.training.left_out`), while the fit has seen it.
So a fit below them has not learned what is in its data, or is less certain than the data allow.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from pyrodrop.cards import Described
from pyrodrop.changes import evaluating
from pyrodrop.data import Dataset
from pyrodrop.data.loader import Loader
from pyrodrop.guides.ensemble import members_of
from pyrodrop.inputs import mapped, parts
from pyrodrop.likelihoods import Categorical, Gaussian, HeteroscedasticGaussian, StudentT
from pyrodrop.models.network import NetworkModel, mixes_examples
from pyrodrop.networks.last_map import LastMap
from pyrodrop.prediction.predict import draw_functions
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.protocols import HasPosterior
from pyrodrop.training.left_out import by_features, by_process, constant, has_one_value
from pyrodrop.training.result_data import Trained

_log = logging.getLogger("pyrodrop")

_DRAWS, _MOST, _FEWEST = 16, 1000, 20  # rows
_SHARE = 500  # rows of training steps for each that is predicted, which is about a hundredth of the work
_CHEAP = 3e7  # rows times weights that are predicted in any case, a few hundredths of a second
_FEW, _WIDE, _CLASSES = 200, 100, 20  # rows where a matrix of all of them is needed, columns, classes
_REAL = (Gaussian, HeteroscedasticGaussian, StudentT)


@dataclass(frozen=True, repr=False)
class Worth(Described):
    """Mean log densities of rows of the training data, in nats per row; None where there is no closed form.

    Attributes:
        fit: of the predictive distribution of the fit.
        constant: of a constant, with the noise or the frequencies of classes of the largest likelihood.
        ridge, gp: of ridge regression and of a Gaussian process, which predict every row from the others; of tables with
            real y or class labels.
        point: of the network at the guide's means, or at its initial weights, with a last layer that is refitted to the
            other rows and noise of the largest likelihood.
        values: number of values of y in a row.
    """

    fit: float
    constant: float | None = None
    ridge: float | None = None
    gp: float | None = None
    point: float | None = None
    values: int = 1

    def describe(self) -> str:
        beside = {"constant": self.constant, "ridge": self.ridge, "GP": self.gp, "point": self.point}
        words = ", ".join(f"{name} {value:.2f}" for name, value in beside.items() if value is not None)
        return f"{self.fit:.2f} ({words})" if words else f"{self.fit:.2f}"


def worth_of(fit: Trained) -> Worth | None:
    """The worth of a fit on rows of its training data, or of a minibatch of a loader.

    None for a Pyro program; without training data, as after loading; if a hundredth of the training's work is too little
    for 20 rows, or for all rows of a network that needs them at once; and if `predict` has no finite density. The caller's
    random state does not change.
    """
    data = fit.data.sample if isinstance(fit.data, Loader) else fit.data
    if not isinstance(fit.model, NetworkModel) or not isinstance(data, Dataset):
        return None
    size = _affordable(fit, data)
    if size < min(len(data), _FEWEST) or (size < len(data) and mixes_examples(fit.model, data.x)):
        return None
    rows = data.rows(torch.linspace(0, len(data) - 1, size).long())
    try:
        predicted = draw_functions(fit.model, fit.guide, rows.x, _DRAWS, seed=0, device=fit.device)
        assert isinstance(predicted, Prediction)
        ours = predicted.log_density(rows.y).detach().double().cpu()
    except (TypeError, ValueError, RuntimeError) as error:  # a trained fit is not lost because it cannot predict
        _log.info("the log density of the training data is not known: %s", error)
        return None
    if len(ours) < size or not bool(ours.isfinite().all()):  # a row without any observation is left out
        return None
    density = float(ours.mean())
    beside = {name: density + float((theirs - ours[at]).mean()) for name, at, theirs in _beside(fit, data, rows)}
    return Worth(
        density, **{name: value for name, value in beside.items() if math.isfinite(value)}, values=rows.y[0].numel()
    )


def keep_worth(fit: Trained) -> None:
    """Compute the worth of a fit and put it into its settings, which are saved."""
    worth = worth_of(fit)
    if worth is not None:
        fit.settings["worth"] = asdict(worth)


def of_record(record: Mapping[str, Any]) -> Worth | None:
    """The worth of a fit from its settings; None if these lack it, as after fewer than 100 steps."""
    known = record.get("worth")
    return Worth(**known) if isinstance(known, Mapping) and set(known) == set(Worth.__annotations__) else None


def _affordable(fit: Trained, data: Dataset) -> int:
    """The number of rows to predict."""
    seen = len(fit.history) * min(fit.settings.get("batch_size", len(data)), len(data))
    weights = sum(value.numel() for value in fit.model.state_dict().values())
    table = all(part.dim() == 2 and part.is_floating_point() for part in parts(data.x))
    places = 1 if table else max(part[0].numel() for part in parts(data.x))  # that a weight may be applied at
    return min(len(data), _MOST, max(seen // _SHARE, int(_CHEAP / (weights * places))))


def _beside(fit: Trained, data: Dataset, rows: Dataset) -> Iterator[tuple[str, Tensor, Tensor]]:
    """The predictors that a fit is compared with: name, indices of the rows predicted, and their log densities."""
    y, likelihood = rows.y.detach().cpu(), fit.model.likelihood
    y = y if isinstance(likelihood, Categorical) else y.double().reshape(len(y), -1)
    every = torch.arange(len(y))
    if (of_constant := constant(likelihood, data.y, y)) is not None:
        yield "constant", every, of_constant
    real = isinstance(likelihood, _REAL) and not has_one_value(y)
    labels = isinstance(likelihood, Categorical) and y.dim() == 1 and int(y.max()) < _CLASSES
    if len(y) < _FEWEST or not (real or labels):
        return
    few = torch.linspace(0, len(y) - 1, min(len(y), _FEW)).long()
    x = rows.x
    if isinstance(x, Tensor) and x.dim() == 2 and x.is_floating_point():
        x = x.detach().cpu().double()
        at = every if x.shape[1] <= _WIDE else few
        yield "ridge", at, by_features([x[at]], y[at])
        yield "gp", few, by_process(x[few], y[few])
    if features := _features(fit, rows):
        at = every if features[0].shape[1] <= _WIDE else few
        yield "point", at, by_features([phi[at] for phi in features], y[at])


def _features(fit: Trained, rows: Dataset) -> list[Tensor]:
    """Inputs of the last layer ``[n, K]``, at the initial values of the weights and at their means.

    Empty if the outputs of the network are not those of a linear layer that is called on one vector per row.
    """
    model, guide = fit.model, members_of(fit.guide)[0]
    initial = model.weight_sites()
    weights = [initial]
    if isinstance(guide, HasPosterior):
        weights.append({name: guide.posterior(name).mean.detach() for name in initial})
    features = []
    with torch.no_grad(), evaluating(model, fit.guide):
        x = mapped(lambda part: part.to(fit.device), rows.x)
        for values in weights:
            with LastMap() as seen:
                output = model.outputs(values, x)
            linear = seen.last.linear() if seen.last else None
            if seen.last and linear and linear[0].dim() == 2 and torch.equal(seen.last.result, output):
                features.append(linear[0].cpu().double())
    return features
