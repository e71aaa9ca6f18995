"""The zoo: published models and posteriors, each joined by a name with its data, its training and its figures."""

from __future__ import annotations

from pyrodrop.names import known
from pyrodrop.zoo import co2, co2_paper, concrete, kingma, kingma_fig1a, rotated_digit, sparse, uci
from pyrodrop.zoo.entry import Check, Entry

__all__ = ["ENTRIES", "Check", "Entry", "entry"]

_SETS = (co2, co2_paper, concrete, kingma, kingma_fig1a, uci, rotated_digit, sparse)
ENTRIES: dict[str, Entry] = {e.name: e for entries in _SETS for e in entries.ENTRIES}


def entry(name: str) -> Entry:
    """The entry of this name; a ValueError with the nearest known name if there is none."""
    return ENTRIES[known(name, ENTRIES, "zoo entry")]
