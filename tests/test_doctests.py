"""The examples in the docstrings of the callables that users call most, run as doctests."""

from __future__ import annotations

import doctest
import functools
import inspect

import pytest

import pyrodrop.analysis.acquire  # which pyrodrop imports when it is asked for
import pyrodrop.sklearn

EXAMPLES = [
    "pyrodrop.analysis.acquire.bald",
    "pyrodrop.analysis.acquire.batch",
    "pyrodrop.analysis.acquire.entropy",
    "pyrodrop.analysis.acquire.epig",
    "pyrodrop.analysis.acquire.variance",
    "pyrodrop.analysis.sbc",
    "pyrodrop.compare",
    "pyrodrop.compression.compress",
    "pyrodrop.data.bootstrapped",
    "pyrodrop.data.Dataset",
    "pyrodrop.data.Dataset.from_frame",
    "pyrodrop.data.perturbed",
    "pyrodrop.fit",
    "pyrodrop.Fit.elbo",
    "pyrodrop.guides.BernoulliDropout",
    "pyrodrop.guides.Ensemble",
    "pyrodrop.guides.GaussianDropout",
    "pyrodrop.guides.LogNormalDropout",
    "pyrodrop.guides.MeanField",
    "pyrodrop.guides.Point",
    "pyrodrop.guides.SparseDropout",
    "pyrodrop.guides.to_module",
    "pyrodrop.guides.VariationalDropout",
    "pyrodrop.likelihoods.Categorical",
    "pyrodrop.likelihoods.Censored",
    "pyrodrop.likelihoods.Gaussian",
    "pyrodrop.likelihoods.Missing",
    "pyrodrop.metrics.classification_scores",
    "pyrodrop.metrics.regression_scores",
    "pyrodrop.models.from_module",
    "pyrodrop.models.MLP",
    "pyrodrop.models.WithPriorFunction",
    "pyrodrop.last_layer",
    "pyrodrop.potential",
    "pyrodrop.predict",
    "pyrodrop.Prediction.of_draws",
    "pyrodrop.Prediction.quantile",
    "pyrodrop.priors.ARD",
    "pyrodrop.priors.Gaussian",
    "pyrodrop.priors.from_gp",
    "pyrodrop.read",
    "pyrodrop.recipes.curve",
    "pyrodrop.recipes.regressor",
    "pyrodrop.restart",
    "pyrodrop.schedules.cosine",
    "pyrodrop.schedules.linear",
    "pyrodrop.sklearn.NetworkClassifier",
    "pyrodrop.sklearn.NetworkRegressor",
    "pyrodrop.to_arviz",
]


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_gives_what_it_shows(name: str) -> None:
    value = functools.reduce(getattr, name.split(".")[1:], pyrodrop)  # a function may have the name of its module
    text = inspect.cleandoc(value.__doc__ or "")
    example = doctest.DocTestParser().get_doctest(text, {"__name__": "__main__"}, name, name, 0)
    assert example.examples, f"the docstring of {name} has no example"
    report: list[str] = []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=report.append)
    assert not failed, "".join(report)
