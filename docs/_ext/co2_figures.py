"""The pictures of the cards of the zoo's entries ``co2/...``, from a run: ``python docs/_ext/co2_figures.py runs/co2``.

They are written to ``_static/zoo`` and committed: a build trains nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

import xarray as xr
from matplotlib.figure import Figure
from themes import THEMES, Theme, themed

from pyrodrop.analysis.reports.style import RED

STATIC = Path(__file__).parents[1] / "_static"
ENTRIES = ("mc-dropout-relu", "mc-dropout-tanh-0.1", "mc-dropout-tanh-0.2", "mean-field")


def write(run: Path) -> None:
    """Write all pictures of a run.

    Raises:
        FileNotFoundError: the run has no draws.
        ValueError: it has not those of all models.
    """
    file = run / "draws.nc"
    with xr.open_datatree(file, engine="h5netcdf") as draws:
        missing = set(ENTRIES) - set(draws.children)
        if missing:
            raise ValueError(f"{file} has no draws of {', '.join(sorted(missing))}")
        for theme in THEMES:
            for name in ENTRIES:
                path = STATIC / "zoo" / "co2" / f"{name}-{theme.name}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(picture(draws, name, theme))


def picture(draws: xr.DataTree, name: str, theme: Theme) -> bytes:
    """A model's mean, bands of one and two standard deviations of f, and the observations."""
    with themed(theme):
        figure = Figure(figsize=(7.2, 2.9), layout="constrained")
        axes, seen = figure.subplots(), draws["observed_data"].to_dataset()
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
        low, high = float(seen["y"].min()), float(later["observed"].max())
        axes.set_ylim(low - 0.25 * (high - low), high + 0.35 * (high - low))
        axes.set_ylabel("CO$_2$, ppm")
        return theme.png(figure)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
