"""Estimators of scikit-learn: a network with a posterior over its weights, for a table that nobody has tuned.

    from pyrodrop.sklearn import NetworkRegressor

    mean, sd = NetworkRegressor().fit(X, y).predict(X_new, return_std=True)

What they train is a recipe (`pyrodrop.recipes`): columns are standardised, and rows that are held out choose how rough the
function is and how sure the predictions are. Needs the extra ``sklearn``; what the defaults reach is on the page In
scikit-learn, docs/scikit-learn.md.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from pyrodrop import guides, recipes
from pyrodrop.arguments import count, shown
from pyrodrop.arrays import as_table, is_frame
from pyrodrop.data.column_values import check_numbers
from pyrodrop.likelihoods import HeteroscedasticGaussian, Likelihood
from pyrodrop.names import check_keywords
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.prediction.quantiles import checked_levels
from pyrodrop.scaling import narrowed
from pyrodrop.training.advice import collected
from pyrodrop.training.fitted_replicates import Replicates
from pyrodrop.training.result import Fit

try:
    from scipy.sparse import issparse
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(f"pyrodrop.sklearn needs scikit-learn: pip install 'pyrodrop[sklearn]' ({error})") from None

__all__ = ["NetworkClassifier", "NetworkRegressor"]

_POSTERIORS: Mapping[str, Callable[..., Any]] = {
    "dropout": functools.partial(guides.BernoulliDropout, drop_rate=0.01, mask_input=False),
    "variational": functools.partial(guides.VariationalDropout, kind="B"),
    "mean field": guides.MeanField,
    "ensemble": guides.Point,
}


_ELSEWHERE: Mapping[str, str] = {  # arguments of other estimators, and what to do instead
    "class_weight": "rows are not weighted. Its effect is that of other frequencies of the classes: multiply the columns of "
    "predict_proba by the weights, and divide by the sum of each row",
    "early_stopping": "a schedule of the learning rate ends the training",
    "n_jobs": "the networks are trained at once",
    "max_iter": "here it is max_steps, the number of gradient steps",
    "n_estimators": "here it is members, the number of networks",
}


class _Checked(BaseEstimator):  # type: ignore[misc]  # a class of its own, so that `inspect` shows __init__'s signature
    def __new__(cls, *_: Any, **keywords: Any) -> Self:
        check_keywords(f"{cls.__name__}()", keywords, cls._get_param_names(), _ELSEWHERE)
        return super().__new__(cls)  # type: ignore[no-any-return]


class _Network(_Checked):
    """The common base of both estimators; `NetworkRegressor` describes the arguments."""

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] = (50,),
        *,
        posterior: str | Callable[..., Any] = "dropout",
        members: int = 5,
        max_steps: int | None = None,
        draws: int = 200,
        random_state: Any = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.posterior = posterior
        self.members = members
        self.max_steps = max_steps
        self.draws = draws
        self.random_state = random_state

    def _fit(self, recipe: recipes.Recipe) -> Self:
        options: dict[str, Any] = {"progress": False, "seed": check_random_state(self.random_state).randint(2**31 - 1)}
        if self.max_steps is not None:
            options["steps"] = count(self.max_steps, "max_steps", "the number of gradient steps of each training")
        members = count(self.members, "members", "the number of networks")
        self.run_: Fit | Replicates
        with collected() as messages:
            self.run_ = recipe.fit(**options) if members == 1 else recipe.fit_replicates(members, **options)
        for message in messages:
            hint = " (the number of steps is max_steps)" if message.startswith("training") else ""
            warnings.warn(message + hint, ConvergenceWarning, stacklevel=3)
        return self

    def _posterior(self) -> Callable[..., Any]:
        if isinstance(self.posterior, str) and self.posterior in _POSTERIORS:
            return _POSTERIORS[self.posterior]
        if isinstance(self.posterior, str) or not callable(self.posterior):
            raise ValueError(
                f"posterior must be one of {', '.join(map(repr, _POSTERIORS))}, or a function of the model; got "
                f"{shown(self.posterior)}"
            )
        return self.posterior  # type: ignore[no-any-return]

    def prediction(self, X: Any, draws: int | None = None) -> Prediction:
        """The draws of the functions and the distribution of y at the rows X ``[n, D]``, for densities and all scores.

        The network computes in float64, so that a row's numbers do not depend on the rows beside it.

        Args:
            X: the rows.
            draws: number of functions; the estimator's if None, and at least one of every member.
        """
        check_is_fitted(self)
        _check_columns(X)
        draws = count(self.draws, "draws", "the number of draws from the posterior") if draws is None else draws
        x = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        run = copy.deepcopy(self.run_)
        members = [run] if isinstance(run, Fit) else list(run)
        for module in (module for member in members for module in (member.model, member.guide)):
            if isinstance(module, torch.nn.Module):
                module.double()
        return run.predict(torch.as_tensor(_dense(x)), max(draws, len(members)), seed=0)  # type: ignore[no-any-return]

    def _table(self, X: Any, y: Any, **options: Any) -> tuple[Tensor, Any]:
        """X of a fit as a tensor, in the precision of the network where that is enough, and y."""
        _check_columns(X)
        shape: Any = np.shape(y) if isinstance(y, list | tuple) else getattr(y, "shape", ())
        if len(shape) == 2 and shape[1] > 1:
            wrapper = "MultiOutputRegressor" if isinstance(self, RegressorMixin) else "MultiOutputClassifier"
            raise ValueError(
                f"y must be one column; got shape {list(shape)}: for one estimator of each column there is "
                f"sklearn.multioutput.{wrapper}({type(self).__name__}())"
            )
        x, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, ensure_min_samples=2, **options)
        return narrowed(torch.as_tensor(_dense(x))), y

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _check_columns(X: Any) -> None:
    """Raise a TypeError that names the columns of a data frame that are no numbers, such as categories and dates."""
    if is_frame(X):
        remedy = "encode {} as numbers, with sklearn.preprocessing.OneHotEncoder in a make_column_transformer"
        check_numbers(as_table(X, "X").iter_columns(), "X", "", remedy)


def _dense(x: Any) -> np.ndarray[Any, Any]:
    return np.array(x.toarray() if issparse(x) else x)  # a copy: arrays of data frames may be read-only


class NetworkRegressor(RegressorMixin, _Network):  # type: ignore[misc]
    """A regression by a network with a posterior over its weights.

    A training that may not be done is a ``ConvergenceWarning`` of scikit-learn, and so is a table of which ridge regression
    predicts rows that are left out better.

    Args:
        hidden_layer_sizes: numbers of units of the hidden layers.
        posterior: of each network: ``dropout`` of 1 % of the hidden units, ``variational`` (Kingma et al., type B), ``mean
            field``, ``ensemble`` for networks without noise, or a function that makes a guide of the model.
        members: number of networks, each with its own start, whose predictions are mixed.
        likelihood: of y; Gaussian noise whose size depends on x if None.
        max_steps: number of steps of each training. None for 2,000 or 20 epochs, whichever is more, with one hidden layer,
            and 5,000 or 60 epochs with several.
        draws: from the posterior, for every prediction.
        random_state: a seed, a ``RandomState``, or None for another one in every fit.

    Attributes:
        run_: the `pyrodrop.Fit`, or the `pyrodrop.Replicates` of several members, for everything else.
        n_features_in_, feature_names_in_: of X.

    The rows are not weighted: ``fit`` has no ``sample_weight``.

    Example:
        >>> import numpy as np
        >>> from pyrodrop.sklearn import NetworkRegressor
        >>> X = np.linspace(-1, 1, 60)[:, None]
        >>> model = NetworkRegressor(max_steps=20, random_state=0).fit(X, 3 * X[:, 0])
        >>> mean, sd = model.predict(X[:4], return_std=True)
        >>> mean.shape, sd.shape, model.predict(X[:4], quantiles=(0.05, 0.95))[1].shape
        ((4,), (4,), (4, 2))
    """

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] = (128, 128),
        *,
        posterior: str | Callable[..., Any] = "dropout",
        members: int = 5,
        likelihood: Likelihood | None = None,
        max_steps: int | None = None,
        draws: int = 200,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            hidden_layer_sizes,
            posterior=posterior,
            members=members,
            max_steps=max_steps,
            draws=draws,
            random_state=random_state,
        )
        self.likelihood = likelihood

    def fit(self, X: Any, y: Any) -> Self:
        """Train on a table X ``[n, D]`` of numbers and y ``[n]``.

        Raises:
            TypeError, ValueError: X or y is no such table, or an argument is something else.
        """
        x, y = self._table(X, y, y_numeric=True)
        likelihood = HeteroscedasticGaussian("softplus") if self.likelihood is None else self.likelihood
        options: dict[str, Any] = {"posterior": self._posterior(), "hidden": self.hidden_layer_sizes}
        column = narrowed(torch.tensor(y[:, None], dtype=torch.float64))
        return self._fit(recipes.regressor((x, column), likelihood=likelihood, **options))

    def predict(self, X: Any, return_std: bool = False, quantiles: Sequence[float] | None = None) -> Any:
        """The mean of y, ``[n]``, and what is asked for beside it.

        Args:
            X: the rows, ``[n, D]``.
            return_std: whether to return the standard deviation of y too, ``[n]``, noise included.
            quantiles: probabilities; quantiles of y, ``[n, len(quantiles)]``, are then returned too.

        Returns:
            The mean, or a tuple of the mean and what was asked for, in this order.
        """
        predicted = self.prediction(X)
        results = [predicted.mean[:, 0].numpy()]
        if return_std:
            results.append(predicted.sd[:, 0].numpy())
        if quantiles is not None:
            results.append(predicted.quantile(checked_levels(quantiles, "quantiles").reshape(-1))[..., 0].T.numpy())
        return results[0] if len(results) == 1 else tuple(results)

    def sample_y(self, X: Any, n_samples: int = 1) -> np.ndarray[Any, Any]:
        """Draws of y with noise, ``[n, n_samples]``, each of one function for all rows; the same in every call."""
        predicted = self.prediction(X, count(n_samples, "n_samples", "the number of draws of y"))
        drawn = predicted.sample_y(len(predicted.f))  # one of every function, the members one after the other
        return drawn[torch.linspace(0, len(drawn) - 1, n_samples).long(), :, 0].T.numpy()


class NetworkClassifier(ClassifierMixin, _Network):  # type: ignore[misc]
    """A classification by a network with a posterior over its weights.

    Args:
        hidden_layer_sizes, posterior, members, max_steps, draws, random_state: as of `NetworkRegressor`.

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
        """Train on a table X ``[n, D]`` of numbers and labels y ``[n]``.

        Raises:
            TypeError, ValueError: X or y is no such table, or an argument is something else.
        """
        x, y = self._table(X, y)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must have at least two classes; got one class, {self.classes_.tolist()[0]!r}")
        data = (x, torch.from_numpy(labels))
        return self._fit(recipes.classifier(data, posterior=self._posterior(), hidden=self.hidden_layer_sizes))

    def predict_proba(self, X: Any) -> np.ndarray[Any, Any]:
        """Probabilities of the classes, ``[n, len(classes_)]``, means over the draws."""
        return self.prediction(X).mean.numpy()  # type: ignore[no-any-return]

    def predict(self, X: Any) -> np.ndarray[Any, Any]:
        """The most probable class of every row, ``[n]``."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(1)]  # type: ignore[no-any-return]
