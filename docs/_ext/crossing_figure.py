"""The figure of docs/scale.md: network-steps a second over the number of networks: ``python docs/_ext/crossing_figure.py``.

It is drawn from the stored results and committed, ``_static/crossing-light.svg`` and ``-dark.svg``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from themes import THEMES, Theme, themed

from pyrodrop.analysis.reports.style import RED

ROOT = Path(__file__).parents[2]
DEVICES = {"cuda": ("H100", "-"), "cpu": ("one CPU thread", ":")}
KINDS = {"ours": "pyrodrop", "JAX, jitted": "jax.vmap", "torch.func, compiled": "torch.func"}


def results(device: str) -> dict[int, dict[str, Any]]:
    """Of a device, by the number of networks."""
    path = ROOT / "analysis" / "lab" / "benchmarks" / "results" / f"crossing-{device}.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["networks"]
    return {int(count.replace(",", "")): row for count, row in rows.items()}


def drawn(theme: Theme) -> bytes:
    """A line for each kind and device."""
    with themed(theme):
        figure = Figure(figsize=(7.2, 3.4), layout="constrained")
        axes = figure.subplots()
        for kind, color in zip(KINDS, (theme.model, RED, theme.ink), strict=True):
            for device, (name, style) in DEVICES.items():
                rows = results(device)
                counts = sorted(rows)
                speeds = [rows[count][kind]["steps a second"] for count in counts]
                axes.plot(counts, speeds, style, color=color, marker=".", label=f"{KINDS[kind]}, {name}")
        axes.set(xscale="log", yscale="log", xlabel="networks 13-50-1 at once", ylabel="network-steps a second")
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return theme.svg(figure)


if __name__ == "__main__":
    for theme in THEMES:
        (ROOT / "docs" / "_static" / f"crossing-{theme.name}.svg").write_bytes(drawn(theme))
