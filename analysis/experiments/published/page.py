"""The published figures on ``analysis/reference/README.md``, from ``published-results.json``.

``python -m pyrodrop.analysis.experiments.published.page`` compares anew and writes both. A test checks that
they are up to date.
"""

from __future__ import annotations

from pyrodrop.analysis.experiments.published.experiment import STORED, compare, page, results, stored
from pyrodrop.analysis.reports import generated
from pyrodrop.files import write_json


def text() -> str:
    """The section, from the stored outcomes."""
    return page(stored())


if __name__ == "__main__":
    write_json(STORED, results(compare()))
    generated.put(generated.REFERENCES, "published", text())
