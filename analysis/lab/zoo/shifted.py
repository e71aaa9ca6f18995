"""Shifted and foreign images for trained classifiers of MNIST: ``python -m pyrodrop.analysis.lab.zoo.shifted [ENTRY...]``.

For 1,000 test digits, unchanged, rotated by 30, 60 and 90 degrees, and with Gaussian noise:

    error_percent, log_density, ece

and the AUROC of a score that should be higher for 960 letters than for the 1,000 unchanged digits:

    auroc_entropy           H[y], the entropy of the mean probabilities
    auroc_information       I[y; f], the mutual information of label and network; None for a point estimate

Letters are A to Z and a to z without I, O, l and o, which look like digits, in 20 fonts of Matplotlib. They are prepared
like the digits: in a box of 20 x 20 pixels, with the centre of mass in the middle of 28 x 28. The results are in
``reference/shifted.json``.
"""

from __future__ import annotations

import argparse
import hashlib
import string
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.ft2font import FT2Font
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, interpolate

from pyrodrop import zoo
from pyrodrop.analysis.reports.console import machine, versions
from pyrodrop.analysis.reports.json_files import write_json
from pyrodrop.analysis.zoo.references import SHIFTED, shifted
from pyrodrop.data import mnist
from pyrodrop.guides import Point
from pyrodrop.metrics import accuracy, auroc, ece, entropy_split
from pyrodrop.training.result import Fit
from pyrodrop.zoo import trained

EVERY, ANGLES, NOISE, SEED = 10, (30, 60, 90), 0.3, 0  # scored: 0, 10, 20 ...
LETTERS = "".join(letter for letter in string.ascii_letters if letter not in "IOlo")
FONTS = (
    *(f"DejaVu{kind}{style}" for kind in ("Sans", "SansMono") for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
    *("cmr10", "cmb10", "cmss10", "cmtt10"),
)


def letters() -> Tensor:
    """Images of letters, white on black, ``[960, 1, 28, 28]`` in [0, 1]."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    fonts = [FT2Font(str(folder / f"{name}.ttf")) for name in FONTS]
    return torch.stack([_letter(font, letter) for font in fonts for letter in LETTERS])


def _letter(font: FT2Font, letter: str) -> Tensor:
    """One letter, ``[1, 28, 28]``."""
    font.set_size(100, 72)
    font.set_text(letter, 0.0)
    font.draw_glyphs_to_bitmap(antialiased=True)
    drawn = torch.tensor(font.get_image()).float() / 255
    rows, columns = (drawn.amax(axis).nonzero()[:, 0] for axis in (1, 0))
    drawn = drawn[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    size = [max(1, round(20 * side / max(drawn.shape))) for side in drawn.shape]
    small = interpolate(drawn[None, None], size=size, mode="bilinear", antialias=True)[0, 0].clamp(0, 1)
    weights = small / small.sum()
    centre = ((weights.sum(1 - axis) * torch.arange(side)).sum() for axis, side in enumerate(size))
    top, left = (min(max(0, round(13.5 - float(c))), 28 - side) for c, side in zip(centre, size, strict=True))
    image = torch.zeros(1, 28, 28)
    image[0, top : top + size[0], left : left + size[1]] = small
    return image


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


def images() -> tuple[dict[str, Tensor], Tensor]:
    """The digits by the name of their change, and their classes."""
    test = mnist(flat=False, progress=False).test
    x, y = test.x[::EVERY], test.y[::EVERY]
    noise = NOISE * torch.randn(x.shape, generator=torch.Generator().manual_seed(SEED))
    views = turned(x, torch.tensor(ANGLES, dtype=torch.float32))
    changed = {"as they are": x, **{f"rotated by {a}": v for a, v in zip(ANGLES, views, strict=True)}}
    return {**changed, "with noise": (x + noise).clamp(0, 1)}, y


def measured(fit: Fit, draws: int) -> dict[str, Any]:
    """Scores by the name of the digits' change, and the AUROC of letters."""
    digits, y = images()
    predictions = {name: fit.predict(x, draws, seed=SEED) for name, x in digits.items()}
    rows = {
        name: {
            "error_percent": 100 * (1 - accuracy(prediction, y)),
            "log_density": float(prediction.log_density(y).double().mean()),
            "ece": ece(prediction, y),
        }
        for name, prediction in predictions.items()
    }
    inside, outside = (
        entropy_split(each) for each in (predictions["as they are"], fit.predict(letters(), draws, seed=SEED))
    )
    return {
        "digits": rows,
        "auroc_entropy": auroc(inside.total, outside.total),
        "auroc_information": None if isinstance(fit.guide, Point) else auroc(inside.epistemic, outside.epistemic),
    }


def checksum(name: str) -> str:
    """SHA-256 of the file of a trained posterior."""
    return hashlib.sha256(trained.pull(name).read_bytes()).hexdigest()


def main(argv: list[str] | None = None) -> None:
    """Measure trained classifiers, and store their scores."""
    parser = argparse.ArgumentParser(
        prog="python -m pyrodrop.analysis.lab.zoo.shifted", description="Score shifted digits."
    )
    parser.add_argument(
        "entries", nargs="*", metavar="ENTRY", help="with images of MNIST as data; all that load if left out"
    )
    for name in parser.parse_args(argv).entries or [n for n in zoo.names(loads=True) if is_classifier(n)]:
        fit: Any = zoo.load(name)
        made = {"sha256": checksum(name), "draws": zoo.entry(name).draws, **measured(fit, zoo.entry(name).draws)}
        about = {"versions": versions(), "machine": machine(fit.device)}
        write_json(SHIFTED, {"entries": dict(sorted({**shifted(), name: {**made, **about}}.items()))})
        print(f"{name}: AUROC of letters {made['auroc_entropy']:.3f}", flush=True)


def is_classifier(name: str) -> bool:
    """Whether an entry has the images of MNIST as data."""
    return name in zoo.ENTRIES and zoo.ENTRIES[name].data == "mnist/images"


if __name__ == "__main__":
    main()
