"""The zoo: a published model and posterior, joined by a name."""

from __future__ import annotations

from pyrodrop.names import known
from pyrodrop.zoo import co2, co2_paper, concrete, kingma, sparse
from pyrodrop.zoo.entry import Entry

__all__ = ["ENTRIES", "Entry", "entry"]

ENTRIES: dict[str, Entry] = {
    e.name: e for e in (*co2.ENTRIES, *co2_paper.ENTRIES, *concrete.ENTRIES, *kingma.ENTRIES, *sparse.ENTRIES)
}


def entry(name: str) -> Entry:
    """The entry of this name; a ValueError with the nearest known name if there is none."""
    return ENTRIES[known(name, ENTRIES, "zoo entry")]
