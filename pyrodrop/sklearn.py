"""Estimators for scikit-learn: networks with a posterior over their weights, for tables, without tuning.

    from pyrodrop.sklearn import NetworkRegressor

    mean, sd = NetworkRegressor().fit(X, y).predict(X_new, return_std=True)

They train a recipe (`pyrodrop.recipes`): columns are standardised, and rows left out of a training determine the weight of
its network and the noise. Needs the extra ``sklearn``; scores of the defaults are on the page Judged on tables,
docs/measured.md.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state, check_X_y
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from pyrodrop import recipes
from pyrodrop.arrays import is_frame, refuse_masked
from pyrodrop.checks import count, counts, public, shown
from pyrodrop.data import Dataset
from pyrodrop.data.columns import Columns, read_inputs
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.prediction.quantiles import checked_levels
from pyrodrop.scaling import Standardize, narrowed
from pyrodrop.training.reasons import collected
from pyrodrop.training.replicates import Replicates

__all__ = ["NetworkClassifier", "NetworkRegressor"]
public(__name__, __all__)


_TABLE: Mapping[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}


class _Network(BaseEstimator):  # type: ignore[misc]
    """The common base of both estimators; `NetworkRegressor` describes the arguments."""

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] | None = None,
        *,
        posterior: Callable[..., Any] | None = None,
        members: int = 5,
        groups: str | None = "auto",
        max_steps: int | None = None,
        draws: int = 200,
        random_state: Any = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.posterior = posterior
        self.members = members
        self.groups = groups
        self.max_steps = max_steps
        self.draws = draws
        self.random_state = random_state

    def _fit(self, recipe: recipes.Recipe) -> Self:
        options: dict[str, Any] = {"progress": False, "seed": check_random_state(self.random_state).randint(2**31 - 1)}
        if self.max_steps is not None:
            options["steps"] = count(self.max_steps, "max_steps", "the number of gradient steps of each training")
        members = count(self.members, "members", "the number of networks of every prior")
        self.run_: Replicates
        with collected() as messages:
            self.run_ = replace(recipe, order=self._order).fit(members, groups=self.groups, **options)
        for message in messages:
            hint = " (the number of steps is max_steps)" if "more steps" in message else ""
            warnings.warn(message + hint, ConvergenceWarning, stacklevel=3)
        return self

    def _chosen(self) -> dict[str, Any]:
        """The arguments of a recipe."""
        options: dict[str, Any] = {} if self.posterior is None else {"posterior": self.posterior}
        if self.hidden_layer_sizes is not None:
            what = "the numbers of units of the hidden layers"
            options["hidden"] = counts(self.hidden_layer_sizes, "hidden_layer_sizes", what)
        return options

    def prediction(self, X: Any, draws: int | None = None) -> Prediction:
        """The draws of the functions and the distribution of y at the rows X ``[n, D]``, for densities and all scores.

        The network computes in float64, so that the prediction for a row does not depend on the other rows of X.

        Args:
            X: the rows.
            draws: number of draws, shared between the networks by their weights; `draws` of the estimator if None.
        """
        check_is_fitted(self)
        draws = count(self.draws, "draws", "the number of draws from the posterior") if draws is None else draws
        refuse_masked(X, "X")
        columns, x = self._columns, X
        framed = self._framed and is_frame(X)
        x = validate_data(self, x, reset=False, **({"skip_check_array": True} if framed else _TABLE))
        if self._framed and not framed and (columns.indicators or columns.categories):
            raise TypeError(f"X must be a data frame, as in fit, with its bools and categories; got {shown(X)}")
        x = columns.x(x, "X") if framed else columns.table(np.array(x))
        runs = copy.deepcopy(self.run_)
        for module in (module for member in runs for module in (member.model, member.guide)):
            if isinstance(module, torch.nn.Module):
                module.double()
        return runs.predict(x.double(), draws, seed=0)  # type: ignore[no-any-return]

    def _read(self, X: Any, y: Any, **options: Any) -> tuple[Tensor, Any]:
        """X of a fit as a tensor, by the rules of frames in `recipes.regressor`, and y."""
        refuse_masked(X, "X")
        refuse_masked(y, "y")
        options["ensure_min_samples"] = 2
        self._framed, self._order = is_frame(X), recipes.order_of(X)
        self._columns: Columns
        if not self._framed:
            x, y = validate_data(self, X, y, **_TABLE, **options)
            self._scale: Standardize | None
            self._columns, self._scale = read_inputs(np.asarray(x), "X")
            return self._columns.table(np.array(x)), y
        validate_data(self, X, skip_check_array=True)
        self._columns, self._scale = read_inputs(X, "X")
        x = self._columns.x(X, "X")
        return x, check_X_y(x.numpy(), y, estimator=self, dtype=None, **options)[1]

    def _data(self, x: Tensor, y: Tensor, classes: tuple[Any, ...] | None = None) -> Dataset:
        """The data of a fit. Those of a frame have its columns, so that files of `run_` have them, too."""
        data = Dataset(x, y, inputs=self._scale)
        if self._framed:
            data.columns = replace(self._columns, targets=("y",), classes=classes)
        return data

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


class NetworkRegressor(RegressorMixin, _Network):  # type: ignore[misc]
    """A regression by a line plus networks with a posterior over their weights.

    If training may not have converged, it emits a ``ConvergenceWarning`` of scikit-learn.

    Args:
        hidden_layer_sizes: numbers of units of the hidden layers; None for those of `recipes.regressor`, (64, 64), or of
            `recipes.classifier`, (50,).
        posterior: function from model to guide for the posterior of each network, such as `pyrodrop.guides.MeanField`, or
            `pyrodrop.guides.Point` for an ensemble of point estimates; None for dropout of 1 % of the hidden units.
        members: number of networks for each of two priors, each trained without another part of the rows
            (`recipes.Recipe.fit`).
        groups: ``"auto"`` to leave out blocks of rows where the order of the rows means something, as in a series;
            ``"blocks"`` always; None never, as for rows that are predicted at random places of the same table.
        max_steps: number of steps of each training; None for that of `recipes.regressor`.
        draws: number of draws from the posterior for a prediction.
        random_state: a seed, a ``RandomState``, or None for another seed in every fit.

    Attributes:
        run_: the trained networks with their weights in the mixture, a `pyrodrop.Replicates`.
        n_features_in_, feature_names_in_: number and names of the columns of X.

    X is an array of numbers or a data frame, whose columns may be text, categories, bools and sparse. Missing values (NaN,
    None, or masked) and categories are treated as in `pyrodrop.recipes.regressor`. The rows are not weighted: ``fit`` has no
    ``sample_weight``.

    Example:
        >>> import numpy as np
        >>> from pyrodrop.sklearn import NetworkRegressor
        >>> X = np.linspace(-1, 1, 60)[:, None]
        >>> model = NetworkRegressor(max_steps=20, random_state=0).fit(X, 3 * X[:, 0])
        >>> mean, sd = model.predict(X[:4], return_std=True)
        >>> mean.shape, sd.shape, model.predict(X[:4], quantiles=(0.05, 0.95))[1].shape
        ((4,), (4,), (4, 2))
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Train on X ``[n, D]``, an array of numbers or a data frame, with or without gaps, and y ``[n]`` or ``[n, T]``.

        Raises:
            TypeError, ValueError: X or y is no such table, or an argument of the estimator is not allowed.
        """
        shape: Any = np.shape(y) if isinstance(y, list | tuple) else getattr(y, "shape", ())
        x, y = self._read(X, y, y_numeric=True, multi_output=len(shape) == 2 and shape[1] > 1)
        if y.dtype.kind not in "biuf":
            raise ValueError(f"y must be numbers; got dtype {y.dtype}: NetworkClassifier takes labels")
        columns = narrowed(torch.tensor(y.reshape(len(y), -1), dtype=torch.float64))
        self._of_one_column = y.ndim == 1
        return self._fit(recipes.regressor(self._data(x, columns), **self._chosen()))

    def predict(self, X: Any, return_std: bool = False, quantiles: Sequence[float] | None = None) -> Any:
        """The mean of y, ``[n]`` or ``[n, T]`` as the y of ``fit``, and optionally standard deviations and quantiles.

        Args:
            X: the rows, ``[n, D]``.
            return_std: whether to return the standard deviation of y too, of the shape of the mean, noise included.
            quantiles: probabilities, to return the quantiles of y too, ``[n, len(quantiles)]`` or
                ``[n, T, len(quantiles)]``.

        Returns:
            The mean, or a tuple of the mean, the standard deviation and the quantiles, those that were requested.
        """
        predicted = self.prediction(X)
        results = [self._shaped(predicted.mean)]
        if return_std:
            results.append(self._shaped(predicted.sd))
        if quantiles is not None:
            levels = checked_levels(quantiles, "quantiles").reshape(-1)
            results.append(np.moveaxis(self._shaped(predicted.quantile(levels)), 0, -1))
        return results[0] if len(results) == 1 else tuple(results)

    def _shaped(self, values: Tensor) -> np.ndarray[Any, Any]:
        """Values ``[..., n, T]``, without their last axis if y of ``fit`` had one dimension."""
        return (values[..., 0] if self._of_one_column else values).numpy()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class NetworkClassifier(ClassifierMixin, _Network):  # type: ignore[misc]
    """A classification by a network with a posterior over its weights.

    Args:
        hidden_layer_sizes, posterior, members, groups, max_steps, draws, random_state: as of `NetworkRegressor`, with three
            priors; ``"auto"`` takes blocks only where the index of a pandas frame has dates.

    Attributes:
        classes_: the labels, sorted.
        run_, n_features_in_, feature_names_in_: as of `NetworkRegressor`.

    Example:
        >>> import numpy as np
        >>> from pyrodrop.sklearn import NetworkClassifier
        >>> X = np.linspace(-1, 1, 60)[:, None]
        >>> model = NetworkClassifier(max_steps=20, random_state=0).fit(X, np.where(X[:, 0] > 0, "up", "down"))
        >>> model.predict([[-0.9], [0.9]]), model.predict_proba(X).shape
        (array(['down', 'up'], dtype='<U4'), (60, 2))
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Train on X ``[n, D]``, an array of numbers or a data frame, with or without gaps, and labels y ``[n]``.

        Raises:
            TypeError, ValueError: X or y is no such table, or an argument of the estimator is not allowed.
        """
        x, y = self._read(X, y)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must have at least two classes; got one class, {self.classes_.tolist()[0]!r}")
        data = self._data(x, torch.from_numpy(labels), tuple(self.classes_.tolist()))
        return self._fit(recipes.classifier(data, **self._chosen()))

    def predict_proba(self, X: Any) -> np.ndarray[Any, Any]:
        """Probabilities of the classes, ``[n, len(classes_)]``, averaged over the draws."""
        return self.prediction(X).mean.numpy()  # type: ignore[no-any-return]

    def predict(self, X: Any) -> np.ndarray[Any, Any]:
        """The most probable class of every row, ``[n]``."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(1)]  # type: ignore[no-any-return]
