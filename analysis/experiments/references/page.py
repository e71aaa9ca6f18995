"""The table of distances of ``analysis/reference/README.md``, from the files in ``analysis/reference/posterior``.

``python -m pyrodrop.analysis.experiments.references.page`` writes it. A test checks that the page is up to date.
"""

from __future__ import annotations

from pathlib import Path

from pyrodrop.analysis.experiments.references.posteriors import POSTERIORS
from pyrodrop.analysis.experiments.references.stored import FOLDER, facts
from pyrodrop.analysis.reports import generated
from pyrodrop.zoo.exact import PROBLEMS


def text(folder: Path = FOLDER) -> str:
    """Total variation from the exact posterior's predictive distribution, by problem and posterior, in Markdown."""
    names = [name for name in PROBLEMS if (folder / f"{name}.json").is_file()]
    rows = [["problem", *POSTERIORS, "chance alone"]]
    for name in names:
        table = facts(name, folder)["table"]
        pairs = [(table[one], table[f"ensemble {one}"]) for one in POSTERIORS]
        cells = [" / ".join(f"{row['total_variation']:.3f}"[1:] for row in pair) for pair in pairs]
        rows.append([name, *cells, f"{table['reference']['total_variation']:.3f}"[1:]])
    rows.insert(1, ["---"] * len(rows[0]))
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return (
        "Total variation of the predictive distribution from the exact posterior's, one fit / an ensemble of five, mean "
        f"over test points; *chance alone* is between two independent sets of the exact posterior's draws:\n\n{lines}\n"
    )


if __name__ == "__main__":
    generated.put(generated.REFERENCES, "references", text())
