"""The pictures of Mauna Loa CO2, from a run: ``pyrodrop run co2``, then ``python docs/_ext/co2_figures.py runs/co2``.

Written are ``_static/co2-light.png`` and ``co2-dark.png`` of the front page, with three models of the run, and those of the
cards of the zoo's entries ``co2/...`` in ``_static/zoo``. They are committed: a build trains nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from themes import THEMES, Theme, themed

from pyrodrop.analysis.reports.runs import read_run
from pyrodrop.analysis.reports.style import RED

STATIC = Path(__file__).parents[1] / "_static"
FRONT = {"weight-averaging": "standard dropout", "mc-dropout-relu": "MC dropout, ReLU", "gp-se": "Gaussian process"}
ENTRIES = ("mc-dropout-relu", "mc-dropout-tanh-0.1", "mc-dropout-tanh-0.2", "mean-field")


def write(run: Path) -> None:
    """Write all pictures of a run.

    Raises:
        ValueError: the run has no draws, or not those of all models.
    """
    file = read_run(run).draws
    if file is None:
        raise ValueError(f"{run} has no draws.nc")
    with xr.open_datatree(file, engine="h5netcdf") as draws:
        missing = {*FRONT, *ENTRIES} - set(draws.children)
        if missing:
            raise ValueError(f"{file} has no draws of {', '.join(sorted(missing))}")
        for theme in THEMES:
            (STATIC / f"co2-{theme.name}.png").write_bytes(picture(draws, FRONT, theme, (9.6, 2.5)))
            for name in ENTRIES:
                path = STATIC / "zoo" / "co2" / f"{name}-{theme.name}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(picture(draws, {name: ""}, theme, (7.2, 2.9)))


def picture(draws: xr.DataTree, models: Mapping[str, str], theme: Theme, size: tuple[float, float]) -> bytes:
    """A panel per model with its mean, bands of one and two standard deviations of f, and the observations."""
    with themed(theme):
        figure = Figure(figsize=size, layout="constrained")
        panels: Sequence[Axes] = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
        seen = draws["observed_data"].to_dataset()
        for axes, (name, title) in zip(panels, models.items(), strict=True):
            curve = draws[f"{name}/curve"]
            x, f = curve["x"].to_numpy(), curve["f"].to_numpy()[0]
            mean, sd = f.mean(0), f.std(0, ddof=1)
            for width in (2, 1):
                axes.fill_between(x, mean - width * sd, mean + width * sd, color=theme.model, alpha=0.25, linewidth=0)
            axes.plot(x, mean, color=theme.model, linewidth=1.2)
            axes.plot(seen["x"], seen["y"], color=RED, linewidth=0.9)
            later = draws[f"{name}/predictions"]
            axes.plot(later["x"], later["observed"], color=theme.ink, linewidth=0.6)
            axes.axvline(float(seen["x"].max()), color=theme.ink, linestyle=":", linewidth=0.8)
            axes.set_title(title)
        low, high = float(seen["y"].min()), float(later["observed"].max())
        panels[0].set_ylim(low - 0.25 * (high - low), high + 0.35 * (high - low))
        panels[0].set_ylabel("CO$_2$, ppm")
        return theme.png(figure)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
