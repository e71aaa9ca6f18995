"""The pictures of Neal's funnel in *Sampling*: ``python -P docs/_static/funnel.py``."""

from __future__ import annotations

import sys
from pathlib import Path

import pyro
import pyro.distributions as dist
from matplotlib.figure import Figure
from pyro.infer.reparam import LocScaleReparam
from pyro.poutine import reparam

import pyrodrop
from pyrodrop.analysis.reports.style import GREY, ORANGE
from pyrodrop.sampling import Sampled

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "_ext"))

from themes import THEMES, Theme, inked, themed  # noqa: E402

CHAINS = 4  # that are shown


def funnel() -> None:
    """Neal (2003), centred."""
    v = pyro.sample("v", dist.Normal(0.0, 3.0))
    with pyro.plate("coordinates", 9):
        pyro.sample("x", dist.Normal(0.0, (v / 2).exp()))


def picture(runs: dict[str, Sampled], theme: Theme) -> bytes:
    """One panel per run: traces of v, divergent trajectories, and two standard deviations of its distribution."""
    with themed(theme):
        figure = Figure(figsize=(8.4, 2.8), layout="constrained")
        for axes, (name, sampled) in zip(figure.subplots(1, len(runs), sharey=True), runs.items(), strict=True):
            v, found = sampled.samples["v"], sampled.diagnostics()
            axes.plot(v[:CHAINS].T, color=theme.model, linewidth=0.6, alpha=0.8)
            chains, draws = sampled.stats["diverging"].nonzero().T
            axes.plot(draws, v[chains, draws], "o", color=ORANGE, markersize=4)
            for edge in (-6, 6):
                axes.axhline(edge, color=GREY, linewidth=0.8, linestyle=":")
            numbers = f"R-hat {found.r_hat_f:.2f}, {found.diverging} divergent, E-BFMI {found.e_bfmi:.2f}"
            axes.set(title=f"{name}\n{numbers}", xlabel="draw", ylim=(-12, 12))
        figure.axes[0].set_ylabel(f"v, {CHAINS} of 64 chains")
        return theme.png(inked(figure, theme))


def main() -> None:
    """Sample the funnel as it is and in other coordinates, and write a picture for each theme."""
    other = reparam(funnel, config={"x": LocScaleReparam(0.0)})
    programs = {"as it is": funnel, "by LocScaleReparam(0.0)": other}
    runs = {name: pyrodrop.sample(program, (), device="cpu", progress=False) for name, program in programs.items()}
    for theme in THEMES:
        (HERE / f"funnel-{theme.name}.png").write_bytes(picture(runs, theme))


if __name__ == "__main__":
    main()
