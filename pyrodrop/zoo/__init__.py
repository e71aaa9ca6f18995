"""The zoo: published models and posteriors by name, each with its data, training settings and published results."""

from __future__ import annotations

import torch

from pyrodrop.names import known
from pyrodrop.zoo import (
    co2,
    co2_paper,
    concrete,
    kingma,
    kingma_fig1a,
    rotated_digit,
    sparse,
    trained,
    uci,
)
from pyrodrop.zoo.entry import Check, Entry
from pyrodrop.zoo.exact import PROBLEMS, Problem
from pyrodrop.zoo.trained import Trained

__all__ = ["ENTRIES", "Check", "Entry", "entry", "load"]

_SETS = (co2, co2_paper, concrete, kingma, kingma_fig1a, uci, rotated_digit, sparse)
ENTRIES: dict[str, Entry] = {e.name: e for entries in _SETS for e in entries.ENTRIES}


def entry(name: str) -> Entry:
    """The entry of this name.

    Raises:
        ValueError: no entry has this name; the message suggests the most similar ones.
    """
    return ENTRIES[known(name, ENTRIES, "zoo entry", "pyrodrop list")]


def load(name: str, *, device: str | torch.device = "auto") -> Trained:
    """The trained posterior of an entry, or draws of an exact posterior, which predict as they are; no data are read.

    A file is looked for in the folder that the environment variable ``PYRODROP_ZOO`` names, then in this package; a released
    one is downloaded once. Nothing in a file is run as code. ``settings["zoo"]`` of what is returned has the scores of the
    run, its seed, date and versions.

    Args:
        name: of an entry, such as ``uci/yacht``, or ``exact/NAME``, where NAME is a problem of ``pyrodrop run references``.
        device: where to put the parameters; draws of an exact posterior stay on the CPU.

    Returns:
        A `Fit`; `Replicates`, one fit per split, of data with several splits; `Sampled` of an exact posterior.

    Raises:
        ValueError: nothing has this name, there is no file of it, or the file is damaged or of another entry.
        ConnectionError: a released file cannot be downloaded.
        OSError: the file cannot be read; the message names it.

    Example:
        >>> from pyrodrop import zoo
        >>> many = zoo.load("uci/yacht")
        >>> len(many), many[0].predict(many[0].model.inputs.loc[None], 50).f.shape
        (20, torch.Size([50, 1, 1]))
    """
    return trained.restore(_named(name), trained.pull(name), device)


def _named(name: str) -> Entry | Problem:
    """The entry or problem of this name."""
    exact = {problem.name: problem for problem in PROBLEMS.values()}
    every: dict[str, Entry | Problem] = {**ENTRIES, **exact}
    return every[known(name, every, "trained posterior", "pyrodrop list")]
