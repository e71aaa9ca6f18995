"""The page *Gallery*: figures of the project from one list, `FIGURES`. Written to ``gallery/`` at the start of a build.

A figure is drawn from stored results for both themes, is a stored file, or is one of a notebook's stored outputs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generated import Folder
from links import ROOT
from matplotlib.figure import Figure
from notebook_pages import NOTEBOOKS, pictures
from sphinx.application import Sphinx
from themes import THEMES, Theme, inked, themed
from zoo_figures import uci, uci_cells

from pyrodrop.analysis.lab.experiments import kingma_fig1a, kingma_table1
from pyrodrop.analysis.lab.experiments.published.compare import place
from pyrodrop.analysis.lab.experiments.sparse.figure import draw_progress

DOCS = ROOT / "docs"


@dataclass(frozen=True)
class Drawn:
    """A figure that a function draws from stored results."""

    draw: Callable[[], Figure]

    def files(self) -> dict[str, bytes]:
        """The file of each theme, by the end of its name."""
        return {f"-{theme.name}.svg": self._of(theme) for theme in THEMES}

    def _of(self, theme: Theme) -> bytes:
        with themed(theme):
            return theme.svg(inked(self.draw(), theme))


@dataclass(frozen=True)
class Scores:
    """The figure of the cards of the zoo for a data set of UCI."""

    name: str

    def files(self) -> dict[str, bytes]:
        """The file of each theme, by the end of its name."""
        return {f"-{theme.name}.svg": uci(self.name, uci_cells(self.name), theme) for theme in THEMES}


@dataclass(frozen=True)
class Stored:
    """A file in ``docs``, or a pair for both themes with ``{}`` for the theme in its name."""

    path: str

    def files(self) -> dict[str, bytes]:
        """The only file, or that of each theme, by the end of its name."""
        if "{}" not in self.path:
            return {".png": (DOCS / self.path).read_bytes()}
        return {f"-{theme.name}.png": (DOCS / self.path.format(theme.name)).read_bytes() for theme in THEMES}


@dataclass(frozen=True)
class Output:
    """A figure among the stored outputs of a notebook, by its number."""

    notebook: str
    number: int

    def files(self) -> dict[str, bytes]:
        """The only file, by the end of its name."""
        content = json.loads((NOTEBOOKS / f"{self.notebook}.ipynb").read_text(encoding="utf-8"))
        return {".png": pictures(content)[self.number]}


@dataclass(frozen=True)
class Item:
    """A card of the page.

    Args:
        name: of its files.
        title: in a few words.
        shows: one sentence of what it shows.
        figure: where it is from.
        code: the file that draws it, from the root of the repository.
        run: the command that makes it; none where the code is a page or a notebook.
        page: the page that explains it and its title.
    """

    name: str
    title: str
    shows: str
    figure: Drawn | Scores | Stored | Output
    code: str
    run: str | None
    page: tuple[str, str]


def of_notebook(notebook: str, number: int, title: str, shows: str) -> Item:
    """The card of a notebook's figure, which the notebook makes and explains."""
    return Item(
        f"notebook-{notebook.partition('_')[0]}-{number}", title, shows, Output(notebook, number),
        f"analysis/lab/notebooks/{notebook}.py", None, (f"notebooks/{notebook}.ipynb", "the notebook"),
    )  # fmt: skip


def of_sparse(record: str, title: str, shows: str, run: str) -> Item:
    """The card of the progress of a sparse training."""
    return Item(
        record, title, shows, Drawn(lambda: progress(record)), "analysis/lab/experiments/sparse/figure.py", run,
        ("saving.md#a-plain-network", "Saving"),
    )  # fmt: skip


def of_co2(entry: str, title: str, shows: str) -> Item:
    """The card of the predictions of an entry ``co2/...`` of the zoo."""
    return Item(
        f"co2-{entry}", title, shows, Stored(f"_static/zoo/co2/{entry}-{{}}.png"), "docs/_ext/co2_figures.py",
        "pyrodrop run co2", (f"zoo/co2/{entry}.md", "its card in the zoo"),
    )  # fmt: skip


def stored(name: str) -> Any:
    """The content of a file of ``analysis/lab/results``, or the reference of an entry."""
    return json.loads(place(name).read_text(encoding="utf-8"))


def progress(record: str) -> Figure:
    """Error, weights left and compression of a sparse training over its epochs."""
    epochs = stored(f"{record}.json")["epochs"]
    return draw_progress(epochs, list(epochs[-1]["sparsity"]))


def variances() -> Figure:
    """The variances of gradient estimators."""
    measured = stored("kingma-table1-paper.json")["measured"]
    return kingma_table1.draw({row: [of[column] for column in kingma_table1.COLUMNS] for row, of in measured.items()})


FIGURES: Mapping[str, tuple[Item, ...]] = {
    "Predictions": (
        of_co2(
            "mc-dropout-relu", "MC dropout with ReLU",
            "The mean continues the trend, and the band of the function widens with the distance from the "
            "training months.",
        ),
        of_co2(
            "mc-dropout-tanh-0.1", "MC dropout with TanH",
            "The mean follows the seasons of the training months; after them the model is sure of a constant.",
        ),
        of_co2(
            "mean-field", "Mean field",
            "Bands of one and two standard deviations of the function that widen on both sides of the "
            "middle of the training months.",
        ),
        Item(
            "start", "A first fit", "The prediction of a first fit by `plots.prediction`, with bands of the function.",
            Stored("images/start.png"), "analysis/plots.py", None, ("start.md", "Start"),
        ),
        Item(
            "scikit-learn", "Intervals of an estimator",
            "Test rows of the diabetes data with their 90 % intervals, and the share of rows in intervals "
            "of nine levels.",
            Stored("images/scikit-learn.png"), "pyrodrop/sklearn.py", None, ("recipes.md#in-scikit-learn", "Tables"),
        ),
    ),
    "Published results": (
        Item(
            "uci-yacht", "Posteriors on a data set of UCI",
            "Test error and log density of every posterior on yacht, with the published result of MC dropout as a line.",
            Scores("yacht"), "docs/_ext/zoo_figures.py", "pyrodrop run uci", ("zoo/uci/yacht.md", "its card in the zoo"),
        ),
        Item(
            "kingma-table1", "Variance of gradients",
            "The local estimator has a smaller variance than noise per example, and this one than noise "
            "that rows share, as published.",
            Drawn(variances), "analysis/lab/experiments/kingma_table1.py", "pyrodrop run kingma-table1 --preset paper",
            ("choosing.md#which-estimator", "Choosing an estimator"),
        ),
        Item(
            "kingma-fig1a", "Seven kinds of dropout",
            "Test error on MNIST at three widths, of five seeds, or of one where there is no bar, and the published curves: "
            "no dropout is worse, Gaussian A and variational A2 too with 500 units; Gaussian B is better with 100 and 250.",
            Drawn(lambda: kingma_fig1a.draw(stored("kingma-fig1a-paper.json")["errors"])),
            "analysis/lab/experiments/kingma_fig1a.py", "pyrodrop run kingma-fig1a --preset paper --widths 100 250 500",
            ("measured.md", "Measured"),
        ),
    ),
    "Sparse networks": (
        of_sparse(
            "sparse-lenet-300-100-molchanov2017", "LeNet-300-100 by weight",
            "Sparse variational dropout leaves fewer weights with every epoch, at the same test error.",
            "pyrodrop run sparse",
        ),
        of_sparse(
            "sparse-lenet-5-molchanov2017", "LeNet-5 by weight",
            "The first convolution keeps the largest share of its weights, and the first fully connected "
            "layer the smallest.",
            "pyrodrop run sparse --net lenet-5",
        ),
        of_sparse(
            "log-normal-lenet-300-100-neklyudov2017", "LeNet-300-100 by unit",
            "Log-normal dropout removes inputs and hidden units, and the shares of weights left fall as they go.",
            "pyrodrop run sparse --method log-normal --recipe neklyudov2017",
        ),
    ),
    "How it works, and checks": (
        of_notebook(
            "1_dropout_is_variational_inference", 2, "Six posteriors of two weights",
            "Draws of two weights that one input unit multiplies: atoms, clouds around them, a line, and Gaussians.",
        ),
        of_notebook(
            "6_posterior_predictive_checks", 2, "A predictive check",
            "Densities of data sets that a model with the wrong noise generates, beside that of the observations.",
        ),
    ),
}  # fmt: skip


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the page when a build starts."""
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True}


def write(app: Sphinx) -> None:
    """Write ``gallery/index.md`` and the figures."""
    lines = [
        "# Gallery", "",
        "Figures that the project stores or draws from stored results: what each shows, the code and the "
        "command that make it, and "
        "the page that explains it. A figure opens at full size.", "",
    ]  # fmt: skip
    with Folder(Path(app.srcdir) / "gallery") as folder:
        for section, items in FIGURES.items():
            lines += [f"## {section}", "", "::::{grid} 1 1 2 2", ":gutter: 3", ":class-container: gallery figures", ""]
            for item in items:
                files = {f"figure-{item.name}{end}": content for end, content in item.figure.files().items()}
                for name, content in files.items():
                    folder.write(name, content)
                lines += card(item, list(files))
            lines += ["::::", ""]
        folder.write("index.md", "\n".join(lines))


def card(item: Item, files: list[str]) -> list[str]:
    """A card with a thumbnail that leads to the figure, the sentence and the links."""
    lines = [f":::{{grid-item-card}} {item.title}", ""]
    for file in files:
        theme = file.rpartition(".")[0].rpartition("-")[2]
        shown = f"only-{theme}" if len(files) > 1 else "white"
        lines += [f"```{{image}} {file}", f":alt: {item.title}, at full size", f":class: thumbnail {shown}"]
        lines += [f":target: ../_images/{files[0]}", "```", ""]
    code = f"{{download}}`{Path(item.code).name} <../../{item.code}>`"
    command = f"`{item.run}` · " if item.run else ""
    page, label = item.page
    return [*lines, item.shows, "", f"{command}{code} · [{label}](../{page})", ":::", ""]
