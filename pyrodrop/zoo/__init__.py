"""The zoo: published models and posteriors by name, each with its data, training settings and published results."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

import torch

from pyrodrop import checks
from pyrodrop.checks import known, public
from pyrodrop.zoo import trained
from pyrodrop.zoo.entries import ENTRIES
from pyrodrop.zoo.entry import Entry
from pyrodrop.zoo.exact import NAMED, PROBLEMS, Problem
from pyrodrop.zoo.sources import SOURCES
from pyrodrop.zoo.trained import Trained

__all__ = ["ENTRIES", "PROBLEMS", "SOURCES", "Entry", "Problem", "cite", "entry", "load", "names"]
public(__name__, __all__)


def names(pattern: str = "*", *, loads: bool = False) -> list[str]:
    """Names of entries, of exact posteriors, ``exact/NAME``, and of approximations of these, ``exact/NAME.TAG``.

    Args:
        pattern: of the names to return, as in a shell: ``uci/*``, ``*/mean-field``.
        loads: whether to return only names whose trained posterior or draws `load` finds without a download.

    Example:
        >>> from pyrodrop import zoo
        >>> zoo.names("*/yacht", loads=True)
        ['exact/yacht', 'uci/yacht']
    """
    checks.instance(pattern, str, "pattern", "a name, in which * stands for anything")
    loads = checks.flag(loads, "loads", "whether to name only what can be loaded")
    chosen = fnmatch.filter(sorted([*ENTRIES, *NAMED]), pattern)
    return [name for name in chosen if not loads or trained.file(name)]


def cite(name: str) -> str:
    """BibTeX of the works to cite for an entry or an exact posterior: papers of its method, its data, and this package.

    The works are in ``works.bib``.

    Raises:
        TypeError: the name is no string.
        ValueError: nothing has this name; the message suggests the most similar ones.
    """
    name, cited = _named(name).name, []
    for work in (Path(__file__).parent / "works.bib").read_text(encoding="utf-8").strip().split("\n\n"):
        text, patterns, end = re.split(r",\n  zoo = {(.*)}", work)
        if any(fnmatch.fnmatchcase(each, p) for p in patterns.split() for each in (name, name.partition(".")[0])):
            cited.append(text + end)
    return "\n\n".join(cited)


def entry(name: str) -> Entry:
    """The entry of this name.

    Raises:
        TypeError: the name is no string.
        ValueError: no entry has this name; the message suggests the most similar ones.
    """
    checks.instance(name, str, "name", "the name of an entry")
    return ENTRIES[known(name, ENTRIES, "zoo entry", "pyrodrop list")]


def load(name: str, *, device: str | torch.device = "auto") -> Trained:
    """The trained posterior of an entry, or draws of an exact posterior. Both predict without reading data.

    A file is sought in the folder that the environment variable ``PYRODROP_ZOO`` names, then in this package. Most of the
    large ones are not installed but files of the release: they are downloaded once, from the address that ``PYRODROP_ZOO``
    names or from the release, and checked by their hash. Nothing in a file is run as code. ``settings["zoo"]`` of each fit
    returned, or of the draws, has the scores of the run, its seed, date and versions.

    Args:
        name: of an entry, such as ``uci/yacht``; ``exact/NAME``, with NAME a problem of ``pyrodrop run references``; or
            ``exact/NAME.TAG``, a trained approximation of it.
        device: where to put the parameters; draws of an exact posterior stay on the CPU.

    Returns:
        A `Fit`; for data with several splits `Replicates`, one fit per split; for an exact posterior a `Sampled`.

    Raises:
        TypeError: the name is no string.
        ValueError: nothing has this name, there is no file of it, or the file is damaged or of another entry.
        OSError: the file cannot be read or downloaded; the message names it.

    Example:
        >>> from pyrodrop import zoo
        >>> many = zoo.load("uci/yacht")
        >>> len(many), many[0].predict(many[0].model.inputs.loc[None], 50).f.shape
        (20, torch.Size([50, 1, 1]))
    """
    return trained.restore(_named(name), trained.pull(name), device)


def _named(name: str) -> Entry | Problem:
    """The entry or problem of this name."""
    checks.instance(name, str, "name", "the name of an entry or of an exact posterior")
    both: dict[str, Entry | Problem] = {**ENTRIES, **NAMED}
    return both[known(name, both, "trained posterior", "pyrodrop list")]
