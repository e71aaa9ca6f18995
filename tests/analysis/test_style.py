"""The one style of all figures: colours that can be told apart, and no other colours in the code."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib import colors, image
from matplotlib.figure import Figure

from pyrodrop import analysis
from pyrodrop.analysis.reports.style import BLUE, SERIES, styled, write_figure

# From linear RGB to what is seen without one kind of cone: Machado, Oliveira & Fernandes (2009), table 1, severity 1.
SEEN = {
    "all cones": np.eye(3),
    "no L cones": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no M cones": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no S cones": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def lab(colour: str, eyes: str) -> np.ndarray:
    """CIE L*a*b* of a colour as these eyes see it, D65."""
    rgb = np.array(colors.to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.array(SEEN[eyes]) @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ linear / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("eyes", SEEN)
def test_the_colours_of_categories_differ_for_any_eyes(eyes: str) -> None:
    """By more than 10 in CIE 1976 distance, where 2.3 is a just noticeable difference; and from white by more than 25."""
    seen = {colour: lab(colour, eyes) for colour in SERIES}
    apart = {pair: float(np.linalg.norm(seen[pair[0]] - seen[pair[1]])) for pair in itertools.combinations(SERIES, 2)}
    assert min(apart.values()) > 10, min(apart, key=lambda pair: apart[pair])
    assert min(float(np.linalg.norm(value - [100, 0, 0])) for value in seen.values()) > 25


def test_no_figure_has_colours_or_parameters_of_its_own() -> None:
    """The notebooks aside, which are read as they are run."""
    folder = Path(str(analysis.__file__)).resolve().parent
    own = re.compile(r"""colou?rs?=[(\[]?["']|["']#[0-9a-fA-F]{6}["']|rc_context|rcParams|\.savefig\(""")
    files = [file for file in folder.rglob("*.py") if file.name != "style.py" and file.parent.name != "notebooks"]
    lines = [f"{file.relative_to(folder)}: {line.strip()}" for file in files for line in file.read_text().splitlines()]
    assert len(files) > 50
    found = [line for line in lines if own.search(line)]
    assert found == []


def test_a_function_in_this_style_leaves_no_trace(tmp_path: Path) -> None:
    @styled()
    def drawn() -> Figure:
        figure = Figure(figsize=(2, 1))
        axes = figure.subplots()
        axes.plot([1, 3, 2], label="line")
        axes.set_title("title")
        axes.legend()
        return figure

    before = dict(matplotlib.rcParams)
    figure = drawn()
    assert dict(matplotlib.rcParams) == before
    (axes,) = figure.axes
    assert axes.lines[0].get_color() == BLUE
    assert axes.get_title("left") == "title"
    assert not axes.spines["top"].get_visible()
    assert not axes.get_legend().get_frame_on()
    write_figure(tmp_path / "figure.png", figure)
    assert image.imread(tmp_path / "figure.png").shape == (110, 220, 4)
