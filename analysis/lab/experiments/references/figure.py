"""The spread of f of every posterior over that of the exact posterior, along a line through the data and beyond.

from pyrodrop.analysis.lab.experiments.references import facts, figure
write_figure(Path("energy.png"), figure(facts("energy")))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pyrodrop.analysis.reports.style import BLACK, GREY, SERIES, styled

_RANGE = (0.02, 50.0)  # limits of the ratio's axis


@styled()
def figure(content: Mapping[str, Any]) -> Figure:
    """Two panels, of single fits and of ensembles, by the content of a problem's file (see `stored`).

    The ratio is on a logarithmic scale: below 1 a posterior is narrower than the exact one. A posterior without spread, such
    as a point estimate, is not shown. Ticks at the bottom are training data.
    """
    line = content["line"]
    names = list(dict.fromkeys(row["method"] for row in content["rows"] if "seed" in row))
    made = Figure(figsize=(9, 3.4), layout="constrained")
    panels = made.subplots(1, 2, sharex=True, sharey=True)
    for axes, prefix, title in zip(
        panels, ("", "ensemble "), ("one fit, mean of five", "ensemble of five"), strict=True
    ):
        axes.axvspan(-1, 1, color=GREY, alpha=0.1, linewidth=0)
        axes.axhline(1.0, color=BLACK, linewidth=1.0)
        for name, color in zip(names, SERIES, strict=False):
            ratio = np.array(line[prefix + name], dtype=float)
            if np.nanmax(ratio) > 0:
                axes.plot(line["t"], ratio, color=color, linewidth=1.3)
        places = {"markersize": 6, "markeredgewidth": 0.6, "transform": axes.get_xaxis_transform()}
        axes.plot(line["data"], [0.02] * len(line["data"]), "|", color=BLACK, **places)
        axes.set(title=title, yscale="log", ylim=_RANGE, xlim=(line["t"][0], line["t"][-1]), xlabel="t along the line")
    panels[0].set_ylabel("spread of f over the exact posterior's")
    handles = [panels[0].plot([], [], color=color)[0] for _, color in zip(names, SERIES, strict=False)]
    made.legend(handles, names, loc="outside right center", fontsize=8)
    made.suptitle(f"{content['problem']}: {content['recipe']['summary']}", fontsize=9)
    return made
