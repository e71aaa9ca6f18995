"""The pictures of *Can I trust this band?*, of its own fit: ``python -P docs/_static/certified.py``."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure

import pyrodrop
from pyrodrop import data, guides, likelihoods, models, priors, zoo
from pyrodrop.analysis.reports.style import GREY, ORANGE

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "_ext"))

from themes import THEMES, Theme, inked, themed  # noqa: E402


def picture(bands: dict[str, torch.Tensor], x: torch.Tensor, points: data.Dataset, theme: Theme) -> bytes:
    """One panel per posterior: its mean, its band of 95 % for f, and the training rows."""
    with themed(theme):
        figure = Figure(figsize=(8.4, 2.6), layout="constrained")
        for axes, (name, f) in zip(figure.subplots(1, len(bands), sharey=True), bands.items(), strict=True):
            low, high = f.quantile(torch.tensor([0.025, 0.975]), dim=0)
            axes.plot(points.x[:, 0], points.y[:, 0], ".", color=ORANGE, markersize=3)
            axes.fill_between(x[:, 0], low, high, color=theme.model, alpha=0.35, linewidth=0)
            axes.plot(x[:, 0], f.mean(0), color=theme.model)
            axes.set(title=name, xlabel="x", ylim=(-4, 4))
            for edge in (points.x.min(), points.x.max()):
                axes.axvline(float(edge), color=GREY, linewidth=0.8, linestyle=":")
        figure.axes[0].set_ylabel("f(x), bands of 95 %")
        return theme.png(inked(figure, theme))


def main() -> None:
    """Fit and certify as the page does, sample the exact posterior, and write a picture for each theme."""
    points = zoo.SOURCES["toys/snelson"].load()[0].train
    model = models.MLP([1, 50, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian())
    run = pyrodrop.fit(model, guides.BernoulliDropout(model, 0.02), points.standardized(), steps=1000, lr=1e-2)
    print(run.certify(refits=32))
    noise = run.model.likelihood.precision.item()
    exact = models.MLP([1, 50, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(precision=noise))
    sampled = pyrodrop.sample(exact, points.standardized())
    print(sampled.diagnostics())
    x = torch.linspace(float(points.x.min()) - 3, float(points.x.max()) + 3, 200)[:, None]
    bands = {
        "as trained": run.predict(x, 2000).f[..., 0],
        "certified": run.predict(x, 2000, certified=True).f[..., 0],
        "exact posterior": sampled.predict(x, 2000).f[..., 0],
    }
    for theme in THEMES:
        (HERE / f"certified-{theme.name}.png").write_bytes(picture(bands, x, points, theme))


if __name__ == "__main__":
    main()
