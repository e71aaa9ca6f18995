"""Run the scripts of docs/what-others-compute, store their output, and write the table of docs/what-others-compute.md.

``PYTHONPATH=folders-of-packages python -m pyrodrop.analysis.lab.benchmarks.what_others_compute`` runs the scripts whose
package is installed in the version that their first line pins, and keeps the stored output of the others. ``--page`` only
writes the page. A test checks that page, scripts and stored output agree.
"""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from pyrodrop.analysis.lab import ROOT, generated
from pyrodrop.files import whole

DOCS = ROOT / "docs"
FOLDER, PAGE = DOCS / "what-others-compute", DOCS / "what-others-compute.md"
OUTPUTS = FOLDER / "outputs.json"
COMPUTED, EXPECTED = "computed: ", "should be: "


def scripts() -> list[Path]:
    """All scripts, in the order of the page."""
    return sorted(FOLDER.glob("*.py"))


def requirement(script: Path) -> tuple[str, str]:
    """The package and version that the first line of the script pins."""
    name, version = script.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ").split("==")
    return name, version


def title(script: Path) -> tuple[str, str]:
    """The quantity, and whether the call is documented, a default or neither, from the second line."""
    quantity, call = script.read_text(encoding="utf-8").splitlines()[1].removeprefix("# ").split(" | ")
    return quantity, call


def lacking(script: Path) -> str | None:
    """Why the script cannot run here, or None: only the pinned version is compared with the stored output."""
    name, version = requirement(script)
    try:
        installed = metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"{name} is not installed"
    return None if installed == version else f"{name} {installed} is installed, not {version}"


def printed(script: Path) -> list[str]:
    """The lines that the script prints, run in a separate process.

    Raises:
        RuntimeError: the script fails; the message has its error.
    """
    done = subprocess.run([sys.executable, "-P", str(script)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{script.name} failed:\n{done.stderr}")
    return done.stdout.splitlines()


def stored() -> dict[str, dict[str, Any]]:
    """The stored output by the name of the script; empty if there is none."""
    return dict(json.loads(OUTPUTS.read_text(encoding="utf-8"))) if OUTPUTS.is_file() else {}


def record(script: Path) -> dict[str, Any]:
    """The output of running the script now, with date and versions."""
    name, version = requirement(script)
    lines = printed(script)
    return {
        "package": name,
        "version": version,
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "printed": lines,
        "computed": line(lines, COMPUTED),
        "expected": line(lines, EXPECTED),
    }


def line(lines: list[str], start: str) -> str:
    """The rest of the only line with this start."""
    (rest,) = (each.removeprefix(start) for each in lines if each.startswith(start))
    return rest


def table(outputs: dict[str, dict[str, Any]]) -> str:
    """The table of the page, a row for each script."""
    rows = ["| package | what | the call is | it computes | it should be |", "|---|---|---|---|---|"]
    for script in scripts():
        row = outputs[script.stem]
        quantity, call = title(script)
        what = f"[{quantity}](#{script.stem}) | {call}"
        rows.append(f"| {row['package']} {row['version']} | {what} | {row['computed']} | {row['expected']} |")
    return "\n".join(rows) + "\n"


def main(arguments: list[str]) -> None:
    """Run the scripts that can be run here, then write the stored outputs and the table of the page."""
    outputs = stored()
    for script in [] if "--page" in arguments else scripts():
        reason = lacking(script)
        print(f"{script.name}: {reason or 'running'}", flush=True)
        if reason is None:
            outputs[script.stem] = record(script)
    with whole(OUTPUTS) as file:
        file.write_text(json.dumps(outputs, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
    generated.put(PAGE, "table", table(outputs))


if __name__ == "__main__":
    main(sys.argv[1:])
