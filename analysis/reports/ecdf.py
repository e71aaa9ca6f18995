"""Plots that show whether PIT values are uniform, as they are for a calibrated model.

Säilynoja, Bürkner & Vehtari (2022), Graphical test for discrete uniformity, https://doi.org/10.1007/s11222-022-10090-6. The
band is ArviZ's. Its figures are not used: they depend on its version, and in ArviZ 1 they are smoothed and have no band.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from pyrodrop.analysis.reports.style import GREY


def draw_ecdf(axes: Axes, values: Any, level: float, color: str) -> None:
    """Draw the empirical distribution function of values ``[N]`` minus the uniform one.

    N uniform values leave the grey band somewhere with probability `level`.
    """
    at, _, low, high = _band(len(values), level)
    inside = (at > 0) & (at < 1)  # ArviZ 1 also returns the ends 0 and 1
    axes.fill_between(at, low - at, high - at, where=inside, color=GREY, alpha=0.25, linewidth=0)
    x = np.concatenate([[0.0], np.sort(values).repeat(2), [1.0]])
    axes.plot(x, np.linspace(0, 1, len(values) + 1).repeat(2) - x, color=color)


@functools.cache
def _band(count: int, level: float) -> Any:
    from arviz_stats.ecdf_utils import ecdf_pit  # slow to import

    return ecdf_pit(np.linspace(0, 1, count), 1 - level, 1000)
