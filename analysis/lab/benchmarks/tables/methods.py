"""The compared methods: pyrodrop's recipes, and others with their documented defaults, each with a predictive distribution.

Regressions:

    pyrodrop         `recipes.regressor`, 500 draws
    ridge            RidgeCV on standardised columns; the noise is that of its leave-one-out errors
    quantile forest  quantiles of RandomForestQuantileRegressor at 99 levels, smoothed by a normal kernel whose width is best
                     for out-of-bag rows; the hundredth part is as wide as y
    conformal HGB    HistGradientBoostingRegressor; the noise is that of the residuals of five folds of the training rows,
                     the same everywhere, smoothed by the kernel that is best for residuals that are left out; the
                     1 / (N + 1) beyond all N of them, which conformal prediction leaves open, is as wide as y
    NGBoost          NGBRegressor, a normal distribution
    CatBoost         CatBoostRegressor with the loss RMSEWithUncertainty, a normal distribution
    GP               GaussianProcessRegressor, ConstantKernel * RBF + WhiteKernel with a length scale for every column, on
                     standardised columns and y; of more than 500 training rows, 500 at random

Classifications: `recipes.classifier`; LogisticRegressionCV on standardised columns, scored by log density;
RandomForestClassifier, HistGradientBoostingClassifier and CatBoostClassifier.

No standard deviation is below 1e-6 of that of y: leaves with one value of y would have none. The kernels are no narrower
than the median distance of neighbouring different y over sqrt(12). A probability of 0 counts as 2.2e-16, as in ``log_loss``
of scikit-learn. TabPFN is not included: its weights have to be downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from pyrodrop import metrics, recipes
from pyrodrop.analysis.lab.benchmarks.tables import scores
from pyrodrop.analysis.lab.benchmarks.tables.scores import Mixture
from pyrodrop.data import Dataset
from pyrodrop.prediction.prediction import Prediction

Rows = tuple[np.ndarray, np.ndarray]
Regression = Callable[[Rows, np.ndarray, int], Mixture | Prediction]
Classification = Callable[[Rows, np.ndarray, int], np.ndarray | Prediction]
DRAWS, GP_ROWS, QUANTILES = 500, 500, 99


def scores_of_regression(predicted: Mixture | Prediction, y: np.ndarray) -> dict[str, float]:
    """The scores of `scores.regression`."""
    levels = np.append(scores.LEVELS, scores.ENDS)
    if isinstance(predicted, Mixture):
        return scores.regression(predicted.log_density(y), predicted.quantiles(levels), predicted.mean, y)
    density = predicted.log_density(torch.tensor(y, dtype=predicted.f.dtype)[:, None]).double().numpy()
    quantiles = predicted.quantile(list(levels))[:, :, 0].T.double().numpy()
    return scores.regression(density, quantiles, predicted.mean[:, 0].double().numpy(), y)


def scores_of_classification(predicted: np.ndarray | Prediction, y: np.ndarray) -> dict[str, float]:
    """Log density, Brier score, error and expected calibration error."""
    p = predicted if isinstance(predicted, Prediction) else torch.from_numpy(np.ascontiguousarray(predicted, float))
    labels = torch.from_numpy(y)
    probabilities = metrics.classification.class_probabilities(p).numpy()
    floor = np.finfo(float).eps
    return {
        "log_density": float(np.log(np.maximum(probabilities[np.arange(len(y)), y], floor)).mean()),
        "brier": metrics.brier(p, labels),
        "error": 1 - metrics.accuracy(p, labels),
        "ece": metrics.ece(p, labels),
    }


def pyrodrop_regression(train: Rows, x: np.ndarray, seed: int) -> Prediction:
    """The recipe."""
    data = Dataset(torch.tensor(train[0], dtype=torch.float32), torch.tensor(train[1])[:, None].float())
    run = recipes.regressor(data).fit(seed=seed, groups=None, progress=False)
    return run.predict(torch.tensor(x, dtype=torch.float32), DRAWS)


def ridge(train: Rows, x: np.ndarray, seed: int) -> Mixture:
    """Ridge regression."""
    from sklearn.linear_model import RidgeCV

    x_train, x = _standardised(train[0], x)
    model = RidgeCV(np.logspace(-4, 4, 25)).fit(x_train, train[1])
    return _normal(model.predict(x), np.array([np.sqrt(-model.best_score_)]), train[1])


def quantile_forest(train: Rows, x: np.ndarray, seed: int) -> Mixture:
    """A forest whose leaves keep all y (Meinshausen 2006, Quantile Regression Forests)."""
    from quantile_forest import RandomForestQuantileRegressor

    forest = RandomForestQuantileRegressor(random_state=seed).fit(*train)
    levels = [(k + 0.5) / QUANTILES for k in range(QUANTILES)]
    out_of_bag = forest.predict(train[0], quantiles=levels, oob_score=True)
    known = np.isfinite(out_of_bag).all(1)

    sd = train[1].std()

    def smoothed(quantiles: np.ndarray, width: float) -> Mixture:
        components = np.column_stack([quantiles, np.median(quantiles, 1)])
        return Mixture(np.zeros(len(quantiles)), components, np.append(np.full(QUANTILES, width), sd)[None])

    def density(width: float) -> float:
        return float(smoothed(out_of_bag[known], width).log_density(train[1][known]).mean())

    return smoothed(forest.predict(x, quantiles=levels), max(_widths(train[1]), key=density))


def conformal_boosting(train: Rows, x: np.ndarray, seed: int) -> Mixture:
    """Boosted trees with the residuals of cross-validation."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.model_selection import KFold, cross_val_predict

    model = HistGradientBoostingRegressor(random_state=seed)
    residuals = train[1] - cross_val_predict(model, *train, cv=KFold(5, shuffle=True, random_state=seed))
    sd = train[1].std()
    squares = (residuals[:, None] - residuals) ** 2
    np.fill_diagonal(squares, np.inf)
    wide = np.exp(-((residuals / sd) ** 2) / 2) / sd

    def density(width: float) -> float:
        return float(np.log(np.exp(-squares / (2 * width**2)).sum(1) / width + wide).mean())

    width = max(_widths(train[1]), key=density)
    sds = np.append(np.full(len(residuals), width), sd)
    return Mixture(model.fit(*train).predict(x), np.append(residuals, 0)[None], sds[None])


def ngboost(train: Rows, x: np.ndarray, seed: int) -> Mixture:
    """Natural gradient boosting (Duan et al. 2020)."""
    from ngboost import NGBRegressor

    predicted = NGBRegressor(verbose=False, random_state=seed).fit(*train).pred_dist(x)
    return _normal(predicted.loc, predicted.scale, train[1])


def catboost(train: Rows, x: np.ndarray, seed: int) -> Mixture:
    """Boosted trees of mean and variance."""
    from catboost import CatBoostRegressor

    model = CatBoostRegressor(loss_function="RMSEWithUncertainty", random_seed=seed, **_QUIET).fit(*train)
    mean, variance = model.predict(x, prediction_type="RMSEWithUncertainty").T
    return _normal(mean, np.sqrt(variance), train[1])


def gaussian_process(train: Rows, x: np.ndarray, seed: int) -> Mixture:
    """A Gaussian process, its hyperparameters by maximum likelihood."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    rows = np.random.RandomState(seed).permutation(len(train[1]))[:GP_ROWS]
    x_train, x = _standardised(train[0][rows], x)
    kernel = ConstantKernel() * RBF(np.ones(x.shape[1])) + WhiteKernel()
    model = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed).fit(x_train, train[1][rows])
    mean, sd = model.predict(x, return_std=True)
    return _normal(mean, sd, train[1])


REGRESSIONS: Mapping[str, Regression] = {
    "pyrodrop": pyrodrop_regression,
    "ridge": ridge,
    "quantile forest": quantile_forest,
    "conformal HGB": conformal_boosting,
    "NGBoost": ngboost,
    "CatBoost": catboost,
    "GP": gaussian_process,
}


def pyrodrop_classification(train: Rows, x: np.ndarray, seed: int) -> Prediction:
    """The recipe."""
    data = Dataset(torch.tensor(train[0], dtype=torch.float32), torch.tensor(train[1]))
    run = recipes.classifier(data).fit(seed=seed, progress=False)
    return run.predict(torch.tensor(x, dtype=torch.float32), DRAWS)


def logistic(train: Rows, x: np.ndarray, seed: int) -> np.ndarray:
    """Logistic regression."""
    from sklearn.linear_model import LogisticRegressionCV

    x_train, x = _standardised(train[0], x)
    model = LogisticRegressionCV(Cs=10, cv=5, scoring="neg_log_loss", max_iter=2000).fit(x_train, train[1])
    return model.predict_proba(x)  # type: ignore[no-any-return]


def forest(train: Rows, x: np.ndarray, seed: int) -> np.ndarray:
    """A random forest."""
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(random_state=seed).fit(*train).predict_proba(x)  # type: ignore[no-any-return]


def boosting(train: Rows, x: np.ndarray, seed: int) -> np.ndarray:
    """Boosted trees of scikit-learn."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(random_state=seed).fit(*train).predict_proba(x)  # type: ignore[no-any-return]


def catboost_classification(train: Rows, x: np.ndarray, seed: int) -> np.ndarray:
    """Boosted trees of CatBoost."""
    from catboost import CatBoostClassifier

    return CatBoostClassifier(random_seed=seed, **_QUIET).fit(*train).predict_proba(x)  # type: ignore[no-any-return]


CLASSIFICATIONS: Mapping[str, Classification] = {
    "pyrodrop": pyrodrop_classification,
    "logistic": logistic,
    "forest": forest,
    "HGB": boosting,
    "CatBoost": catboost_classification,
}
_QUIET: Mapping[str, Any] = {"verbose": False, "allow_writing_files": False, "thread_count": 1}


def _standardised(train: np.ndarray, x: np.ndarray) -> Rows:
    spread = train.std(0)
    spread = np.where(spread > 0, spread, 1)
    return (train - train.mean(0)) / spread, (x - train.mean(0)) / spread


def _normal(mean: np.ndarray, sd: np.ndarray, y: np.ndarray) -> Mixture:
    return Mixture(mean, np.zeros((len(sd), 1)), np.maximum(sd, 1e-6 * y.std())[:, None])


def _widths(y: np.ndarray) -> list[float]:
    """Widths of a kernel, up to the standard deviation of y. The smallest is 1e-6 of this, or, to limit peaks at whole
    numbers, the sd of a uniform distribution as wide as the median distance of neighbouring different y."""
    least = max(1e-6 * y.std(), float(np.median(np.diff(np.unique(y)))) / np.sqrt(12))
    return [float(width) for width in np.geomspace(least, max(least, y.std()), 31)]
