"""The zoo: published models and posteriors by name, each with its data, training settings and published results."""

from __future__ import annotations

from pyrodrop.names import known
from pyrodrop.zoo import co2, co2_paper, concrete, kingma, kingma_fig1a, kingma_fig1b, rotated_digit, sparse, uci
from pyrodrop.zoo.entry import Check, Entry

__all__ = ["ENTRIES", "Check", "Entry", "entry"]

_SETS = (co2, co2_paper, concrete, kingma, kingma_fig1a, kingma_fig1b, uci, rotated_digit, sparse)
ENTRIES: dict[str, Entry] = {e.name: e for entries in _SETS for e in entries.ENTRIES}


def entry(name: str) -> Entry:
    """The entry of this name.

    Raises:
        ValueError: no entry has this name; the message suggests the most similar ones.
    """
    return ENTRIES[known(name, ENTRIES, "zoo entry", "pyrodrop list")]
