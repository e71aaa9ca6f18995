"""The small figure of a run for a front page: ``python -m pyrodrop.analysis.lab.experiments.co2.front RUN_FOLDER FOLDER``.

Four posteriors from the run's draws.nc, as FOLDER/co2-light.png and FOLDER/co2-dark.png, for white and for dark backgrounds.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from cyclopts import App
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from pyrodrop.analysis.reports.style import BLUE, INK, ORANGE, RED, SKY, styled, transparent_png
from pyrodrop.files import whole

PANELS = {
    "weight-averaging": "Standard dropout: one curve, no doubt",
    "mc-dropout-relu": "MC dropout, ReLU: less sure with distance",
    "mc-dropout-tanh-0.1": "MC dropout, TanH: sure of a constant",
    "gp-se": "Gaussian process, squared exponential",
}
_DOTS_PER_INCH, _COLOURS = 200, 128  # enough for two screens' worth of dots, in a small file


class Theme(NamedTuple):
    """Colours of text and held-out observations, of the model, and of the training observations."""

    ink: str
    model: str
    observed: str
    shade: float  # opacity of each of two bands


THEMES = {"light": Theme(INK["light"], BLUE, RED, 0.22), "dark": Theme(INK["dark"], SKY, ORANGE, 0.28)}


@styled()
def draw(draws: Path, theme: Theme) -> Figure:
    """The figure of a run's draws.nc, on a transparent background."""
    figure = Figure(figsize=(8.2, 4.0), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey=True).ravel()
    with xr.open_datatree(draws, engine="h5netcdf") as tree:
        for axes, (name, title) in zip(panels, PANELS.items(), strict=True):
            _panel(axes, tree, name, theme)
            axes.set_title(title, color=theme.ink, fontsize=10)
        seen = _values(tree, "observed_data/y")
    low, high = float(seen.min()), float(seen.max())
    panels[0].set_ylim(low - 0.5 * (high - low), high + 1.6 * (high - low))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, labelcolor=theme.ink, fontsize=9)
    figure.supylabel("CO₂ at Mauna Loa, ppm", color=theme.ink, fontsize=9)
    return figure


def _panel(axes: Axes, tree: xr.DataTree, name: str, theme: Theme) -> None:
    x, f = _values(tree, f"{name}/curve/x"), _values(tree, f"{name}/curve/f")[0]
    mean, sd = f.mean(0), f.std(0)
    for k in (2, 1):
        label = "mean of f ± 1, 2 sd" if k == 1 else None
        axes.fill_between(
            x, mean - k * sd, mean + k * sd, color=theme.model, alpha=theme.shade, linewidth=0, label=label
        )
    axes.plot(x, mean, color=theme.model, linewidth=1.4, label="predictive mean")
    months = _values(tree, "observed_data/x")
    axes.plot(months, _values(tree, "observed_data/y"), color=theme.observed, linewidth=1.0, label="training months")
    if "observed" in tree[f"{name}/predictions"]:
        later = [_values(tree, f"{name}/predictions/{what}") for what in ("x", "observed")]
        axes.plot(*later, color=theme.ink, linewidth=0.7, label="held-out months")
    axes.axvline(float(months.max()), color=theme.ink, linestyle=":", linewidth=0.8)
    axes.patch.set_alpha(0)
    axes.tick_params(colors=theme.ink, labelsize=8)
    for spine in axes.spines.values():
        spine.set_color(theme.ink)


def _values(tree: xr.DataTree, path: str) -> Any:
    return np.asarray(tree[path])


def write(run: Path, folder: Path) -> list[Path]:
    """Write both files and return their paths.

    Raises:
        ValueError: `run` has no draws.nc, or `folder` is no folder.
    """
    draws = run / "draws.nc"
    if not draws.is_file():
        raise ValueError(f"run must be a folder with a draws.nc, as pyrodrop run co2 writes it; got {run}")
    if not folder.is_dir():
        raise ValueError(f"folder must be an existing folder for the figures; got {folder}")
    paths = []
    for name, theme in THEMES.items():
        file = io.BytesIO(transparent_png(draw(draws, theme), _DOTS_PER_INCH))
        few = Image.open(file).quantize(_COLOURS, method=Image.Quantize.FASTOCTREE)
        paths.append(folder / f"co2-{name}.png")
        with whole(paths[-1]) as file_of_figure:
            few.save(file_of_figure, format="png", optimize=True)
    return paths


if __name__ == "__main__":
    App(default_command=write, result_action="return_none")()
