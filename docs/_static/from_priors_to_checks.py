"""The pictures of the front page, from the cells of notebook 12: ``python -P docs/_static/from_priors_to_checks.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import matplotlib
from matplotlib.figure import Figure

from pyrodrop.analysis.reports.style import INK, transparent_png

HERE = Path(__file__).parent
NOTEBOOK = HERE.parents[1] / "analysis" / "lab" / "notebooks" / "12_from_priors_to_checks.py"


def main() -> None:
    """Run the notebook as far as its figure, and write it for pages of both themes."""
    matplotlib.use("agg")
    cells, names = NOTEBOOK.read_text(encoding="utf-8").partition("# ## ELBOs")[0], dict[str, Any]()
    with mock.patch("matplotlib.pyplot.show"):
        exec(compile(cells, NOTEBOOK.name, "exec"), names)
    figure: Figure = names["figure"]
    for theme, ink in INK.items():
        for axes in figure.axes:
            axes.patch.set_alpha(0)
            axes.title.set_color(ink)
            axes.tick_params(colors=ink)
            axes.spines[:].set_color(ink)
            axes.spines[["top", "right"]].set_visible(False)
        (HERE / f"from-priors-to-checks-{theme}.png").write_bytes(transparent_png(figure, 130))


if __name__ == "__main__":
    main()
