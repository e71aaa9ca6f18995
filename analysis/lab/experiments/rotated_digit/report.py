"""The tables and the figure of the rotated digit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from pyrodrop.analysis.lab import tidy
from pyrodrop.analysis.reports.style import BLACK, BLUE, GREY, RED, SERIES, styled

CLASSES = (1, 5, 7)  # classes that the paper's figure shows
_INNER = (0.05, 0.95)  # quantiles that bound the spread of a class's softmax inputs


@dataclass(frozen=True)
class Turned:
    """Predictions of S networks for one digit at A angles.

    Attributes:
        images: the rotated digit, ``[A, 28, 28]``.
        degrees: angles, ``[A]``.
        logits: softmax inputs, ``[S, A, 10]``.
        entropy: predictive entropy of the label, in nats, ``[A]``.
        information: mutual information of label and network, in nats, ``[A]``.
    """

    images: Tensor
    degrees: Tensor
    logits: Tensor
    entropy: Tensor
    information: Tensor

    @property
    def probabilities(self) -> Tensor:
        """Softmax outputs, ``[S, A, 10]``."""
        return self.logits.softmax(-1)

    @property
    def called(self) -> list[int]:
        """The class with the largest mean probability at each angle."""
        return self.probabilities.mean(0).argmax(-1).tolist()

    def crosses(self) -> list[bool]:
        """Whether, by angle, the 5 % to 95 % ranges of the softmax inputs of the two most probable classes overlap."""
        low, high = (self.logits.quantile(q, 0) for q in _INNER)
        top = self.probabilities.mean(0).topk(2, -1).indices
        return (low.gather(1, top[:, :1]) < high.gather(1, top[:, 1:])).flatten().tolist()

    def table(self) -> dict[str, dict[str, Any]]:
        """By angle: the class, whether spreads cross, entropy, information, and mean and sd of the three probabilities."""
        p, crosses, rows = self.probabilities, self.crosses(), {}
        for a, angle in enumerate(self.degrees.tolist()):
            row: dict[str, Any] = {"class": self.called[a], "crosses": crosses[a]}
            row |= {"entropy": float(self.entropy[a]), "mutual_information": float(self.information[a])}
            for c in CLASSES:
                row |= {f"p({c})": float(p[:, a, c].mean()), f"sd_p({c})": float(p[:, a, c].std())}
            rows[f"{angle:.1f}"] = row
        return rows


def rows_of(content: Mapping[str, Any], published: Sequence[int]) -> list[tidy.Row]:
    """The rows of a table of results: by angle, means over every 1 of the test set beside this one, and by prediction."""
    angles = zip(content["angles"].items(), published, strict=True)
    key = {"study": "rotated-digit"}
    rows: list[tidy.Row] = [
        key | {"problem": "angles", "method": angle, "class, published": theirs} | {n: float(v) for n, v in row.items()}
        for (angle, row), theirs in angles
    ]
    for name, row in content["scores"].items():
        turned = {"AUROC, turned": content["auroc"]["mean"][name]}
        rows.append(key | {"problem": "10,000 test digits", "method": name} | row | turned)
    if content["difference"]:
        apart = {
            f"{n}{end}": row[k]
            for n, row in content["difference"].items()
            for end, k in (("", "difference"), (" se", "se"))
        }
        rows.append(key | {"problem": "10,000 test digits", "method": "second less first"} | apart)
    return rows


@styled()
def draw(shown: Turned, content: Mapping[str, Any]) -> Figure:
    """The digit, softmax inputs and outputs, entropies, and the AUROC of the entropy for rotated digits."""
    figure = Figure(figsize=(11, 7.4), layout="constrained")
    panels = figure.subplot_mosaic([["input", "output"], ["entropy", "auroc"]])
    for name, values, label in (
        ("input", shown.logits, "softmax input"),
        ("output", shown.probabilities, "softmax output"),
    ):
        _scatter(panels[name], values, shown, label)
        panels[name].legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, markerscale=4, borderpad=0)
    panels["output"].set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    _entropies(panels["entropy"], shown, content["angles"])
    _auroc(panels["auroc"], content["auroc"])
    for axes in panels.values():
        axes.set_xticks(shown.degrees.tolist(), [f"{angle:.0f}" for angle in shown.degrees.tolist()])
        axes.set_xlim(-9, 189)
        axes.set_xlabel("degrees turned")
    return figure


def _scatter(axes: Axes, values: Tensor, shown: Turned, label: str) -> None:
    """One dot per network, the classes side by side at every angle, and the digit above."""
    generator = torch.Generator().manual_seed(0)
    for place, (c, color) in enumerate(zip(CLASSES, SERIES, strict=False)):
        for a, angle in enumerate(shown.degrees.tolist()):
            jitter = 3 * (torch.rand(len(values), generator=generator) - 0.5)
            x = angle + 4 * (place - 1) + jitter
            title = f"class {c}" if a == 0 else None
            axes.scatter(x, values[:, a, c], s=5, color=color, alpha=0.5, linewidths=0, label=title)
    axes.set_ylabel(label)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.22 * (high - low))
    for image, angle in zip(shown.images, shown.degrees.tolist(), strict=True):
        inset = axes.inset_axes(
            (angle - 7, high + 0.08 * (high - low), 14, 0.13 * (high - low)), transform=axes.transData
        )
        inset.imshow(image, cmap="gray_r", aspect="auto")
        inset.axis("off")


def _entropies(axes: Axes, shown: Turned, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Entropies of this digit, and means over all digits of its class."""
    degrees = shown.degrees.tolist()
    axes.plot(degrees, shown.entropy, "o-", color=BLACK, markersize=4, label="entropy H[y]")
    axes.plot(degrees, shown.information, "s-", color=RED, markersize=4, label="mutual information I[y; f]")
    for key, color in (("all_entropy", BLACK), ("all_mutual_information", RED)):
        axes.plot(degrees, [row[key] for row in rows.values()], ":", color=color)
    axes.plot([], [], ":", color=GREY, label="means over all ones of the test set")
    axes.set_ylabel("nats")
    axes.set_ylim(0, 1.3 * axes.get_ylim()[1])
    axes.legend(loc="upper right")


def _auroc(axes: Axes, rows: Mapping[str, Mapping[str, float]]) -> None:
    """AUROC of the entropy as a score of rotated digits."""
    angles = [name for name in rows if name != "mean"]
    for name, color in zip(rows["mean"], (GREY, BLUE), strict=False):
        axes.plot(
            [float(a) for a in angles], [rows[a][name] for a in angles], "o-", color=color, markersize=4, label=name
        )
    axes.set_ylabel("AUROC of the entropy, turned digits against upright")
    axes.axhline(0.5, color=GREY, linewidth=0.8)
    axes.legend()
