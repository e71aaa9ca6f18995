"""Figures: each is pyplot's current one, and is not blank; what it shows is what it was given."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pyro.distributions as dist
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import pyrodrop
from pyrodrop import guides, likelihoods, metrics, models, priors
from pyrodrop.analysis import plots
from pyrodrop.analysis.comparison.loo import loo
from pyrodrop.analysis.gp import GaussianProcess

pytestmark = pytest.mark.filterwarnings("ignore::pyrodrop.priors.ImproperPrior")


def assert_drawn(figure: Figure) -> None:
    """Ink in every panel that is not switched off; it is pyplot's only figure, until a notebook shows it as a value."""
    assert plt.gcf() is figure
    assert len(plt.get_fignums()) == 1
    with pytest.raises(NotImplementedError):  # IPython shows it then as any figure
        figure._ipython_display_()  # type: ignore[attr-defined]
    assert plt.get_fignums() == []
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]
    height = len(pixels)
    for axes in figure.axes:
        if axes.axison:
            box = axes.get_window_extent()
            inside = pixels[height - int(box.y1) : height - int(box.y0), int(box.x0) + 2 : int(box.x1) - 2]
            assert (inside < 250).any(-1).mean() > 0.002, axes.get_title()


def test_a_prediction_shows_the_functions_mean_and_the_data(small: Any) -> None:
    fit, data = small.fitted(small.dropout), small.waves()
    figure = plots.prediction(fit, data, small.waves(9, seed=1), x_label="year", y_label="ppm")
    assert_drawn(figure)
    lines = figure.axes[0].get_lines()
    x = torch.as_tensor(np.asarray(lines[0].get_xdata()), dtype=torch.float32)[:, None]
    assert float(x.min()) == pytest.approx(1950 - 2.5)
    np.testing.assert_allclose(lines[0].get_ydata(), fit.predict(x, 500).mean[:, 0], rtol=1e-5)
    np.testing.assert_allclose(lines[1].get_ydata(), data.y[:, 0])
    assert_drawn(plots.prediction(GaussianProcess(data, "matern-5/2"), data))
    with pytest.raises(ValueError, match="needs x \\[N, 1\\] and one y"):
        plots.prediction(fit, small.classes())


def test_traces(small: Any) -> None:
    fit = small.fitted(small.dropout)
    figure = plots.traces(fit)
    assert_drawn(figure)
    np.testing.assert_allclose(figure.axes[0].get_lines()[0].get_ydata(), -fit.losses, rtol=1e-5)
    assert_drawn(plots.traces(small.fitted(small.dropout, steps=1)))


def test_a_calibration_curve_is_the_metrics(small: Any) -> None:
    data = small.classes(200)
    prediction = small.fitted(guides.MeanField, small.classifier(), data).predict(data.x, 50)
    figure = plots.calibration(prediction, data.y, bins=5)
    assert_drawn(figure)
    curve = metrics.calibration_curve(prediction, data.y, 5)
    np.testing.assert_allclose(figure.axes[0].get_lines()[1].get_ydata(), curve.accuracy)


@pytest.mark.more
def test_arvizs_pictures(small: Any) -> None:
    fit, _ = small.conjugate(1.0)
    assert_drawn(plots.k_hat(loo(fit, num_samples=500)))
    tree = pyrodrop.to_arviz(fit, fit.data, fit.data, num_samples=200)
    for options in ({}, {"coverage": True}, {"held_out": True}):
        assert_drawn(plots.pit(tree, **options))
    figure, replicated = plots.pit(tree, held_out=True), tree["predictions"]["y"].values[0]
    assert_drawn(figure)
    below = np.sort((replicated < fit.data.y.squeeze(-1).numpy()).mean(0))
    np.testing.assert_allclose(figure.axes[0].get_lines()[0].get_xdata()[1:-1:2], below)
    both = pyrodrop.to_arviz({"a": fit, "b": fit}, num_samples=30)
    assert_drawn(plots.pit(both.sel(model="a", drop=True)))
    with pytest.raises(
        ValueError, match=r"tree must be of one model: tree.sel\(model=..., drop=True\); got one of a, b"
    ):
        plots.pit(both)
    with pytest.raises(ValueError, match="no held-out observations"):
        plots.pit(pyrodrop.to_arviz(fit, fit.data, num_samples=30), held_out=True)
    with pytest.raises(ValueError, match="no k-hat to plot: log p - log q does not exist"):
        plots.k_hat(loo(small.fitted(small.dropout, steps=2), num_samples=25))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "prior",
    [priors.Gaussian(), priors.LogUniform(), priors.ARD("weight", dist.HalfCauchy(1.0))],
    ids=["normal", "improper", "latent"],
)
def test_weights_beside_their_priors(small: Any, prior: Any) -> None:
    """Histograms integrate to the share of draws inside; an improper prior is left out."""
    model = models.MLP([1, 8, 1], prior=prior, likelihood=likelihoods.Gaussian(1.0))
    figure = plots.weights(small.fitted(guides.MeanField, model, steps=5))
    assert_drawn(figure)
    axes = figure.axes[0]
    bars = [patch for patch in axes.patches if patch.get_label() != "prior" and hasattr(patch, "get_height")]
    assert 0.95 < sum(bar.get_height() * bar.get_width() for bar in bars) < 1.001
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert any(label.startswith("prior") for label in labels) == (not isinstance(prior, priors.LogUniform))
