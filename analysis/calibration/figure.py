"""Figures of PIT values with simultaneous bands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from matplotlib.figure import Figure
from torch import Tensor

from pyrodrop.analysis.calibration.uniformity import LEVEL
from pyrodrop.analysis.reports.style import BLUE, RED, draw_ecdf, styled, subplots

_PANEL = (2.6, 2.1)  # inches


class Calibrated(Protocol):
    """The properties of a result that the figure uses, see `pyrodrop.analysis.calibration.result.SBC`."""

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
    uniform one, with a simultaneous band of level 0.05 over the number of quantities. Lines of problems are red.

    Args:
        results: results by name, with the same quantities and equally many data sets.

    Raises:
        ValueError: there are no results, or their quantities or numbers of data sets differ.
    """
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
    columns = len(first.ranks) if len(results) > 1 else min(4, len(first.ranks))
    rows = -(-len(panels) // columns)
    figure, grid = subplots(rows, columns, (columns * _PANEL[0], rows * _PANEL[1]), sharex=True)
    for axes, (title, (result, quantity)) in zip(grid, panels.items(), strict=False):
        color = RED if quantity in result.problems else BLUE
        draw_ecdf(axes, result.pit[quantity].numpy(), LEVEL / len(first.ranks), color)
        axes.set_title(title)
    for axes in grid[len(panels) :]:
        axes.axis("off")
    figure.supxlabel("PIT")
    figure.supylabel("ECDF of the PIT values - uniform")
    return figure
