"""Figures of a fit. Each function returns a matplotlib figure, which becomes pyplot's current figure: ``plt.savefig`` and
``plt.show`` apply to it, and a notebook shows it once. In a loop, close figures with ``plt.close(figure)``.

prediction(run, data, held_out)     the function with bands of half, one, one and a half and two standard deviations
traces(fit)                         ELBO, negative log likelihood and KL divergence by step
calibration(predicted, y)           accuracy by confidence
pit(tree), k_hat(loo)               PIT values of a data tree, with a band; ArviZ's plot of the k-hat values of a `Loo`
weights(fit)                        posterior and prior histograms of the weights, by layer
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pyro import poutine
from torch import Tensor

from pyrodrop.analysis.comparison.predicts import Predicts, prediction_of
from pyrodrop.analysis.reports.style import BLACK, BLUE, GREY, RED, OfPyplot, draw_ecdf, styled, subplots
from pyrodrop.checks import parts
from pyrodrop.data import Data, Dataset
from pyrodrop.devices import seeded
from pyrodrop.metrics import Predicted, calibration_curve
from pyrodrop.models import NetworkModel
from pyrodrop.training.result import Fit

if TYPE_CHECKING:
    from pyrodrop.analysis.comparison.loo import Loo

_SHADES = (2.0, 1.5, 1.0, 0.5)  # in standard deviations, the widest first
_CURVE = 400  # points along x
_WEIGHTS = 50_000  # values per histogram


@styled(pyplot=True)
def prediction(
    run: Predicts,
    data: Data,
    held_out: Data | None = None,
    *,
    reach: float = 0.25,
    num_samples: int = 500,
    seed: int = 0,
    x_label: str = "x",
    y_label: str = "y",
) -> Figure:
    """The posterior of a function of one x, over the range of the data and beyond.

    Args:
        run: a fit or a Gaussian process.
        data: training observations, shown in red.
        held_out: test observations, shown in black.
        reach: how far to extend x beyond the observations on both sides, as a share of their range.
        num_samples: number of sampled functions.
        seed: seed of the samples.
        x_label, y_label: axis labels, with units.

    Raises:
        ValueError: x or y has several columns.
    """
    sets = [Dataset.of(rows) for rows in (data, held_out) if rows is not None]
    for rows in sets:
        if not isinstance(rows.x, Tensor) or rows.x.dim() != 2 or rows.x.shape[1] != 1 or rows.y[0].numel() != 1:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in parts(rows.x))
            raise ValueError(
                f"plots.prediction needs x [N, 1] and one y; got x of shape {shapes} and y of shape {tuple(rows.y.shape)}"
            )
    ends = torch.cat([rows.x for rows in sets])
    low, high = float(ends.min()), float(ends.max())
    margin = reach * (high - low)
    x = torch.linspace(low - margin, high + margin, _CURVE, dtype=ends.dtype)[:, None]
    drawn = prediction_of(run, x, num_samples, seed=seed, needed_by="plots.prediction")
    figure, (axes,) = subplots(1, 1, (8, 3.6))
    shades(axes, x[:, 0], drawn.mean[:, 0], drawn.spread[:, 0])
    for rows, colour, label in zip(sets, (RED, BLACK), ("observed, for training", "observed, held out"), strict=False):
        axes.plot(rows.x[:, 0].numpy(), rows.y.reshape(-1).numpy(), ".", color=colour, markersize=3, label=label)
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.legend(loc="best", fontsize=8)
    return figure


def shades(axes: Axes, x: Tensor, mean: Tensor, sd: Tensor) -> None:
    """Draw a mean with bands of half, one, one and a half and two standard deviations; x, mean and sd are ``[N]``."""
    across, middle, width = (values.detach().cpu().double().numpy() for values in (x, mean, sd))
    for k in _SHADES:
        label = "function ± ½, 1, 1½, 2 sd" if k == _SHADES[-1] else None
        axes.fill_between(
            across, middle - k * width, middle + k * width, color=BLUE, alpha=0.16, linewidth=0, label=label
        )
    axes.plot(across, middle, color=BLUE, linewidth=1.0, label="predictive mean")


@styled(pyplot=True)
def traces(fit: Fit) -> Figure:
    """The ELBO of each step's sample, its negative log likelihood and its KL divergence, in nats by step.

    Single steps are pale; the moving average over a fiftieth of all steps is in full colour.
    """
    history = fit.history.double()
    steps = len(history)
    window = max(1, steps // 50)
    curves = {"ELBO": -history[:, :2].sum(1), "negative log likelihood": history[:, 0], "KL divergence": history[:, 1]}
    figure, panels = subplots(1, 3, (10, 2.8))
    for axes, (name, values) in zip(panels, curves.items(), strict=True):
        axes.plot(range(steps), values.numpy(), color=BLUE, alpha=0.25, linewidth=0.6)
        smooth = values.unfold(0, window, 1).mean(1)
        axes.plot(np.arange(len(smooth)) + window / 2, smooth.numpy(), color=BLUE, linewidth=1.3)
        low, high = torch.quantile(values[steps // 20 :], torch.tensor([0.005, 0.995]).double())
        margin = 0.08 * max(float(high - low), 1e-9 + 1e-3 * abs(float(high)))
        axes.set_ylim(float(low) - margin, float(high) + margin)
        axes.set(title=name, xlabel="step")
    panels[0].set_ylabel("nats")
    return figure


@styled(pyplot=True)
def calibration(predicted: Predicted, y: Tensor, bins: int = 15) -> Figure:
    """Accuracy by confidence with two standard errors, and below the share of predictions per bin.

    Args:
        predicted: a `Prediction` or class probabilities, see `metrics.calibration_curve`.
        y: labels ``[N]``.
        bins: number of bins of the confidence.
    """
    curve = calibration_curve(predicted, y, bins)
    confidence, accuracy, share = (values.cpu().double().numpy() for values in curve)
    se = np.sqrt(np.clip(accuracy * (1 - accuracy), 1e-4, None) / np.maximum(share * len(y), 1))
    figure, (top, bottom) = subplots(2, 1, (4.2, 4.6), sharex=True, height_ratios=(4, 1))
    top.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=0.8, label="calibrated")
    top.errorbar(
        confidence, accuracy, yerr=2 * se, color=BLUE, marker="o", markersize=4, linewidth=1, label="observed ± 2 s.e."
    )
    top.set(ylim=(-0.02, 1.02), ylabel="accuracy", title=f"ECE {curve.error:.3f}")
    top.legend(loc="upper left")
    bottom.bar(confidence, share, width=0.6 / bins, color=BLUE, alpha=0.6)
    bottom.set(xlim=(-0.02, 1.02), xlabel="confidence", ylabel="share")
    return figure


@styled(pyplot=True)
def pit(tree: xr.DataTree, *, held_out: bool = False, coverage: bool = False) -> Figure:
    """The empirical distribution function of the PIT values minus the uniform one, with a simultaneous band of 99 %.

    The PIT value of an observation is the share of its predictive draws below it, plus a random share of equal ones.

    Args:
        tree: a result of `pyrodrop.to_arviz` for real y.
        held_out: use the test data instead of the training data; `to_arviz` must have been called with them.
        coverage: plot the coverage of central intervals instead.

    Raises:
        ValueError: `held_out` for a tree without test observations, or a tree of several models.
    """
    if "model" in tree["posterior_predictive"].dims:
        models = ", ".join(tree["posterior_predictive"].to_dataset()["model"].values)
        raise ValueError(f"tree must be of one model: tree.sel(model=..., drop=True); got one of {models}")
    group, data, name = "posterior_predictive", "observed_data", "y"
    if held_out:
        if "y_observed" not in tree.children.get("predictions_constant_data", {}):
            raise ValueError("the tree has no held-out observations: make it with to_arviz(fit, train, test)")
        group, data, name = "predictions", "predictions_constant_data", "y_observed"
    drawn, y = tree[group].to_dataset()["y"], tree[data].to_dataset()[name]
    below, equal = ((drawn < y).mean(("chain", "draw")).values, (drawn == y).mean(("chain", "draw")).values)
    values = (below + equal * np.random.default_rng(0).uniform(size=equal.shape)).ravel()
    figure, (axes,) = subplots(1, 1, (4.2, 3.2))
    draw_ecdf(axes, 2 * np.abs(values - 0.5) if coverage else values, 0.01, BLUE)
    axes.set(xlabel="probability of the central interval" if coverage else "PIT", ylabel="ECDF - uniform")
    return figure


@styled(pyplot=True)
def k_hat(loo: Loo) -> Figure:
    """ArviZ's plot of the Pareto k-hat per observation.

    Raises:
        ValueError: the `Loo` has no k-hat values.
    """
    from arviz_plots import plot_khat  # slow to import

    if loo.elpd_data is None:
        raise ValueError(f"there is no k-hat to plot: {loo.reason}")
    options: Any = {"visuals": {"hlines": {}}, "figure_kwargs": {"FigureClass": OfPyplot}}
    figure: Figure = plot_khat(loo.elpd_data, backend="matplotlib", **options).viz["figure"].item()
    figure.set_layout_engine("constrained")
    return figure


@styled(pyplot=True)
def weights(fit: Fit, num_samples: int = 200, *, seed: int = 0) -> Figure:
    """Histograms per layer of posterior samples of all its weights, and of samples from their prior if it is proper.

    Raises:
        TypeError: the model is not one of `pyrodrop.models`, or the guide not one of `pyrodrop.guides`.
    """
    model, guide = fit.model, fit.guide
    if not isinstance(model, NetworkModel) or not hasattr(guide, "draw"):
        raise TypeError("plots.weights needs a fit of a model of pyrodrop.models with a guide of pyrodrop.guides")
    with seeded(seed, fit.device):
        drawn = {name: _thinned(value) for name, value in guide.draw(num_samples).items()}
        prior = {name: _prior_draws(model, name, num_samples) for name in drawn}
    columns = min(4, len(drawn))
    figure, panels = subplots(-(-len(drawn) // columns), columns, (2.9 * columns, 2.6 * -(-len(drawn) // columns)))
    for axes, (name, posterior) in zip(panels, drawn.items(), strict=False):
        after, before = posterior.numpy(), prior[name]
        ends = np.quantile(after, [0.002, 0.998])
        if before is not None:
            ends = np.quantile(np.concatenate([after, before.numpy()]), [0.005, 0.995])
        edges = np.linspace(*_apart(ends), 61).tolist()
        if before is not None:
            _outline(axes, before.numpy(), edges, color=GREY, label=f"prior {model.priors[name].describe()}")
        axes.hist(after, bins=edges, weights=_density(after, edges), color=BLUE, alpha=0.55, label="posterior")
        axes.set_yscale("log")
        axes.set_ylim(top=axes.get_ylim()[1] * 10)  # room for the legend
        axes.set_title(name, fontsize=8)
        axes.legend(fontsize=6, loc="upper left")
    for axes in panels[len(drawn) :]:
        axes.axis("off")
    figure.supylabel("density")
    return figure


def _thinned(values: Tensor) -> Tensor:
    flat = values.detach().double().cpu().flatten()
    return flat[:: max(1, len(flat) // _WEIGHTS)]


def _prior_draws(model: NetworkModel, name: str, num_samples: int) -> Tensor | None:
    """Samples from a prior; None if it cannot be sampled, for instance if it is improper."""
    prior, like = model.priors[name], model.weight_sites()[name]
    count = max(1, min(num_samples, _WEIGHTS // like.numel()))
    try:
        with poutine.block():
            return _thinned(torch.stack([prior.for_site(name, like).sample() for _ in range(count)]))
    except (NotImplementedError, ValueError):  # improper, or ARD without a hyperprior
        return None


def _density(values: Any, edges: Any) -> Any:
    """Weights for a density histogram that also counts values outside the edges."""
    return np.full(len(values), 1 / (len(values) * (edges[1] - edges[0])))


def _outline(axes: Axes, values: Any, edges: Any, **style: Any) -> None:
    axes.hist(values, bins=edges, weights=_density(values, edges), histtype="step", linewidth=1.2, **style)


def _apart(ends: Any) -> tuple[float, float]:
    low, high = float(ends[0]), float(ends[1])
    return (low, high) if high > low else (low - 0.5, high + 0.5)
