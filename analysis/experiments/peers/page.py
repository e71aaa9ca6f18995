"""The table of peers of ``analysis/reference/README.md``, from ``analysis/reference/peers.json``.

``python -m pyrodrop.analysis.experiments.peers.page`` writes it. A test checks that the page is up to date.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyrodrop.analysis.peers.processes import OURS, PEERS
from pyrodrop.analysis.reports import generated
from pyrodrop.analysis.zoo.references import FOLDER
from pyrodrop.json_files import read_record


def text(path: Path = FOLDER / "peers.json") -> str:
    """Distance and core-seconds by problem and method, in Markdown."""
    content = read_record(path).content
    problems: dict[str, Any] = content["problems"]
    seed = content["settings"]["seed"]
    head = [f"{name}{', TV' if found['chance']['wasserstein'] is None else ''}" for name, found in problems.items()]
    rows = [["method", *head]]
    methods = [name for name in PEERS if any(name in found["rows"] for found in problems.values())]
    for method in methods:
        mark = " *" if PEERS[method].differs else ""
        rows.append([f"{method}{mark}", *(_cell(found, method) for found in problems.values())])
    rows.append(["chance alone", *(f"{found['chance'][_key(found)]:.2f}" for found in problems.values())])
    notes = [f"* {method}: {PEERS[method].differs}." for method in methods if PEERS[method].differs]
    faults = [
        f"{method} on {name}: {row['fault']}."
        for name, found in problems.items()
        for method, row in found["rows"].items()
        if "fault" in row
    ]
    return (
        "Wasserstein-2 distance of f from the exact posterior's, mean over test points, in units of the mean standard "
        "deviation of f; total variation of the predictive distribution where y are classes. In brackets core-seconds, "
        f"training, compilation and drawing. One run each, seed {seed}; *chance alone* is between two halves of "
        f"the reference's draws, fewer than the rows have:\n\n{generated.table(rows)}\n\n"
        + "".join(f"{note}\n\n" for note in (*notes, *faults))
        + f"Versions: {_versions(problems)}.\n"
    )


def _key(found: Any) -> str:
    return "total_variation" if found["chance"]["wasserstein"] is None else "wasserstein"


def _cell(found: Any, method: str) -> str:
    row = found["rows"].get(method)
    if row is None or "fault" in row:
        return "-" if row is None else "failed"
    return f"{row['values'][_key(found)]:.2f} ({row['about']['seconds']:.0f})"


def _versions(problems: Any) -> str:
    rows = [row for found in problems.values() for row in found["rows"].values() if "about" in row]
    versions = {name: version for row in rows for name, version in row["about"]["versions"].items() if name != OURS}
    return ", ".join(f"{name} {version}" for name, version in versions.items())


if __name__ == "__main__":
    generated.put(generated.REFERENCES, "peers", text())
