"""Classification of a rotated digit 1 (Gal & Ghahramani 2016, section 5.2, figure 4).

LeNet-5 is trained on MNIST with dropout after its first dense layer. A 1 of the test set is rotated to 12 angles from 0 to
180 degrees and classified by 100 networks sampled from the posterior. Reported are softmax inputs and outputs and, by angle,

    H[y]      the entropy of the mean probabilities          I[y; f]      the mutual information of label and network

the same for every 1 of the test set, and the difference between predictions with 100 samples and with averaged weights on
the test set: calibration error, log density, Brier score, and how well the entropy separates rotated from upright digits.
The paper states neither its digit nor its angles: a search among 100 ones finds those that agree best with its classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from scipy.stats import mannwhitneyu
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from pyrodrop import checks, zoo
from pyrodrop.analysis.lab.experiments.experiment import Experiment
from pyrodrop.analysis.lab.experiments.paired_scores import compared
from pyrodrop.analysis.lab.experiments.rotated_digit.report import Turned, draw, rows_of
from pyrodrop.analysis.reports.folder import say_reused
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.analysis.zoo.averaged import averaged
from pyrodrop.analysis.zoo.train import fit_resumed
from pyrodrop.checks import known
from pyrodrop.data import Dataset, mnist
from pyrodrop.guides import Guide
from pyrodrop.metrics import entropy_split, predictive_entropy
from pyrodrop.training.checkpoint import Checkpoint
from pyrodrop.training.result import Fit
from pyrodrop.zoo.entries import PAPER_STEPS

DIGIT, ANGLES, DRAWS = 1, 12, 100
SEARCHED, SEARCH_DRAWS = 100, 20
SAVED_EVERY = 1000  # steps of the default preset
PUBLISHED = (1, 1, 1, 1, 1, 5, 5, 7, 7, 7, 7, 7)  # the paper's classification of its 1 at each angle
SHOWN = 500  # number of test digits for the AUROC
SET = "rotated-digit/"
GUIDES = tuple(name.removeprefix(SET) for name in zoo.ENTRIES if name.startswith(SET))


def turned(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate every square image ``[N, C, H, H]`` counterclockwise by every angle ``[A]``: ``[A, N, C, H, H]``.

    x'(r) = x(R(-angle) r),   zero outside,   bilinear between pixels
    """
    angles, (n, *shape) = torch.deg2rad(degrees.to(images)), images.shape
    cos, sin, zero = angles.cos(), angles.sin(), torch.zeros_like(angles)
    # The source position of each pixel, with x to the right and y down: counterclockwise as displayed.
    back = torch.stack([torch.stack([cos, -sin, zero], -1), torch.stack([sin, cos, zero], -1)], 1)
    count = len(angles)
    grid = affine_grid(back, [count, n * shape[0], *shape[1:]], align_corners=False)
    stack = images.reshape(1, n * shape[0], *shape[1:]).expand(count, -1, -1, -1)
    return grid_sample(stack, grid, align_corners=False).reshape(count, n, *shape)


@with_job_options("device")
def run(
    job: JobOptions,
    *,
    preset: Literal["default", "paper"] = "default",
    guide: str = "bernoulli",
    digit: int = 1,
    turn: float = 180.0,
    steps: int | None = None,
    out: Path = Path("runs/rotated-digit"),
) -> dict[str, Any]:
    """Train, predict for the rotated digits, print the tables and plot the figure.

    Args:
        preset: default trains for 10,000 iterations, minutes on two cores; paper for a million.
        guide: the posterior: bernoulli is the paper's; drop-connect, concrete, gaussian-a, gaussian-b, variational-a,
            variational-a2, variational-b, sparse, ard, mean-field, low-rank, ensemble.
        digit: index of the 1 of the test set to rotate, from 0. The paper does not state its choice.
        turn: angle of the last of the 12 views in degrees, counterclockwise. The paper does not state its value.
        steps: gradient steps; those of the preset if not given.
        out: folder for results.json, figure.png and fit.safetensors. An interrupted run continues from
            training.safetensors there.

    Returns:
        What is written to results.json.
    """
    if not 0 < turn <= 360:
        raise ValueError(f"turn is the largest angle in degrees and must lie in (0, 360]; got {turn}")
    known(guide, GUIDES, "posterior of the rotated digit")
    split = mnist(flat=False)
    steps = None if steps is None else checks.count(steps, "steps", "the number of gradient steps")
    ones = split.test.x[split.test.y == DIGIT]
    if not 0 <= digit < len(ones):
        raise ValueError(f"digit counts the {len(ones)} ones of the test set from 0; got {digit}")
    about: dict[str, Any] = {"preset": preset, "guide": guide, "digit": digit, "turn": turn}
    longer = preset == "paper"  # continues from its checkpoint to more steps
    with Experiment.begin("rotated-digit", out, job, about if longer else {**about, "steps": steps}) as experiment:
        folder = experiment.folder
        options: dict[str, Any] = {} if steps is None else {"steps": steps}
        if preset == "paper":
            options = {"steps": PAPER_STEPS, **options}
        checkpoint = folder / "training.safetensors"
        say_reused([checkpoint.name] if checkpoint.exists() else [], folder)
        fit = fit_resumed(
            zoo.entry(SET + guide), split.train,
            Checkpoint(checkpoint) if longer else Checkpoint(checkpoint, every=SAVED_EVERY),
            seed=job.seed, device=job.device, progress=job.progress, **options,
        )  # fmt: skip
        fit.save(folder / "fit.safetensors")

        degrees = torch.linspace(0, turn, ANGLES)
        views = turned(ones, degrees)
        shown = _turned(fit, views[:, digit], degrees, job.seed)
        everyone = _by_angle(fit, views, job.seed)
        predictors = {f"T = {DRAWS}": fit}
        if isinstance(fit.guide, Guide):
            predictors = {"weight averaging": averaged(fit), **predictors}
        scores, difference = compared(predictors, split.test, DRAWS, job.seed)
        table = shown.table()
        for row, values in zip(table.values(), everyone, strict=True):
            row |= values
        content = {
            "angles": table,
            "scores": scores,
            "difference": difference,
            "auroc": _auroc(predictors, split.test.first(SHOWN), degrees, job.seed),
            "published": {"classes": " ".join(map(str, PUBLISHED))},
            "search": search(_by_degree(fit, ones[:SEARCHED], job.seed)),
        }
        settings = {"posterior": guide, "draws": DRAWS, "turned_digits": SHOWN, **fit.settings}
        rows = rows_of(content, PUBLISHED)
        return experiment.write(content, rows=rows, settings=settings, figures={"figure": draw(shown, content)})


def _turned(fit: Fit, views: Tensor, degrees: Tensor, seed: int) -> Turned:
    """One digit at every angle: views ``[A, 1, 28, 28]``."""
    prediction = fit.predict(views, DRAWS, seed=seed)
    split = entropy_split(prediction)
    return Turned(views[:, 0], degrees, prediction.f, split.total, split.epistemic)


def _by_degree(fit: Fit, ones: Tensor, seed: int) -> list[list[int]]:
    """The class of every digit ``[N, 1, 28, 28]`` at 0, 1, ... 180 degrees."""
    views = (turned(digit[None], torch.arange(181.0))[:, 0] for digit in ones)
    return [fit.predict(each, SEARCH_DRAWS, seed=seed).mean.argmax(-1).tolist() for each in views]


def search(by_degree: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The digit and the largest angle for which most of 12 views, in equal steps from 0, are classified as in the paper.

    Args:
        by_degree: for every digit, its class at every whole degree from 0.

    Returns:
        ``digit`` and ``turn``, the first ones if several are equally good; their ``classes``, and how many are the ``same``
        as in the paper; the number of ``ones``, and ``whole``, the number of these for which all 12 can agree.
    """
    best: list[tuple[int, int, list[int]]] = []
    for classes in by_degree:
        views = [[classes[round(turn * n / (ANGLES - 1))] for n in range(ANGLES)] for turn in range(len(classes))]
        same = [sum(a == b for a, b in zip(view, PUBLISHED, strict=True)) for view in views]
        turn = same.index(max(same))
        best.append((same[turn], turn, views[turn]))
    digit = max(range(len(best)), key=lambda number: best[number][0])
    same_as_published, turn, shown = best[digit]
    return {
        "digit": digit, "turn": turn, "classes": shown, "same": same_as_published, "ones": len(best),
        "whole": sum(count == ANGLES for count, *_ in best),
    }  # fmt: skip


def _by_angle(fit: Fit, views: Tensor, seed: int) -> list[dict[str, float]]:
    """Mean entropy and information, and the share classified as 1, for all ones of the test set ``[A, N, 1, 28, 28]``."""
    rows = []
    for images in views:
        prediction = fit.predict(images, DRAWS, seed=seed)
        split = entropy_split(prediction)
        right = (prediction.mean.argmax(-1) == DIGIT).float()
        rows.append(
            {
                "all_entropy": float(split.total.mean()),
                "all_mutual_information": float(split.epistemic.mean()),
                "all_called_1": float(right.mean()),
            }
        )
    return rows


def _ranked(inside: Tensor, outside: Tensor) -> float:
    """P(score outside > score inside) + P(equal) / 2, the area under the ROC curve."""
    u = mannwhitneyu(outside.numpy(), inside.numpy(), method="asymptotic").statistic
    return float(u) / (len(inside) * len(outside))


def _auroc(predictors: dict[str, Fit], test: Dataset, degrees: Tensor, seed: int) -> dict[str, dict[str, float]]:
    """AUROC, by angle, of the entropy as a score that separates rotated test digits from the same digits upright."""
    views, rows = turned(test.x, degrees), {}
    entropies = {
        name: [predictive_entropy(fit.predict(view, DRAWS, seed=seed)) for view in views]
        for name, fit in predictors.items()
    }
    for number, angle in enumerate(degrees.tolist()):
        if number:
            rows[f"{angle:.1f}"] = {name: _ranked(each[0], each[number]) for name, each in entropies.items()}
    rows["mean"] = {name: sum(row[name] for row in rows.values()) / (len(degrees) - 1) for name in predictors}
    return rows
