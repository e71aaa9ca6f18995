"""ArviZ's figure of PIT values with simultaneous bands."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from torch import Tensor

from pyrodrop.analysis.calibration.uniformity import LEVEL
from pyrodrop.analysis.reports.style import BLUE, GREY, OF_PYPLOT, RED, figure_of, styled

_PANEL = (2.6, 2.1)  # inches


class Calibrated(Protocol):
    """What the figure needs of a result, see `pyrodrop.analysis.calibration.result.SBC`."""

    @property
    def ranks(self) -> dict[str, Tensor]: ...
    @property
    def count(self) -> int: ...
    @property
    def pit(self) -> dict[str, Tensor]: ...
    @property
    def problems(self) -> dict[str, str]: ...


@styled(pyplot=True)
def plot_sbc(results: Mapping[str, Calibrated]) -> Figure:
    """One row of panels per result, one panel per quantity: the empirical distribution function of the PIT values minus the
    uniform one, with a simultaneous band of level 0.05 over the number of quantities. Lines that leave it are orange.

    Args:
        results: by name, with the same quantities and equally many data sets.

    Raises:
        ValueError: there are none, or their quantities or numbers of data sets differ.
    """
    from arviz_stats.ecdf_utils import ecdf_pit

    from pyrodrop.analysis.comparison.az import az

    if not results:
        raise ValueError("results must contain at least one result by name; got none")
    first = next(iter(results.values()))
    for name, result in results.items():
        if result.ranks.keys() != first.ranks.keys() or result.count != first.count:
            raise ValueError(
                "results in one figure need the same quantities and equally many data sets; the first has "
                f"{', '.join(first.ranks)} in {first.count}, and {name!r} {', '.join(result.ranks)} in {result.count}"
            )
    panels = {
        f"{name}\n{quantity}" if name else quantity: (result, quantity)
        for name, result in results.items()
        for quantity in result.ranks
    }
    values = {title: result.pit[quantity].numpy()[None] for title, (result, quantity) in panels.items()}
    columns = len(first.ranks) if len(results) > 1 else min(4, len(first.ranks))
    rows = -(-len(panels) // columns)
    plotted = az.plot_ecdf_pit(
        xr.DataTree.from_dict({"prior_sbc": xr.Dataset({n: (("chain", "draw"), v) for n, v in values.items()})}),
        backend="matplotlib",
        col_wrap=columns,
        figure_kwargs={"figsize": (columns * _PANEL[0], rows * _PANEL[1]), "sharey": False, **OF_PYPLOT},
        visuals=dict.fromkeys(_left_out(az), False),
    )
    at, _, low, high = ecdf_pit(np.linspace(0, 1, first.count), 1 - LEVEL / len(first.ranks), 1000)
    for title, (result, quantity) in panels.items():
        line = plotted.viz["ecdf_lines"][title].item()
        line.set_color(RED if quantity in result.problems else BLUE)
        x, y = line.get_data()
        below = np.linspace(0, x[0], 100)  # where ArviZ draws no line the distribution function is 0
        line.set_data((*below, *x), (*-below, *y))
        line.axes.fill_between(at, low - at, high - at, color=GREY, alpha=0.25, linewidth=0)
    figure = figure_of(plotted)
    figure.supylabel("ECDF of the PIT values - uniform")
    return figure


def _left_out(az: Any) -> list[str]:
    """What `plot_ecdf_pit` must not draw: its bands, which ArviZ 1 replaces by another test, and the axes' removal."""
    newer = "envelope_prob" in inspect.signature(az.plot_ecdf_pit).parameters
    return ["credible_interval", "remove_axis", *(["suspicious_points", "p_value_text"] if newer else [])]
