"""The reference: one page for each module of `public.MODULES`, with every public name that is documented there.

``pyrodrop`` itself, which has most of the names, has a page for each of `TOPICS`.

The pages are written to ``api/`` at the start of a build.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

from docstrings import inline
from generated import Folder
from public import MODULES, elsewhere, places, submodules, value
from sphinx.application import Sphinx

from pyrodrop.prediction.posterior import Posterior

# Constants and aliases of types have no docstrings.
CONSTANTS = {
    "pyrodrop.analysis.gp.EXACT_LIMIT": "Number of observations up to which inference of a Gaussian process is exact.",
    "pyrodrop.analysis.gp.KERNELS": "Kernels by name, as `GaussianProcess` takes them: functions of a number of inputs.",
    "pyrodrop.data.Data": "What functions take as data: a `Dataset`, or a pair (x, y).",
    "pyrodrop.divergences.ATOMS": "Convention of a mixture of atoms, theta -> 0: a constant is left out.",
    "pyrodrop.divergences.EXACT": "Convention of a divergence that is computed exactly.",
    "pyrodrop.divergences.POINT": "Convention of a point mass: a constant is left out.",
    "pyrodrop.divergences.RELAXED": "Convention of the concrete relaxation: the divergence is that of the mask.",
    "pyrodrop.metrics.Predicted": "What metrics take as a prediction: a `Prediction`, or class probabilities ``[N, C]``.",
    "pyrodrop.reparam.STRATEGIES": "The strategies by the name of their estimator; None for ``shared``, which needs none.",
    "pyrodrop.zoo.ENTRIES": "All entries by name; the :doc:`zoo </zoo/index>` shows them.",
    "pyrodrop.zoo.PROBLEMS": "The networks and data whose exact posteriors are stored, by name.",
    "pyrodrop.zoo.SOURCES": "The data sets of the entries by name; ``load()`` returns their splits.",
}


# What most programs use, in the order in which they do: the reference and the pages of the modules begin with it.
FIRST = (
    "pyrodrop.data.Dataset",
    "pyrodrop.models.MLP",
    "pyrodrop.models.from_module",
    "pyrodrop.likelihoods.Gaussian",
    "pyrodrop.priors.Gaussian",
    "pyrodrop.guides.BernoulliDropout",
    "pyrodrop.fit",
    "pyrodrop.Fit",
    "pyrodrop.Prediction",
    "pyrodrop.metrics.regression_scores",
    "pyrodrop.compare",
    "pyrodrop.read",
    "pyrodrop.sample",
)

# The names of ``pyrodrop`` by page, in its order: a page for all of them would be twice as long as any other.
TOPICS = {
    "training": (
        "fit", "fit_replicates", "Training", "Checkpoint", "StepLosses",
        "compile_svi",
    ),
    "fits": ("Fit", "Replicates", "Elbo", "Worth", "Certificate", "read", "Reading", "last_layer"),
    "predictions": ("predict", "Prediction", "compare", "to_arviz"),
    "sampling": ("sample", "Sampled", "potential", "Potential"),
}  # fmt: skip


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages when a build starts."""
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True}


def write(app: Sphinx) -> None:
    """Write ``api/index.rst`` and a page per module."""
    names_of_module = places()
    with Folder(Path(app.srcdir) / "api") as folder:
        folder.write("index.rst", index())
        for module in MODULES:
            folder.write(
                f"{module}.rst", page(module, sorted(names_of_module[module], key=lambda name: rank(module, name)))
            )
        for title, names in TOPICS.items():
            folder.write(f"pyrodrop-{title}.rst", topic(title, names))


def rank(module: str, name: str) -> int:
    """The place of a name in `FIRST`; names that are not there come after those that are, in their own order."""
    return FIRST.index(f"{module}.{name}") if f"{module}.{name}" in FIRST else len(FIRST)


def index() -> str:
    """What most programs use, and the list of modules."""
    lines = ["API reference", "=============", "", "What most programs use:", ""]
    lines += [".. list-table::", "   :widths: 34 66", ""]
    for module, _, name in (path.rpartition(".") for path in FIRST):
        lines += [f"   * - :py:obj:`{module}.{name}`", f"     - {sentence(module, name)}"]
    lines += ["", "Every public name, by the module it is imported from:", ""]
    lines += [".. list-table::", "   :widths: 30 70", ""]
    for module in MODULES:
        lines += [f"   * - :doc:`{module} <{module}>`", f"     - {first_line(importlib.import_module(module))}"]
    lines += ["", ".. toctree::", "   :hidden:", ""]
    return "\n".join([*lines, *(f"   {module}" for module in MODULES)]) + "\n"


def page(module: str, names: list[str]) -> str:
    """The page of a module: a table of its names, then each of them, or for ``pyrodrop`` the list of `TOPICS`."""
    lines = [module, "=" * len(module), "", f".. automodule:: {module}", ""]
    others = {path: place for path, place in elsewhere().items() if path.rpartition(".")[0] == module}
    if names:
        lines += [".. list-table::", "   :widths: 34 66", ""]
        for name in names:
            lines += [f"   * - :py:obj:`{name} <{module}.{name}>`", f"     - {sentence(module, name)}"]
        lines += [""]
    if others:
        lines += ["Also here: " + ", ".join(f":py:obj:`{place}`" for place in others.values()) + ".", ""]
    for path in submodules(module):
        lines += [f".. automodule:: {path}", ""]
    if module == "pyrodrop":
        lines += [".. toctree::", "   :caption: Pages", "", *(f"   pyrodrop-{title}" for title in TOPICS), ""]
    else:
        for name in names:
            lines += [*entry(module, name), ""]
    return "\n".join(lines)


def topic(title: str, names: tuple[str, ...]) -> str:
    """A page of `TOPICS`."""
    head = f"pyrodrop: {title}"
    lines = [head, "=" * len(head), ""]
    for name in names:
        lines += [*entry("pyrodrop", name), ""]
    return "\n".join(lines)


def entry(module: str, name: str) -> list[str]:
    """The directive that documents a name."""
    what = value(module, name)
    if inspect.isclass(what):
        kind = "autoexception" if issubclass(what, BaseException) else "autoclass"
        bases = ["   :show-inheritance:"] if what.__bases__ != (object,) else []
        if Posterior in what.__bases__:  # whose methods have no page of their own
            bases += ["   :inherited-members: ABC, Sequence"]
        others = sorted(
            attribute for attribute, member in vars(what).items() if type(member).__module__.startswith("sklearn")
        )
        bases += [f"   :exclude-members: {', '.join(others)}"] if others else []  # made by scikit-learn, in its words
        return [f".. {kind}:: {module}.{name}", "   :members:", *bases]
    if inspect.isroutine(what):
        return [f".. autofunction:: {module}.{name}"]
    return [f".. py:data:: {name}", f"   :module: {module}", "", f"   {CONSTANTS[f'{module}.{name}']}"]


def sentence(module: str, name: str) -> str:
    """What a name is, in a sentence."""
    what = value(module, name)
    return first_line(what) if inspect.isclass(what) or inspect.isroutine(what) else CONSTANTS[f"{module}.{name}"]


def first_line(what: Any) -> str:
    """The first sentence of a docstring."""
    paragraph = (inspect.getdoc(what) or "").partition("\n\n")[0]
    return inline(" ".join(paragraph.split()))
