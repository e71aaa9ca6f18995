"""The zoo: published models and posteriors by name, each with its data, training settings and published results.

Packages add their own entries by an entry point of the group ``pyrodrop.zoo``: a function without arguments that calls
`add`. It is called once, when all entries are needed.
"""

from __future__ import annotations

import fnmatch
import functools
import importlib.metadata
import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from pyrodrop import checks
from pyrodrop.checks import known
from pyrodrop.devices import resolve
from pyrodrop.zoo import trained
from pyrodrop.zoo.entries import ENTRIES
from pyrodrop.zoo.entry import Check, Entry
from pyrodrop.zoo.exact import NAMED, PROBLEMS, Problem
from pyrodrop.zoo.posterior import ExactPosterior
from pyrodrop.zoo.sources import SOURCES, Source
from pyrodrop.zoo.trained import Trained

__all__ = [
    "ENTRIES", "Check", "Entry", "ExactPosterior", "Source", "add", "cite", "entry", "every", "load", "names", "problem",
]  # fmt: skip

_log = logging.getLogger("pyrodrop")


def add(*entries: Entry, sources: Mapping[str, Source] | None = None) -> None:
    """Add entries to the zoo of this process, for `entry`, `load` and the command line; see docs/saving.md.

    Args:
        entries: each with a name that is not taken.
        sources: data sets by the name that the entries have as ``data``, if they are not the zoo's.

    Raises:
        TypeError: an argument is of another type.
        ValueError: a name is taken, or an entry names data that are in neither `sources` nor the zoo.
    """
    new_sources: Mapping[str, Source] = (
        {} if sources is None else checks.instance(sources, Mapping, "sources", "data sets by name")
    )
    for name, source in new_sources.items():
        checks.instance(source, Source, f"sources[{name!r}]", "a zoo.Source")
    for entry in entries:
        checks.instance(entry, Entry, "entries", "a zoo.Entry each")
    data, cards = dict(SOURCES), dict(ENTRIES)
    _put(data, new_sources.items(), "data set")
    _put(cards, ((entry.name, entry) for entry in entries), "entry")
    for entry in entries:
        known(entry.data, data, "data set of the zoo")
    SOURCES.update(data)
    ENTRIES.update(cards)


def _put(there: dict[str, Any], new: Iterable[tuple[str, Any]], what: str) -> None:
    """Add new things to a dictionary by name; a ValueError for a name that another thing has."""
    for name, value in new:
        if there.setdefault(name, value) is not value:
            raise ValueError(f"the zoo has another {what} called {name!r}: choose another name")


def every() -> Mapping[str, Entry]:
    """All entries by name, with those of other packages. A package that fails is left out, with a warning in the log."""
    _read_packages()
    return ENTRIES


@functools.cache
def _read_packages() -> None:
    for point in importlib.metadata.entry_points(group="pyrodrop.zoo"):
        try:
            point.load()()
        except Exception as error:  # code of another package: whatever it raises, the other entries are there
            message = " ".join(f"{type(error).__name__}: {error}".split())
            _log.warning("the zoo entries of %s were left out: %s", point.value, message)


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
    all_of_them = sorted([*every(), *NAMED])
    chosen = [name for name in all_of_them if fnmatch.fnmatchcase(name, pattern)]
    return [name for name in chosen if not loads or trained.file(name)]


def cite(name: str) -> str:
    """BibTeX of the works to cite for an entry or an exact posterior: papers of its method, its data, and this package.

    The works are in ``works.bib``. For entries of other packages it returns this package alone; see their `Entry.source`.

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
    if name in NAMED:
        raise ValueError(
            f"name must be of an entry, which can be trained; got {name!r}, an exact posterior or an approximation of one, "
            "which pyrodrop.zoo.load loads and pyrodrop run references makes"
        )
    return ENTRIES[known(name, ENTRIES if name in ENTRIES else every(), "zoo entry", "pyrodrop list")]


def load(name: str, *, device: str | torch.device = "auto") -> Trained:
    """The trained posterior of an entry, or draws of an exact posterior. Both predict without reading data.

    Its predictions on the CPU, 100 draws at ten points, are compared with those in the file, for all splits together. The
    log warns if they differ by more than rounding, as with a version of PyTorch that computes something else.

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
    of, path = _named(name), trained.pull(name)
    loaded = trained.restore(of, path, "cpu")
    apart = trained.difference(loaded, path)
    if not apart <= trained.TOLERANCE:
        _log.warning(
            "%s predicts something else than when %s was written: mean and standard deviation at its points are up to %.1g "
            "of the largest value apart, with torch %s here; its scores may not be those of this posterior",
            name, path.name, apart, torch.__version__,
        )  # fmt: skip
    return loaded if resolve(device).type == "cpu" else trained.restore(of, path, device)


def problem(name: str) -> ExactPosterior:
    """An exact posterior, ``exact/yacht`` or ``yacht``, for methods of any package: data, log density, draws, moments.

    Raises:
        TypeError: the name is no string.
        ValueError: no exact posterior has this name.

    Example:
        >>> import torch
        >>> from pyrodrop import zoo
        >>> target = zoo.problem("foong")
        >>> weights = torch.zeros(4, target.num_weights, dtype=torch.float64, requires_grad=True)
        >>> target.log_density(weights).shape, target.f(weights).shape
        (torch.Size([4]), torch.Size([4, 100, 1]))
    """
    checks.instance(name, str, "name", "the name of an exact posterior")
    return ExactPosterior(PROBLEMS[known(name.removeprefix("exact/"), PROBLEMS, "exact posterior")])


def _named(name: str) -> Entry | Problem:
    """The entry or problem of this name."""
    checks.instance(name, str, "name", "the name of an entry or of an exact posterior")
    if name in ENTRIES or name in NAMED:
        return ENTRIES.get(name) or NAMED[name]
    return entry(known(name, {**every(), **NAMED}, "trained posterior", "pyrodrop list"))
